"""What a training hands to Ultralytics to resume from, without training anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from yolo_airflow_provider.contract import JobSpec, TrainJob
from yolo_airflow_provider.worker import train as module
from yolo_airflow_provider.worker.checkpoints import newest
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.measure.device import Cpu
from yolo_airflow_provider.worker.models import ModelSource
from yolo_airflow_provider.worker.train import Training

MakeJob = Callable[..., dict[str, Any]]


@pytest.fixture
def trainer_arguments(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each trainer that is made; none of them trains."""
    made: list[dict[str, Any]] = []

    class Silent:
        def __init__(self, overrides: dict[str, Any]) -> None:
            made.append(overrides)

    monkeypatch.setattr(module, "trainer_class", lambda _: Silent)
    return made


def training(make_job: MakeJob, **changes: Any) -> Training:
    try_number = changes.pop("try_number", 1)
    fields = {"model": "yolov8n", "data": "d.yaml", "imgsz": 64, "epochs": 3, "batch": 4} | changes
    spec = JobSpec.from_json(json.dumps(make_job("train", try_number=try_number, **fields)))
    spec = spec.model_copy(update={"run_folder": "run"})
    Path("run").mkdir(exist_ok=True)
    assert isinstance(spec.job, TrainJob)
    return Training(spec, spec.job, Cpu(), Fence(Path("run"), try_number))


def leave_checkpoint(name: str, *, epoch: int) -> Path:
    path = Path("run/train/weights") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"epoch": epoch, "train_args": {"batch": 4}}, path)
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace by a relative path, which Ultralytics would look for in its own folders."""
    monkeypatch.chdir(tmp_path)


def test_e1_a_checkpoint_is_loaded_before_use_and_named_by_its_absolute_path(
    make_job: MakeJob, trainer_arguments: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    previous = leave_checkpoint("previous.pt", epoch=0).absolute()
    last = leave_checkpoint("last.pt", epoch=1)
    last.write_bytes(last.read_bytes()[:-200])
    found = newest(Path("run/train/weights"), trusted=False)
    assert found is not None
    assert (found.path, found.epochs_done, found.batch) == (previous, 1, 4)
    assert f"checkpoint {last.absolute()}" in capsys.readouterr().out

    training(make_job)._trainer(ModelSource("yolov8n", "yolov8n.yaml", weights=False), found)
    (arguments,) = trainer_arguments
    assert arguments["resume"] == arguments["model"] == str(previous)
    assert Path(arguments["save_dir"]).is_absolute()


def test_e2_a_batch_that_changed_is_told_and_taken(
    make_job: MakeJob, trainer_arguments: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    leave_checkpoint("last.pt", epoch=0)
    found = newest(Path("run/train/weights"), trusted=False)
    training(make_job, batch=2)._trainer(ModelSource("yolov8n", "yolov8n.yaml", weights=False), found)
    assert "now with batch 2 instead of 4" in capsys.readouterr().out
    assert trainer_arguments[0]["batch"] == 2


def test_e5_every_try_trains_in_the_same_folder(make_job: MakeJob, trainer_arguments: list[dict[str, Any]]) -> None:
    for try_number in (1, 2, 11):
        training(make_job, try_number=try_number)._trainer(ModelSource("n", "yolov8n.yaml", weights=False), None)
    assert {arguments["save_dir"] for arguments in trainer_arguments} == {str(Path("run/train").absolute())}


def test_the_image_cache_is_handed_on(make_job: MakeJob, trainer_arguments: list[dict[str, Any]]) -> None:
    training(make_job, cache="ram")._trainer(ModelSource("n", "yolov8n.yaml", weights=False), None)
    assert trainer_arguments[0]["cache"] == "ram"


def test_a_zombie_makes_no_trainer_which_would_remove_the_later_trys_results(
    make_job: MakeJob, trainer_arguments: list[dict[str, Any]]
) -> None:
    zombie = training(make_job)
    Fence(Path("run"), 2).take()
    with pytest.raises(JobError, match="has taken over"):
        zombie._trainer(ModelSource("n", "yolov8n.yaml", weights=False), None)
    assert trainer_arguments == []
