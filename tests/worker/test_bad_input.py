"""Bad input ends with one clear error that names the file, field or value, before anything is trained."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from yolo_airflow_provider.worker import job

MakeJob = Callable[..., dict[str, Any]]


def fail(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a job in this process that must fail; returns its failure."""
    from yolo_airflow_provider.worker import offline

    # One process runs many jobs here; a worker's process runs one, and prepares before Ultralytics is imported.
    monkeypatch.setattr(offline, "prepare", lambda *_, **__: None)
    assert job.main({"YOLO_JOB": json.dumps(spec)}) not in (0, 75)
    answer: dict[str, Any] = json.loads(Path(spec["result_path"]).read_text())
    assert not list(Path(spec["run_folder"]).rglob("*.pt"))
    failure: dict[str, Any] = answer["failure"]
    return failure


@pytest.fixture
def train(make_job: MakeJob, shapes: Path) -> Callable[..., dict[str, Any]]:
    def build(**changes: Any) -> dict[str, Any]:
        job = {"model": "yolov8n", "data": str(shapes), "imgsz": 64, "epochs": 1, "batch": 4}
        return make_job("train", **(job | changes))

    return build


Train = Callable[..., dict[str, Any]]


def test_an_unknown_model_suggests_near_ones(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = fail(train(model="yolo8n"), monkeypatch)
    assert "no model is called 'yolo8n'" in failure["message"]
    assert "yolov8n" in failure["hint"]
    assert failure["failure_class"] == "data"


def test_weights_that_are_not_there_are_not_downloaded(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = fail(train(model="yolov8n.pt"), monkeypatch)
    assert "weights file yolov8n.pt does not exist; nothing is downloaded" in failure["message"]
    assert "model='yolov8n'" in failure["hint"]


def test_a_file_that_is_no_archive_is_no_checkpoint(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cat.pt"
    path.write_bytes(b"\x89PNG not weights")
    failure = fail(train(model=str(path)), monkeypatch)
    assert f"{path} is not a YOLO checkpoint: it is no torch archive" in failure["message"]


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_pickle_from_outside_runs_no_code(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker, path = tmp_path / "was-run", tmp_path / "evil.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model": _Evil(marker)}, protocol=2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    torch.load(path, weights_only=False)
    assert marker.exists()  # it would run, were it loaded as a pickle
    marker.unlink()
    failure = fail(train(model=str(path)), monkeypatch)
    assert not marker.exists()
    assert f"{path} is not a YOLO checkpoint that can be loaded safely" in failure["message"]
    assert "trusted_weights=True" in failure["hint"]


@pytest.mark.parametrize(
    ("text", "said"), [("nc: 3\n", "no backbone and no head"), ("a: [1\n", "is not a YAML file"), ("", "no backbone")]
)
def test_a_yaml_that_is_no_architecture(
    text: str, said: str, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert said in fail(train(model=str(path)), monkeypatch)["message"]


def test_imgsz_that_is_no_multiple_of_the_stride(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = fail(train(imgsz=100), monkeypatch)
    assert failure["message"] == "imgsz=100 is not a multiple of the model's stride 32"
    assert failure["hint"] == "use 96 or 128"


def test_a_batch_larger_than_the_data_set(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = fail(train(batch=17), monkeypatch)
    assert failure["message"] == "batch 17 is larger than the data set's 16 training images"


def test_a_workspace_that_cannot_be_written(train: Train, tmp_path: Path) -> None:
    # Root writes anywhere, but not below a file.
    (tmp_path / "workspace").write_text("a file where the folder should be")
    spec = train()
    assert job.main({"YOLO_JOB": json.dumps(spec)}) == 1
    failure = json.loads(Path(spec["result_path"]).read_text())["failure"]
    assert f"the workspace folder {spec['run_folder']} cannot be written by user" in failure["message"]
    assert failure["failure_class"] == "data"


def test_a_full_workspace(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    spec = train()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", full)
        assert job.main({"YOLO_JOB": json.dumps(spec)}) == 1
    failure = json.loads(Path(spec["result_path"]).read_text())["failure"]
    assert failure["failure_class"] == "disk_full"
    assert "free space on the workspace volume" in failure["hint"]


def test_a_spec_of_an_unknown_version_is_answered(train: Train) -> None:
    spec = train() | {"version": 7}
    assert job.main({"YOLO_JOB": json.dumps(spec)}) == 2
    failure = json.loads(Path(spec["result_path"]).read_text())["failure"]
    assert "job specification is of version 7, this package reads version 1" in failure["message"]


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("train: images/train\nval: images/val\n", "names"),
        ("val: images/val\nnames: [a]\n", "train"),
        ("train: ../../elsewhere\nval: images/val\nnames: [a]\n", "elsewhere"),
        ("train: images/none\nval: images/none\nnames: [a]\n", "images/none"),
    ],
)
def test_a_wrong_data_yaml_names_its_key(yaml: str, said: str, make_job: MakeJob, tmp_path: Path) -> None:
    data = tmp_path / "set" / "data.yaml"
    data.parent.mkdir()
    data.write_text(yaml)
    spec = make_job("preprocess", data=str(data), imgsz=64)
    assert job.main({"YOLO_JOB": json.dumps(spec)}) == 1
    failure = json.loads(Path(spec["result_path"]).read_text())["failure"]
    assert failure["failure_class"] == "data"
    assert said in failure["message"]
    assert failure["hint"]
    assert not (Path(spec["workspace"]) / "datasets").exists() or not list(
        (Path(spec["workspace"]) / "datasets").glob("[!.]*")
    )


def test_an_unknown_export_format(make_job: MakeJob, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_job("export", weights="net.pt", format="floppy", imgsz=64, data=str(shapes))
    assert "export format 'floppy' is not one of" in fail(spec, monkeypatch)["message"]


def test_an_unknown_task(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "task 'juggle' is not one of" in fail(train(task="juggle"), monkeypatch)["message"]


@pytest.mark.parametrize("device", ["0,1", "cuda:1", -1, "mps"])
def test_b3_several_devices_are_refused(device: str | int, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = fail(train(overrides={"device": device}), monkeypatch)
    assert failure["failure_class"] == "data"
    assert failure["message"] == (
        f"train_arguments ask for device={device!r}, and the run has device cpu: one pod is one slice or GPU, and a"
        " training does not spread over several"
    )
    assert "ask for a larger slice" in failure["hint"]


@pytest.mark.parametrize(("device", "own"), [(None, "0"), ("cpu", "cpu"), (0, "0"), ("0", "0"), ("cuda:0", "0")])
def test_b3_the_runs_own_device_may_be_named(device: str | int | None, own: str) -> None:
    from yolo_airflow_provider.contract import TrainJob
    from yolo_airflow_provider.worker.trainer import check_device

    overrides: dict[str, str | int | float | bool | None] = {"device": device}
    check_device(TrainJob(model="m", data="d", imgsz=64, epochs=1, batch=1, overrides=overrides), own)
