from __future__ import annotations

import subprocess
import sys

import pytest

from yolo_airflow_provider.planner.catalogue import architecture, architectures


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("yolov8m", "yolov8m"),
        ("yolov8m.pt", "yolov8m"),
        ("YOLOv8m.yaml", "yolov8m"),
        ("yolov5su", "yolov5s"),
        ("yolov5x6", "yolov5x-p6"),
        ("yolov5l6u", "yolov5l-p6"),
        ("yolo11n-seg", "yolo11n-seg"),
    ],
)
def test_people_name_architectures_in_many_ways(name: str, row: str) -> None:
    found = architecture(name)
    assert found is not None
    assert found.name == row


@pytest.mark.parametrize("name", ["best", "best.pt", "yolov99", ""])
def test_what_is_not_in_it_is_not_guessed(name: str) -> None:
    assert architecture(name) is None


def test_every_family_scale_and_task_is_in_it() -> None:
    known = set(architectures())
    for generation in ("yolov5", "yolov8", "yolo11", "yolo12", "yolo26"):
        assert {f"{generation}{scale}" for scale in "nsmlx"} <= known
    for task in ("seg", "pose", "obb", "cls"):
        assert {f"yolo11{scale}-{task}" for scale in "nsmlx"} <= known
    assert {"yolov3", "yolov6n", "yolov8n-p2", "yolov8x-p6", "yolov9e", "yolov10x", "rtdetr-l", "rtdetr-x"} <= known


def test_no_row_is_out_of_line() -> None:
    for name, row in architectures().items():
        assert row.name == name
        assert row.parameters > 500_000, name
        assert 9 <= row.fixed_bytes / row.parameters <= 14, name  # weights, gradients and momentum are twelve bytes
        assert 1.2 < row.fp32_bytes_per_pixel / row.amp_bytes_per_pixel < 2.1, name
        assert row.gflops > 0, name
        assert (row.anchors_per_pixel == 0) == (row.task == "classify"), name
        # Backward takes twice the forward pass, which Ultralytics GFLOPs are; it scales attention by the pixels alone.
        assert 2.0 < row.step_flops_per_pixel * row.gflops_imgsz**2 / (row.gflops * 1e9) < 5.0, name


def test_a_plan_imports_no_torch() -> None:
    script = (
        "import sys; from yolo_airflow_provider.planner.catalogue import architecture; "
        "assert architecture('yolov8n'); print(sorted({'torch', 'pandas', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
