"""One image file: does it decode to its end, how large is it. Pure functions of its bytes."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass

from PIL import Image

from yolo_airflow_provider.worker.dataset.faults import Fault

SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        "avif",
        "bmp",
        "dng",
        "heic",
        "heif",
        "jp2",
        "jpeg",
        "jpg",
        "mpo",
        "png",
        "tif",
        "tiff",
        "webp",
    )
)
"""File name suffixes, in lower case, that the trainer takes for images; other files are ignored."""
JPEG_END = b"\xff\xd9"

_FORMATS = frozenset({"AVIF", "BMP", "DNG", "HEIC", "HEIF", "JPEG", "JPEG2000", "MPO", "PNG", "TIFF", "WEBP"})
_MIN_SIDE = 10
_ORIENTATION = 274
_TURNED = frozenset({5, 6, 7, 8})


@dataclass(frozen=True)
class ImageFacts:
    """What one image file is.

    Attributes:
        sha256: of the file's bytes, hexadecimal.
        size_bytes: of the file.
        width: in pixels as it is shown (EXIF orientation applied); 0 where it does not decode.
        height: likewise.
        fault: `IMAGE_CORRUPT`, `JPEG_TRUNCATED` or None.
        detail: the decoder's words.
    """

    sha256: str
    size_bytes: int
    width: int = 0
    height: int = 0
    fault: Fault | None = None
    detail: str = ""

    @property
    def usable(self) -> bool:
        """Whether the trainer can decode it."""
        return self.fault is not Fault.IMAGE_CORRUPT


def inspect_image(raw: bytes) -> ImageFacts:
    """Decode an image completely and tell what it is. Raises nothing but MemoryError."""
    digest = hashlib.sha256(raw).hexdigest()
    try:
        kind, width, height = _decode(raw)
    except MemoryError:
        raise
    except Exception as error:  # Decoders raise whatever their format's code raises.
        words = "the file is empty" if not raw else f"{type(error).__name__}: {error}"
        return ImageFacts(digest, len(raw), fault=Fault.IMAGE_CORRUPT, detail=_without_address(words))
    if kind not in _FORMATS:
        detail = f"the content is {kind}, which training does not read"
        return ImageFacts(digest, len(raw), width, height, Fault.IMAGE_CORRUPT, detail)
    if min(width, height) < _MIN_SIDE:
        detail = f"{width}x{height} pixels, at least {_MIN_SIDE} a side are needed"
        return ImageFacts(digest, len(raw), width, height, Fault.IMAGE_CORRUPT, detail)
    if kind == "JPEG" and not raw.endswith(JPEG_END):
        detail = f"ends with bytes {raw[-2:].hex(' ')}, not ff d9"
        return ImageFacts(digest, len(raw), width, height, Fault.JPEG_TRUNCATED, detail)
    return ImageFacts(digest, len(raw), width, height)


def _decode(raw: bytes) -> tuple[str, int, int]:
    # verify() checks checksums that load() passes over, and leaves an image that cannot be loaded.
    with Image.open(io.BytesIO(raw)) as image:
        image.verify()
    with Image.open(io.BytesIO(raw)) as image:
        image.load()
        width, height = image.size
        if image.getexif().get(_ORIENTATION) in _TURNED:
            width, height = height, width
        return str(image.format), width, height


def _without_address(words: str) -> str:
    # PIL puts the address of the buffer into its text; reports of equal data shall be equal.
    return words.partition(" <_io.BytesIO")[0][:160]
