"""A small data set that the demo draws itself: discs, squares and triangles on noise, seeded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

CLASSES = ("disc", "square", "triangle")
_COLOURS = ((214, 69, 65), (65, 131, 215), (63, 195, 128))


def draw_shapes(folder: Path, *, train: int = 96, val: int = 32, size: int = 320, seed: int = 0) -> Path:
    """Write a data set in YOLO format; the same arguments give the same bytes.

    Args:
        folder: to create; an existing complete set is reused.
        train: number of training images.
        val: number of validation images.
        size: side of the square images, pixels.
        seed: of everything random.

    Returns:
        The path of its data.yaml, which is written last.
    """
    description = folder / "data.yaml"
    if description.exists():
        return description
    chance = random.Random(seed)
    for split, count in (("train", train), ("val", val)):
        (folder / "images" / split).mkdir(parents=True, exist_ok=True)
        (folder / "labels" / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            _draw_image(folder, split, f"shapes_{number:04d}", size, chance)
    names = "".join(f"  {number}: {name}\n" for number, name in enumerate(CLASSES))
    description.write_text(f"train: images/train\nval: images/val\nnames:\n{names}", encoding="utf-8")
    return description


def _draw_image(folder: Path, split: str, stem: str, size: int, chance: random.Random) -> None:
    from PIL import Image, ImageDraw

    # Noise at a quarter of the size: cheap to draw, and the background is not flat.
    grey = chance.randint(90, 160)
    small = Image.frombytes("L", (size // 4, size // 4), chance.randbytes((size // 4) ** 2))
    image = Image.blend(Image.new("L", small.size, grey), small, 0.2).resize((size, size)).convert("RGB")
    pen = ImageDraw.Draw(image)
    rows = [_draw_shape(pen, size, chance) for _ in range(chance.randint(2, 7))]
    image.save(folder / "images" / split / f"{stem}.png")
    (folder / "labels" / split / f"{stem}.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")


def _draw_shape(pen: ImageDraw, size: int, chance: random.Random) -> str:
    """Draw one shape; returns its label row."""
    kind = chance.randrange(len(CLASSES))
    side = chance.randint(size // 10, size // 3)
    left, top = chance.randint(1, size - side - 2), chance.randint(1, size - side - 2)
    box = (left, top, left + side, top + side)
    if kind == 0:
        pen.ellipse(box, fill=_COLOURS[kind])
    elif kind == 1:
        pen.rectangle(box, fill=_COLOURS[kind])
    else:
        pen.polygon(((left + side // 2, top), (left, top + side), (left + side, top + side)), fill=_COLOURS[kind])
    centre_x, centre_y, share = (left + side / 2) / size, (top + side / 2) / size, side / size
    return f"{kind} {centre_x:.6f} {centre_y:.6f} {share:.6f} {share:.6f}"
