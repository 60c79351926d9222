from __future__ import annotations

import hashlib
import io
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from yolo_airflow_provider.worker.dataset.faults import Fault
from yolo_airflow_provider.worker.dataset.images import JPEG_END, inspect_image

Picture = Callable[..., bytes]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "TIFF"])
def test_a_good_image(make_picture: Picture, kind: str) -> None:
    raw = make_picture(1, (40, 30), kind)
    facts = inspect_image(raw)
    assert (facts.width, facts.height, facts.fault, facts.size_bytes) == (40, 30, None, len(raw))
    assert facts.sha256 == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.95])
def test_a_cut_image_is_corrupt(make_picture: Picture, kind: str, part: float) -> None:
    raw = make_picture(1, (40, 30), kind)
    facts = inspect_image(raw[: int(len(raw) * part)])
    assert facts.fault is Fault.IMAGE_CORRUPT
    assert facts.detail
    assert " at 0x" not in facts.detail


def test_a_jpeg_with_bytes_behind_its_end_is_usable_and_reported(make_picture: Picture) -> None:
    raw = make_picture(1, kind="JPEG") + b"\0\0"
    facts = inspect_image(raw)
    assert facts.fault is Fault.JPEG_TRUNCATED
    assert facts.usable
    assert "00 00" in facts.detail
    with Image.open(io.BytesIO(raw)) as before, Image.open(io.BytesIO(raw + JPEG_END)) as after:
        assert np.array_equal(np.asarray(before), np.asarray(after))
    assert inspect_image(raw + JPEG_END).fault is None


def test_a_flipped_bit_in_a_png_is_found_by_its_checksum(make_picture: Picture) -> None:
    raw = bytearray(make_picture(1))
    raw[len(raw) // 2] ^= 1
    assert inspect_image(bytes(raw)).fault is Fault.IMAGE_CORRUPT


def test_small_and_foreign_images(make_picture: Picture) -> None:
    small = inspect_image(make_picture(1, (9, 40)))
    assert small.fault is Fault.IMAGE_CORRUPT
    assert "9x40" in small.detail
    assert inspect_image(make_picture(1, (10, 10))).fault is None
    foreign = inspect_image(make_picture(1, kind="GIF"))
    assert foreign.fault is Fault.IMAGE_CORRUPT
    assert "GIF" in foreign.detail


def test_the_size_is_as_shown() -> None:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[274] = 6
    Image.new("RGB", (40, 20)).save(buffer, "JPEG", exif=exif)
    facts = inspect_image(buffer.getvalue())
    assert (facts.width, facts.height) == (20, 40)


@given(
    raw=st.binary(max_size=200),
    head=st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"BM", b"RIFF"]),
)
@settings(max_examples=150, deadline=None)
def test_any_bytes_have_a_result(raw: bytes, head: bytes) -> None:
    assert not inspect_image(head + raw).usable
