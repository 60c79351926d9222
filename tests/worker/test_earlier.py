"""What a try finds of those before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.contract import JobResult, JobSpec, TrainJob, TrainSummary
from yolo_airflow_provider.worker import earlier
from yolo_airflow_provider.worker.files import write_atomically

MakeJob = Callable[..., dict[str, Any]]


@pytest.fixture
def spec(make_job: MakeJob) -> JobSpec:
    fields = {"model": "yolov8n", "data": "d.yaml", "imgsz": 64, "epochs": 3, "batch": 4}
    return JobSpec.from_json(json.dumps(make_job("train", try_number=11, **fields)))


def finish(spec: JobSpec, try_number: int) -> None:
    folder = Path(spec.run_folder)
    weights = folder / "train" / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    (weights / "best.pt").touch()
    assert isinstance(spec.job, TrainJob)
    write_atomically(earlier.marker(folder), json.dumps(earlier.identity(spec.job)))
    summary = TrainSummary(
        epochs=3,
        epochs_done=3,
        resumed_epochs=0,
        best_weights="train/weights/best.pt",
        last_weights="train/weights/last.pt",
        training_seconds=1.0,
    )
    result = JobResult(kind="train", try_number=try_number, train=summary)
    (folder / f"result-{try_number}.json").write_text(result.to_message())


def test_the_result_of_the_latest_try_is_the_one_with_the_highest_number(spec: JobSpec) -> None:
    for try_number in (9, 10, 2):
        finish(spec, try_number)
    (Path(spec.run_folder) / "result-of-mine.json").write_text("{}")
    assert isinstance(spec.job, TrainJob)
    found = earlier.finished(spec, spec.job)
    assert found is not None
    assert found.try_number == 10


def test_e2_what_makes_it_another_training_is_told_with_both_values(spec: JobSpec) -> None:
    assert isinstance(spec.job, TrainJob)
    before = earlier.identity(spec.job)
    after = earlier.identity(spec.job.model_copy(update={"epochs": 300, "overrides": {"lr0": 0.02}}))
    assert earlier.changes(before, after) == "epochs 3 -> 300, overrides {} -> {'lr0': 0.02}"
    assert earlier.changes(before, before) == ""
    assert earlier.changes(None, after) == "nothing says which"
