from __future__ import annotations

import math
from dataclasses import replace

import pytest

from yolo_airflow_provider.planner.calibration import LARGEST_RESIDUAL, PRIOR_RUNS, Point, fit, learned
from yolo_airflow_provider.planner.catalogue import architecture
from yolo_airflow_provider.planner.need import AFTER_VALIDATION, GPU, Constants, Workload, needed

TRUE = Constants(base_bytes=2e8, activations=1.2, fixed=1.5, loss=6.0)
NAMES = ("yolov5s", "yolov8n", "yolov8m", "yolov8x", "yolo11s", "yolo11l", "yolov9c", "yolo26n", "rtdetr-l")


def point(name: str, batch: int, *, imgsz: int = 640, by: Constants = TRUE, factor: float = 1.0) -> Point:
    known = architecture(name)
    assert known is not None
    asked = Workload(known, imgsz, "amp")
    return Point(asked, batch, needed(asked, batch, by).reserved * factor)


MADE = [point(name, batch, imgsz=imgsz) for name in NAMES for batch in (2, 8, 32) for imgsz in (320, 640)]


def test_constants_that_made_the_points_are_found() -> None:
    found = fit(MADE)
    for name in ("base_bytes", "activations", "fixed", "loss"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.01)
    assert all(abs(value) < 0.001 for value in found.families.values())


def test_odd_runs_bend_nothing() -> None:
    odd = [replace(one, measured_bytes=one.measured_bytes * 3) for one in MADE[::9]]
    found = fit([*MADE, *odd])
    assert found.activations == pytest.approx(TRUE.activations, rel=0.03)


def test_what_is_read_later_is_read_as_more() -> None:
    later = [replace(one, measured_bytes=one.measured_bytes * AFTER_VALIDATION, later=True) for one in MADE]
    assert fit(later).activations == pytest.approx(TRUE.activations, rel=0.01)


def test_a_device_on_which_everything_takes_more_is_learned() -> None:
    taught = learned([point(name, 16, by=GPU, factor=1.2) for name in NAMES for _ in range(4)], GPU)
    for name in ("yolov8s", "yolov6m"):  # one of a family that was seen, one of a family that was not
        ratio = point(name, 16, by=taught).measured_bytes / point(name, 16, by=GPU).measured_bytes
        assert 1.1 < ratio < 1.2


def test_a_single_outlier_moves_next_to_nothing() -> None:
    usual = [point(name, 16, by=GPU) for name in NAMES]
    with_outlier = learned([*usual, point("yolov8m", 16, by=GPU, factor=40.0)], GPU)
    moved = abs(with_outlier.families["yolov8"] - GPU.families["yolov8"])
    assert moved <= 2 * LARGEST_RESIDUAL / (1 + PRIOR_RUNS)


def test_few_runs_weigh_less_than_many() -> None:
    few, many = (learned([point("yolov8m", 16, by=GPU, factor=1.1)] * runs, GPU) for runs in (1, 40))
    gain = [math.exp(one.families["yolov8"] - GPU.families["yolov8"]) for one in (few, many)]
    assert 1.0 < gain[0] < gain[1] < 1.11
