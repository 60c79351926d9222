"""`execution="local"`: the real worker as a child of the task."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.contract import Accelerator, Identity, JobSpec, TrainJob
from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.gpus.accelerator import Accelerator as GpuAccelerator
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators import MigTrainOperator, PreprocessOperator
from yolo_airflow_provider.operators.local import LocalRun, worker_environment

MakeContext = Callable[..., dict[str, Any]]


def test_preprocess_returns_what_the_others_take(make_context: MakeContext, shapes: Path, tmp_path: Path) -> None:
    operator = PreprocessOperator(task_id="preprocess", data=str(shapes), imgsz="96", execution="local")
    answer = operator.execute(make_context("preprocess"))
    assert Path(answer["data"]).is_file()
    assert Path(answer["data"]).is_relative_to(tmp_path / "workspace" / "datasets")
    assert Path(answer["report"]).is_file()
    assert answer["dataset"]["train_images"] == 16
    (row,) = ProfileStoreHook().get_store().measurements("dag", "manual__1")
    assert (row.row.kind, row.row.outcome, row.row.dataset) == ("preprocess", "succeeded", "shapes")


@pytest.mark.slow
def test_an_architecture_of_ones_own_is_planned_before_its_first_training(
    make_context: MakeContext, shapes: Path, tmp_path: Path
) -> None:
    custom = tmp_path / "mine.yaml"
    custom.write_text(
        "nc: 2\n"
        "backbone:\n  - [-1, 1, Conv, [16, 3, 2]]\n  - [-1, 1, Conv, [32, 3, 2]]\n  - [-1, 1, Conv, [64, 3, 2]]\n"
        "head:\n  - [[2], 1, Detect, [nc]]\n"
    )
    prepare = PreprocessOperator(task_id="preprocess", data=str(shapes), imgsz=96, model=str(custom), execution="local")
    answer = prepare.execute(make_context("preprocess"))
    assert answer["architecture"]["name"] == "mine"
    # The store knows it too, for a training that is given a bare path.
    for data in (answer, answer["data"]):
        train = MigTrainOperator(
            task_id="train", model=str(custom), data=data, imgsz=96, epochs=1, execution="local", memory_budget="4Gi"
        )
        proposal = train._propose(GpuAccelerator("cpu", memory_bytes=4 * 2**30))
        assert proposal.choice is not None
        assert proposal.choice[1].why == "predicted"
        assert proposal.job.analyse


def test_a_failure_is_typed_recorded_and_named(make_context: MakeContext, tmp_path: Path) -> None:
    operator = PreprocessOperator(task_id="preprocess", data=str(tmp_path / "none.yaml"), execution="local")
    with pytest.raises(BadInput, match=r"none\.yaml"):
        operator.execute(make_context("preprocess"))
    (row,) = ProfileStoreHook().get_store().measurements("dag", "manual__1")
    assert row.row.outcome == "data"


def test_execution_has_two_values(make_context: MakeContext) -> None:
    operator = PreprocessOperator(task_id="p", data="d", execution="remote")
    with pytest.raises(BadInput, match="execution='remote' is neither 'local' nor 'kubernetes'"):
        operator.execute(make_context("p"))


def test_the_worker_gets_no_connection_and_no_key() -> None:
    given = {"PATH": "/bin", "AIRFLOW_CONN_DB": "secret", "AIRFLOW__CORE__FERNET_KEY": "k", "_AIRFLOW_X": "y"}
    assert worker_environment(given) == {"PATH": "/bin"}


def training_spec(folder: Path, data: Path) -> JobSpec:
    return JobSpec(
        job=TrainJob(model="yolov8n", data=str(data), imgsz=64, epochs=500, batch=4),
        identity=Identity(dag_id="dag", run_id="run", task_id="train"),
        accelerator=Accelerator(kind="cpu"),
        workspace=str(folder),
        run_folder=str(folder / "run"),
        result_path=str(folder / "run" / "answer-1.json"),
    )


def endless_training(data: Path) -> MigTrainOperator:
    return MigTrainOperator(
        task_id="train",
        model="yolov8n",
        data=str(data),
        imgsz=64,
        epochs=500,
        batch=4,
        accelerator="cpu",
        execution="local",
    )


@pytest.mark.slow
def test_on_kill_ends_the_worker_and_records_nothing(make_context: MakeContext, shapes: Path) -> None:
    operator = endless_training(shapes)
    trained, outcome = threading.Event(), []

    def listen(line: str, *arguments: object) -> None:
        if "epoch 1/" in str(line) + str(arguments):
            trained.set()

    operator.log.info = listen  # type: ignore[method-assign]

    def run() -> None:
        try:
            operator.execute(make_context("train"))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert trained.wait(120)
    assert operator._local_run is not None
    process = operator._local_run._process
    assert process is not None
    operator.on_kill()
    thread.join(60)
    assert not thread.is_alive()
    assert process.poll() is not None
    assert group_is_gone(process.pid)
    assert "the task was killed" in str(outcome[0])
    assert ProfileStoreHook().get_store().measurements("dag", "manual__1") == []


@pytest.mark.slow
def test_sigkill_to_the_task_ends_the_worker_too(shapes: Path, tmp_path: Path) -> None:
    """No handler runs then; the kernel tells the worker that its parent is gone."""
    spec = training_spec(tmp_path, shapes)
    program = (
        "import sys\n"
        "from yolo_airflow_provider.contract import JobSpec\n"
        "from yolo_airflow_provider.operators.local import LocalRun\n"
        "run = LocalRun(JobSpec.from_json(sys.argv[1]), lambda line: print(run._process.pid, line, flush=True))\n"
        "run.wait()\n"
    )
    task = subprocess.Popen([sys.executable, "-c", program, spec.to_json()], stdout=subprocess.PIPE, text=True)
    assert task.stdout is not None
    worker = next(int(line.split()[0]) for line in task.stdout if "epoch 1/" in line)
    watch = os.pidfd_open(worker)
    task.kill()
    task.wait()
    task.stdout.close()
    ended, _, _ = select.select([watch], [], [], 60)
    os.close(watch)
    assert ended, f"worker {worker} outlived its task"


@pytest.mark.slow
def test_a_killed_worker_is_lost_and_its_epochs_are_kept(make_context: MakeContext, shapes: Path) -> None:
    operator = endless_training(shapes)

    def kill_after_an_epoch(line: str, *arguments: object) -> None:
        if "epoch 2/" in str(line) + str(arguments) and operator._local_run and operator._local_run._process:
            os.kill(operator._local_run._process.pid, signal.SIGKILL)

    operator.log.info = kill_after_an_epoch  # type: ignore[method-assign]
    from yolo_airflow_provider.errors import ResultLost

    with pytest.raises(ResultLost, match="killed by SIGKILL without a result"):
        operator.execute(make_context("train"))
    store = ProfileStoreHook().get_store()
    assert store.measurements("dag", "manual__1")[0].row.outcome == "lost"
    assert set(store.frame("epoch")["epoch"]) >= {1, 2}


def test_a_worker_that_says_nothing_is_lost(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    result = LocalRun(training_spec(tmp_path, shapes), lambda _: None).wait()
    assert result.failure is not None
    assert result.failure.failure_class == "lost"
    assert "exit code 1 and without a result" in result.failure.message


def group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False
