from __future__ import annotations

import json
from pathlib import Path

import pytest

from yolo_airflow_provider.cli import main


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twenty images, of which one is a crowd."""
    for split, number in (("train", 20), ("val", 4)):
        for kind in ("images", "labels"):
            (tmp_path / kind / split).mkdir(parents=True)
        for place in range(number):
            (tmp_path / "images" / split / f"{place}.jpg").touch()
            boxes = 90 if (split, place) == ("train", 7) else 3
            (tmp_path / "labels" / split / f"{place}.txt").write_text("0 0.5 0.5 0.1 0.1\n" * boxes)
    (tmp_path / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [cell, nucleus]\n")
    return tmp_path / "data.yaml"


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = main(["plan", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_plan_says_what_where_how_long_and_why(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "yolov8m", "--data", str(data), "--offered", "a100-40gb,t4"]) == 0
    said = capsys.readouterr().out
    sentence = said.splitlines()[0]
    assert "yolov8m at 640 on 1x 1g.5gb of NVIDIA-A100-SXM4-40GB: batch" in sentence
    assert "GiB predicted" in sentence
    assert "predicted from the architecture" in sentence
    assert "1x Tesla-T4" in said
    assert "costs" in said


def test_the_same_for_programs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = as_json(capsys, "yolov8m", "--data", str(data), "--offered", "a100-40gb", "--epochs", "10")
    assert code == 0
    candidates = found["candidates"]
    assert isinstance(candidates, list)
    assert len(candidates) == 7
    (taken,) = [one for one in candidates if not one["why_not"]]
    assert (taken["on"], taken["batch"]) == (found["accelerator"], found["batch"])
    assert taken["low_bytes"] < taken["predicted_bytes"] < taken["high_bytes"]
    assert found["total_low_seconds"] < found["total_seconds"] < found["total_high_seconds"]  # type: ignore[operator]
    assert found["batch"] <= 20  # type: ignore[operator]


def test_a_crowd_in_the_data_is_planned_for(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("yolov8n", "--offered", "1g.5gb@a100-40gb", "--batch", "16")
    _, told = as_json(capsys, *arguments, "--data", str(data))
    _, blank = as_json(capsys, *arguments, "--images", "20", "--classes", "2")
    (with_crowd,), (without,) = told["candidates"], blank["candidates"]  # type: ignore[misc]
    assert with_crowd["high_bytes"] > without["high_bytes"]


def test_objectives_differ(capsys: pytest.CaptureFixture[str]) -> None:
    taken = {
        goal: as_json(
            capsys, "yolov8x", "--images", "5000", "--offered", "a100-40gb", "--optimize", goal, "--workers", "64"
        )[1]["accelerator"]
        for goal in ("time", "fit")
    }
    assert "1g.10gb" in str(taken["fit"])
    assert "1g" not in str(taken["time"])


def test_what_fits_nowhere_is_refused_with_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "yolov8x", "--images", "100", "--imgsz", "1280", "--offered", "1g.5gb@a100-40gb"]) == 1
    said = capsys.readouterr().out
    assert "nothing that is offered can take this training" in said
    assert "imgsz=" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["yolov99", "--offered", "t4"], "did you mean yolov9"),
        (["yolov8n", "--offered", "a100"], "may be any of"),
        (["yolov8n", "--offered", "t4", "--imgsz", "641"], "not a multiple of the model's stride 32"),
        (["yolov8n", "--offered", "t4", "--data", "/nowhere/data.yaml"], "cannot be read"),
        (["yolov8n", "--offered", "t4", "--images", "10", "--batch", "11"], "larger than the data set's 10"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("yolo-airflow plan: ")
    assert said in error
    assert error.count("\n") == 1


def test_a_data_set_without_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data.yaml").write_text("train: nothing\nnames: [a]\n")
    assert main(["plan", "yolov8n", "--offered", "t4", "--data", str(tmp_path / "data.yaml")]) == 1
    assert "no training images" in capsys.readouterr().err


@pytest.mark.slow
def test_a_custom_architecture_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    custom = tmp_path / "mine.yaml"
    custom.write_text(
        "nc: 2\nbackbone:\n"
        "  - [-1, 1, Conv, [32, 3, 2]]\n  - [-1, 1, Conv, [64, 3, 2]]\n  - [-1, 1, Conv, [64, 3, 2]]\n"
        "head:\n  - [[2], 1, Detect, [nc]]\n"
    )
    code, found = as_json(capsys, str(custom), "--images", "100", "--offered", "t4")
    assert code == 0
    assert "mine at 640" in str(found["sentence"])
