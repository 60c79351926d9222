"""The probe and the export, for real, in processes of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MakeJob = Callable[..., dict[str, Any]]
StartWorker = Callable[..., Any]


def test_more_images_take_more_memory_and_nothing_is_left(
    make_job: MakeJob, start_worker: StartWorker, shapes: Path
) -> None:
    spec = make_job("probe", model="yolov8n", data=str(shapes), imgsz=160, batches=[16, 2, 8], steps=2)
    worker = start_worker(spec)
    assert worker.end() == 0, worker.log
    points = worker.answer["measurements"]
    assert [point["part"] for point in points] == ["batch-2", "batch-8", "batch-16"]
    peaks = [point["peak_device_bytes"] for point in points]
    assert peaks == sorted(peaks)
    assert peaks[2] - peaks[0] > 50 * 2**20
    assert all(point["step_seconds"] > 0 and "data_wait_percent" in point for point in points)
    assert list((Path(spec["run_folder"]) / "probe").iterdir()) == []


def test_a_probe_that_was_killed_has_not_lost_its_points(
    make_job: MakeJob, start_worker: StartWorker, shapes: Path
) -> None:
    """As the kernel does at a batch that the container does not hold: no answer, no signal that could be caught."""
    fields = {"model": "yolov8n", "data": str(shapes), "imgsz": 64, "batches": [2, 4, 8], "steps": 1}
    for try_number in (1, 2):
        killed = start_worker(make_job("probe", try_number=try_number, **fields))
        killed.wait_for("probe: measuring batch 4")
        killed.process.kill()
        killed.end()
        assert not Path(killed.spec["result_path"]).exists()
    assert "probe: measuring batch 2" not in killed.log

    third = start_worker(make_job("probe", try_number=3, **fields))
    assert third.end() == 0, third.log
    assert "probe: measuring" not in third.log
    (point,) = third.answer["measurements"]
    assert (point["part"], point["try_number"]) == ("batch-2", 1)
    assert third.answer["model"]["parameters"] == 3011433
    assert third.answer["notes"] == [
        "batch 2 was measured by an earlier try and is not measured again",
        "two tries ended without a word while they measured batch 4: it is left out",
    ]
    assert not list(Path(third.spec["run_folder"]).glob("probe/*"))


def test_a_batch_over_the_budget_is_the_last_point(make_job: MakeJob, start_worker: StartWorker, shapes: Path) -> None:
    budget = 1550 * 2**20
    spec = make_job(
        "probe", budget_bytes=budget, model="yolov8n", data=str(shapes), imgsz=320, batches=[1, 16], steps=2
    )
    worker = start_worker(spec)
    assert worker.end() == 0, worker.log
    fitted, failed = worker.answer["measurements"]
    assert (fitted["batch"], failed["batch"]) == (1, 16)
    assert fitted["peak_device_bytes"] <= budget < failed["peak_device_bytes"]
    assert failed["failure_class"] == "host_oom"
    assert "failure" not in worker.answer


def test_not_even_the_first_batch_fits(make_job: MakeJob, start_worker: StartWorker, shapes: Path) -> None:
    spec = make_job("probe", budget_bytes=1400 * 2**20, model="yolov8n", data=str(shapes), imgsz=320, batches=[16])
    worker = start_worker(spec)
    assert worker.end() == 17, worker.log
    assert worker.answer["failure"]["failure_class"] == "host_oom"
    assert worker.answer["measurements"][0]["batch"] == 16


def test_c11_a_budget_below_the_models_own_needs_is_no_matter_of_batches(
    make_job: MakeJob, start_worker: StartWorker, shapes: Path
) -> None:
    spec = make_job("probe", budget_bytes=200 * 2**20, model="yolov8n", data=str(shapes), imgsz=320, batches=[16])
    worker = start_worker(spec)
    assert worker.end() == 1, worker.log
    failure = worker.answer["failure"]
    assert failure["failure_class"] == "data"
    assert "the budget of 0.20 GiB is smaller than what the probe needs before its first image" in failure["message"]
    assert worker.answer.get("measurements", []) == []


@pytest.mark.parametrize(("form", "name"), [("onnx", "model.onnx"), ("torchscript", "model.torchscript")])
def test_an_artefact_answers_as_its_weights(
    form: str, name: str, make_job: MakeJob, start_worker: StartWorker, shapes: Path, weights: Path
) -> None:
    before = hashlib.sha256(weights.read_bytes()).hexdigest()
    spec = make_job("export", weights=str(weights), format=form, imgsz=96, data=str(shapes), images=3)
    worker = start_worker(spec)
    assert worker.end() == 0, worker.log
    export = worker.answer["export"]
    artefact = Path(spec["run_folder"]) / export["artefact"]
    assert artefact.name == name
    assert export["sha256"] == hashlib.sha256(artefact.read_bytes()).hexdigest()
    assert export["size_bytes"] == artefact.stat().st_size
    assert export["images"] == 3
    assert 0 <= export["largest_difference"] < 1e-3
    assert (artefact.parent / f"{name}.sha256").read_text().split() == [export["sha256"], name]
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == before
    assert sorted(file.name for file in weights.parent.glob("*.*") if file.is_file()) == ["net.pt"]


def test_an_artefact_that_differs_is_not_handed_on(
    make_job: MakeJob, start_worker: StartWorker, shapes: Path, weights: Path
) -> None:
    spec = make_job("export", weights=str(weights), imgsz=96, data=str(shapes), images=1, tolerance=1e-12)
    worker = start_worker(spec)
    assert worker.end() == 1
    assert worker.answer["failure"]["failure_class"] == "code"
    assert not (Path(spec["run_folder"]) / "export" / "model.onnx").exists()
    assert "answers differently from its weights" in worker.answer["failure"]["message"]
    assert "tolerance 1e-12" in worker.answer["failure"]["message"]
