"""A run's folder belongs to the highest try that started in it; what a zombie of an earlier one does is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.contract import DatasetSummary, FailureClass
from yolo_airflow_provider.worker import job
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.fence import NAME, Fence

MakeJob = Callable[..., dict[str, Any]]


def holder(folder: Path) -> int:
    found: int = json.loads((folder / NAME).read_text())["try_number"]
    return found


def fence_off(folder: Path, try_number: int) -> None:
    """As a later try on another node would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(json.dumps({"try_number": try_number, "node": "gpu-17"}))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run's folder, a zombie's own log aside."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "worker-1.log")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_a_try_takes_a_free_folder_an_earlier_ones_and_its_own(tmp_path: Path) -> None:
    for try_number in (1, 1, 3, 3):
        fence = Fence(tmp_path, try_number)
        fence.take()
        fence.check()
        assert holder(tmp_path) == try_number


def test_a_run_that_was_made_again_under_its_name_is_later_than_any_try_before_it(tmp_path: Path) -> None:
    earlier, later = "019ad0a0-0000-7000-8000-000000000000", "019ad0a1-0000-7000-8000-000000000000"
    zombie = Fence(tmp_path, 3, earlier)
    zombie.take()
    Fence(tmp_path, 1, later).take()
    assert holder(tmp_path) == 1
    with pytest.raises(JobError, match="try 1 on node"):
        zombie.check()


def test_a_later_try_is_left_alone_and_named(tmp_path: Path) -> None:
    fence_off(tmp_path, 3)
    fence = Fence(tmp_path, 1)
    for ask in (fence.take, fence.check):
        with pytest.raises(JobError) as caught:
            ask()
        assert caught.value.failure_class is FailureClass.PREEMPTED
        assert str(caught.value) == (
            "try 3 on node gpu-17 has taken over this run's folder; this process of try 1 writes nothing more"
        )
        assert str(tmp_path / NAME) in caught.value.hint
    assert holder(tmp_path) == 3
    assert not fence.holds


def test_the_node_is_the_one_that_the_pod_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "gpu-3")
    Fence(tmp_path, 2).take()
    with pytest.raises(JobError, match="try 2 on node gpu-3"):
        Fence(tmp_path, 1).take()


def test_an_earlier_try_that_wrote_last_does_not_keep_the_folder(tmp_path: Path) -> None:
    """Both started in the same moment, and the earlier one's fence came second."""
    later = Fence(tmp_path, 2)
    later.take()
    fence_off(tmp_path, 1)
    later.check()
    assert holder(tmp_path) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"try_number": "x"}', "null"])
def test_a_fence_that_says_nothing_keeps_nobody_out(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)
    Fence(tmp_path, 1).take()
    assert holder(tmp_path) == 1


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("preprocess", {}),
        ("probe", {"model": "yolov8n", "batches": [2]}),
        ("train", {"model": "yolov8n", "epochs": 1, "batch": 4}),
        ("export", {"weights": "net.pt"}),
    ],
)
def test_a_try_that_starts_in_a_later_ones_folder_ends_at_once(
    kind: str, fields: dict[str, Any], make_job: MakeJob, shapes: Path
) -> None:
    spec = make_job(kind, data=str(shapes), imgsz=64, **fields)
    folder = Path(spec["run_folder"])
    fence_off(folder, 2)
    before = contents(folder)
    assert job.main({"YOLO_JOB": json.dumps(spec)}) == 75
    assert contents(folder) == before
    failure = json.loads(Path(spec["result_path"]).read_text())["failure"]
    assert failure["failure_class"] == "preempted"
    assert failure["message"].startswith("try 2 on node gpu-17 has taken over")


def test_a_result_is_not_kept_where_a_later_try_took_over_meanwhile(
    make_job: MakeJob, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from yolo_airflow_provider.worker import dataset

    spec = make_job("preprocess", data=str(shapes), imgsz=64)
    folder = Path(spec["run_folder"])

    def overtaken(*_: Any) -> DatasetSummary:
        fence_off(folder, 2)
        return DatasetSummary(
            name="n", fingerprint="f", classes=1, train_images=1, val_images=1, size_bytes=1, data_yaml="d", report="r"
        )

    monkeypatch.setattr(dataset, "preprocess", overtaken)
    assert job.main({"YOLO_JOB": json.dumps(spec)}) == 75
    assert list(contents(folder)) == [NAME]
    assert json.loads(Path(spec["result_path"]).read_text())["failure"]["failure_class"] == "preempted"


def test_what_fails_because_a_later_try_cleared_up_is_no_error_of_the_run(
    make_job: MakeJob, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from yolo_airflow_provider.worker import dataset

    spec = make_job("preprocess", data=str(shapes), imgsz=64)

    def overtaken(*_: Any) -> DatasetSummary:
        fence_off(Path(spec["run_folder"]), 2)
        raise FileNotFoundError(2, "No such file or directory", "last.pt")

    monkeypatch.setattr(dataset, "preprocess", overtaken)
    assert job.main({"YOLO_JOB": json.dumps(spec)}) == 75


def test_a_report_is_not_written_over_a_later_trys(make_job: MakeJob, shapes: Path) -> None:
    """The fence goes up between the scan and the preparation."""
    from yolo_airflow_provider.contract import JobSpec, PreprocessJob
    from yolo_airflow_provider.worker.dataset import preprocess

    spec = JobSpec.from_json(json.dumps(make_job("preprocess", data=str(shapes), imgsz=64)))
    assert isinstance(spec.job, PreprocessJob)
    folder = Path(spec.run_folder)
    fence = Fence(folder, 1)
    fence_off(folder, 2)
    with pytest.raises(JobError, match="has taken over"):
        preprocess(spec, spec.job, lambda _: None, fence.check)
    assert list(contents(folder)) == [NAME]


def test_an_artefact_is_not_moved_over_a_later_trys(
    make_job: MakeJob, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from yolo_airflow_provider.contract import ExportJob, JobSpec
    from yolo_airflow_provider.worker import export as module, models

    weights = tmp_path / "net.pt"
    weights.write_bytes(b"weights")
    spec = JobSpec.from_json(json.dumps(make_job("export", weights=str(weights), data=str(shapes), imgsz=64)))
    assert isinstance(spec.job, ExportJob)
    folder = Path(spec.run_folder)
    later = folder / "export" / "model.onnx"

    def overtaken(copy: Path, _: ExportJob) -> Path:
        made = copy.with_suffix(".onnx")
        made.write_bytes(b"the zombie's")
        fence_off(folder, 2)
        later.write_bytes(b"the later try's")
        return made

    monkeypatch.setattr(module, "_export", overtaken)
    monkeypatch.setattr(module, "largest_difference", lambda *_, **__: 0.0)
    monkeypatch.setattr(models, "resolve", lambda *_, **__: models.ModelSource("net", str(weights), weights=True))
    folder.mkdir(parents=True)
    with pytest.raises(JobError, match="has taken over"):
        module.export(spec, spec.job, Fence(folder, 1))
    assert later.read_bytes() == b"the later try's"
    assert not list(later.parent.glob("*.sha256"))


def test_a_later_trys_export_is_not_cleared_away(
    make_job: MakeJob, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later try starts while this one loads its weights."""
    from yolo_airflow_provider.contract import ExportJob, JobSpec
    from yolo_airflow_provider.worker import export as module, models

    spec = JobSpec.from_json(json.dumps(make_job("export", weights="net.pt", data=str(shapes), imgsz=64)))
    assert isinstance(spec.job, ExportJob)
    folder = Path(spec.run_folder)
    work = folder / "export" / ".try-2" / "model.pt"

    def overtaken(*_: Any, **__: Any) -> models.ModelSource:
        fence_off(folder, 2)
        work.parent.mkdir(parents=True)
        work.write_bytes(b"the later try's")
        return models.ModelSource("net", str(tmp_path / "net.pt"), weights=True)

    monkeypatch.setattr(models, "resolve", overtaken)
    with pytest.raises(JobError, match="has taken over"):
        module.export(spec, spec.job, Fence(folder, 1))
    assert work.read_bytes() == b"the later try's"


def test_the_files_of_a_try_are_told_from_those_of_the_same_number_in_an_older_run(tmp_path: Path) -> None:
    assert Fence(tmp_path, 1).label == "1"
    old, new = Fence(tmp_path, 1, "a").label, Fence(tmp_path, 1, "b").label
    assert old != new
    assert len(old) == len("1-01234567")
    assert old == Fence(tmp_path, 1, "a").label


# Runs at the start of the zombie: it stops, as a node that hangs, right before it looks whether it may write its second
# epoch.
_HANG = """
import os, signal, sys
from pathlib import Path
waiting = [True]
def hang(event, args):
    if waiting and event == "open" and str(args[0]).endswith("fence.json") and os.path.exists({epochs!r}):
        waiting.clear()
        os.kill(os.getpid(), signal.SIGSTOP)
sys.addaudithook(hang)
"""


@pytest.mark.slow
def test_a_zombie_that_comes_back_changes_nothing_of_what_the_later_try_wrote(
    make_job: MakeJob, start_worker: Callable[..., Any], shapes: Path, tmp_path: Path
) -> None:
    fields = {"model": "yolov8n", "data": str(shapes), "imgsz": 64, "epochs": 2, "batch": 4}
    spec = make_job("train", **fields)
    folder, site = Path(spec["run_folder"]), tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_HANG.format(epochs=str(folder / "epochs.jsonl")))
    zombie = start_worker(spec, PYTHONPATH=str(site))
    _, status = os.waitpid(zombie.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), zombie.end() or zombie.log

    later = start_worker(make_job("train", try_number=2, **fields))
    assert later.end() == 0, later.log
    assert later.answer["train"]["resumed_epochs"] == 1
    before = contents(folder)
    assert {"train/weights/last.pt", "train/results.csv", "epochs.jsonl", "result-2.json"} <= set(before)

    os.kill(zombie.process.pid, signal.SIGCONT)
    assert zombie.end() == 75, zombie.log
    assert contents(folder) == before
    assert "preempted: try 2 on node" in zombie.log
    assert zombie.answer["failure"]["failure_class"] == "preempted"
    assert "result-1.json" not in before
