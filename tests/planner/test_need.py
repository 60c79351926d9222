from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from yolo_airflow_provider.planner.catalogue import architecture, architectures
from yolo_airflow_provider.planner.need import CONTEXT_BYTES, GPU, Objects, Workload, family, needed, parts

NAMES = st.sampled_from(sorted(architectures()))
SIZES = st.integers(1, 60).map(lambda number: 32 * number)
BATCHES = st.integers(1, 256)


def work(name: str = "yolov8m", **changes: object) -> Workload:
    known = architecture(name)
    assert known is not None
    return replace(Workload(known, 640, "amp"), **changes)  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(NAMES, SIZES, BATCHES, st.integers(1, 300), st.booleans())
def test_more_of_anything_never_needs_less(name: str, imgsz: int, batch: int, classes: int, on_cpu: bool) -> None:
    asked = work(name, imgsz=imgsz, classes=classes, on_cpu=on_cpu, precision="fp32" if on_cpu else "amp")
    base = needed(asked, batch)
    for more in (
        needed(asked, batch + 1),
        needed(replace(asked, imgsz=imgsz + 32), batch),
        needed(replace(asked, classes=classes + 1), batch),
        needed(replace(asked, optimizer="AdamW"), batch),
        needed(replace(asked, objects=Objects(mean=9.0)), batch),
    ):
        assert more.used >= base.used
        assert more.high >= base.high
        assert more.allocated >= base.allocated


@settings(max_examples=100, deadline=None)
@given(NAMES, SIZES, BATCHES)
def test_the_three_quantities_lie_in_their_order(name: str, imgsz: int, batch: int) -> None:
    found = needed(work(name, imgsz=imgsz), batch)
    assert 0 < found.allocated <= found.reserved < found.used
    assert found.used == found.reserved + CONTEXT_BYTES
    assert found.low <= found.used <= found.high


def test_a_larger_model_of_a_family_needs_more() -> None:
    for generation in ("yolov5", "yolov8", "yolo11", "yolo26"):
        needs = [needed(work(f"{generation}{scale}"), 16).used for scale in "nsmlx"]
        assert needs == sorted(needs)


def test_32_bit_takes_nearly_twice_the_activations() -> None:
    ratio = parts(work(precision="fp32")).activations / parts(work()).activations
    assert 1.7 < ratio < 2.0


def test_a_distribution_of_boxes_is_tighter_than_a_mean() -> None:
    """Of a set with ten boxes an image and twenty at most it is known that no image has a hundred."""
    guessed = needed(work("yolov8n", objects=Objects(mean=10.0)), 32)
    told = needed(work("yolov8n", objects=Objects(mean=10.0, p95=15.0, largest=20)), 32)
    assert told.high < guessed.high
    crowded = needed(work("yolov8n", objects=Objects(mean=10.0, p95=60.0, largest=900)), 32)
    assert crowded.high > guessed.high > told.high


def test_validation_may_be_the_peak() -> None:
    forgetful = replace(architecture("yolov8n"), validation_bytes_per_pixel=400.0)  # type: ignore[type-var]
    found = needed(replace(work(), architecture=forgetful), 8)  # type: ignore[arg-type]
    assert found.phase == "validation"
    assert needed(work(), 8).phase == "training"


def test_a_familys_correction_is_applied() -> None:
    corrected = replace(GPU, families={"yolov8": GPU.families["yolov8"] + 0.1})
    assert needed(work(), 16, corrected).reserved == pytest.approx(needed(work(), 16).reserved * 2.718281828**0.1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("yolov8n-seg", "yolov8"),
        ("yolo11x", "yolo11"),
        ("rtdetr-l", "rtdetr"),
        ("yolov10b", "yolov10"),
        ("best", "best"),
    ],
)
def test_families(name: str, expected: str) -> None:
    assert family(name) == expected
