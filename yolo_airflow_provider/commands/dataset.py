"""What a plan has to know of a data set: images, classes and how many boxes they have, counted from its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yolo_airflow_provider.commands.errors import CommandError

_IMAGES = {".bmp", ".dng", ".heic", ".jp2", ".jpeg", ".jpeg2000", ".jpg", ".mpo", ".png", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class Counted:
    """A data set in numbers; boxes are of the training images."""

    images: int
    val_images: int
    classes: int | None
    boxes: tuple[int, ...] = ()


def count(data_yaml: Path) -> Counted:
    """Count a data set in YOLO's format.

    Raises:
        CommandError: the file cannot be read, or names no training images.
    """
    import yaml

    try:
        content: Any = yaml.safe_load(data_yaml.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"{data_yaml} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not content.get("train"):
        raise CommandError(f"{data_yaml} is no data set: it has no entry 'train'")
    base = data_yaml.parent / str(content.get("path") or ".")
    train = list(_images(base, content["train"]))
    if not train:
        raise CommandError(f"{data_yaml}: no training images in {content['train']!r} below {base}")
    names = content.get("names")
    return Counted(
        images=len(train),
        val_images=sum(1 for _ in _images(base, content.get("val") or [])),
        classes=len(names) if names else content.get("nc"),
        boxes=tuple(_boxes(image) for image in train),
    )


def _images(base: Path, entry: Any) -> Iterator[Path]:
    for name in entry if isinstance(entry, list) else [entry]:
        place = base / str(name)
        if place.is_dir():
            yield from sorted(file for file in place.rglob("*") if file.suffix.lower() in _IMAGES)
        elif place.is_file():
            for line in filter(None, (line.strip() for line in place.read_text(encoding="utf-8").splitlines())):
                yield place.parent / line if line.startswith("./") else base / line


def _boxes(image: Path) -> int:
    """Lines of the label file, which lies where `images` in the path is `labels`."""
    parts = list(image.parts)
    for place in range(len(parts) - 1, -1, -1):
        if parts[place] == "images":
            parts[place] = "labels"
            break
    try:
        return sum(1 for line in Path(*parts).with_suffix(".txt").read_text().splitlines() if line.strip())
    except OSError:
        return 0  # an image without labels is background
