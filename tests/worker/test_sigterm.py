"""SIGTERM at any moment of a run: told as what it is, at once or after the batch, and never instead of the answer."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests_support import CallbackTrainer

from yolo_airflow_provider.contract import DatasetSummary, FailureClass
from yolo_airflow_provider.worker import checkpoints, data, job, models
from yolo_airflow_provider.worker.failures import Stopped, classify
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.trainer import Preemption

MakeJob = Callable[..., dict[str, Any]]
SUMMARY = DatasetSummary(
    name="n", fingerprint="f", classes=1, train_images=1, val_images=1, size_bytes=1, data_yaml="d", report="r"
)


def terminate(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def trainer() -> CallbackTrainer:
    made = CallbackTrainer()
    Preemption().attach(made)
    return made


def test_it_is_of_the_class_preempted_and_no_exception() -> None:
    assert classify(Stopped()) is FailureClass.PREEMPTED
    assert not isinstance(Stopped(), Exception)


@pytest.mark.parametrize("so_far", [(), ("on_pretrain_routine_end",)])
def test_before_the_first_batch_it_ends_the_run_at_once(so_far: tuple[str, ...], trainer: CallbackTrainer) -> None:
    trainer.run(*so_far)
    with pytest.raises(Stopped, match=r"asked to stop \(SIGTERM\)"):
        terminate()


@pytest.mark.parametrize("first", ["on_train_batch_start", "on_val_start"])
@pytest.mark.parametrize(
    "then", ["on_train_batch_start", "on_train_batch_end", "on_val_batch_start", "on_val_batch_end"]
)
def test_from_the_first_batch_on_it_ends_the_run_at_the_next_edge_of_one(
    first: str, then: str, trainer: CallbackTrainer
) -> None:
    trainer.run("on_pretrain_routine_end", first)
    terminate()
    trainer.run("on_train_epoch_end")  # a checkpoint is written around here
    with pytest.raises(Stopped):
        trainer.run(then)


def test_what_something_swallowed_is_raised_again(trainer: CallbackTrainer) -> None:
    with pytest.raises(Stopped):
        terminate()
    with pytest.raises(Stopped):
        trainer.run("on_pretrain_routine_end")


def test_the_next_point_of_a_probe_is_set_up_anew() -> None:
    preemption, first, second, third = Preemption(), CallbackTrainer(), CallbackTrainer(), CallbackTrainer()
    preemption.attach(first)
    first.run("on_train_batch_start")
    preemption.attach(second)
    with pytest.raises(Stopped):
        terminate()
    with pytest.raises(Stopped):
        preemption.attach(third)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    import torch

    path = tmp_path / "weights" / "last.pt"
    path.parent.mkdir()
    torch.save({"epoch": 1}, path)
    return path


def test_while_weights_are_loaded_it_does_not_blame_them(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultralytics.nn.tasks.torch_safe_load", terminate)
    Preemption()
    with pytest.raises(Stopped):
        models.resolve(str(archive), trusted_weights=False)


def test_while_a_data_set_is_read_it_does_not_blame_it(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultralytics.data.utils.check_det_dataset", terminate)
    Preemption()
    with pytest.raises(Stopped):
        data.read_dataset(str(shapes))


def test_while_checkpoints_are_looked_at_it_replaces_none(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = archive.with_name("best.pt")
    best.write_bytes(b"the best")
    found = checkpoints.newest(archive.parent, trusted=False)
    assert found is not None
    monkeypatch.setattr("ultralytics.nn.tasks.torch_safe_load", terminate)
    Preemption()
    with pytest.raises(Stopped):
        checkpoints.mend_best(archive.parent, found, trusted=False, fence=Fence(archive.parents[1], 1))
    assert best.read_bytes() == b"the best"


def run_preprocess(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, work: Callable[..., Any]) -> tuple[int, Any]:
    from yolo_airflow_provider.worker import dataset

    spec = make_job("preprocess", data="d.yaml", imgsz=64)
    monkeypatch.setattr(dataset, "preprocess", work)
    code = job.main({"YOLO_JOB": json.dumps(spec)})
    return code, json.loads(Path(spec["result_path"]).read_text())


def test_a_job_without_batches_answers_that_it_was_stopped(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    code, answer = run_preprocess(make_job, monkeypatch, terminate)
    assert code == 75
    assert answer["failure"]["failure_class"] == "preempted"
    assert answer["failure"]["message"] == "the run was asked to stop (SIGTERM)"
    assert answer["failure"]["hint"] == "the next try does it again"


@pytest.mark.parametrize("fails", [False, True])
def test_once_the_job_is_over_its_answer_is_not_lost(
    fails: bool, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: Any) -> DatasetSummary:
        if fails:
            raise KeyError("x")
        return SUMMARY

    own = job._own

    def stopped_meanwhile(*arguments: Any, **named: Any) -> Any:
        terminate()
        return own(*arguments, **named)

    monkeypatch.setattr(job, "_own", stopped_meanwhile)
    code, answer = run_preprocess(make_job, monkeypatch, work)
    assert code == (1 if fails else 0)
    assert answer.get("failure", {}).get("failure_class") == ("code" if fails else None)


def test_before_the_job_begins_the_exit_code_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "JobSpec", SimpleNamespace(from_json=terminate))
    assert job.main({"YOLO_JOB": "{}"}) == 75


def test_a_batch_of_a_probe_that_was_stopped_is_not_held_against_it(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    from yolo_airflow_provider.contract import JobSpec, ProbeJob
    from yolo_airflow_provider.worker.measure.device import Cpu
    from yolo_airflow_provider.worker.probe import Probe

    raw = make_job("probe", model="yolov8n", data="d.yaml", imgsz=64, batches=[2])
    spec = JobSpec.from_json(json.dumps(raw))
    assert isinstance(spec.job, ProbeJob)
    folder = Path(spec.run_folder)
    folder.mkdir(parents=True)
    work = Probe(spec, spec.job, Cpu(), Fence(folder, 1))
    monkeypatch.setattr(work, "_measure", terminate)
    with pytest.raises(Stopped):
        work._try(2, None, None, Preemption())  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (folder / "probe-1.json").read_text().splitlines()]
    assert lines[-1]["ended"] == "preempted"
