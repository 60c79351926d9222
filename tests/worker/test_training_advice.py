"""What a training tells about itself while it runs and at its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yolo_airflow_provider.contract import JobSpec, TrainJob
from yolo_airflow_provider.worker.data import mean_size_bytes
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.measure import host
from yolo_airflow_provider.worker.measure.device import Cpu
from yolo_airflow_provider.worker.train import Training

MIB = 2**20
MakeJob = Callable[..., dict[str, Any]]


@pytest.fixture
def training(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> Training:
    """In a container of 1 GiB, of which a local run was given a budget of 800 MiB."""
    monkeypatch.setattr(host, "memory_limit_bytes", lambda: 2**30)
    fields = {"model": "yolov8n", "data": "d.yaml", "imgsz": 64, "epochs": 30, "batch": 4}
    spec = JobSpec.from_json(json.dumps(make_job("train", budget_bytes=800 * MIB, **fields)))
    assert isinstance(spec.job, TrainJob)
    return Training(spec, spec.job, Cpu(), Fence(Path(spec.run_folder), 1))


def after(epochs: int, *, growth_bytes: int) -> Any:
    return SimpleNamespace(epochs=[None] * epochs, rss_growth_bytes=growth_bytes, held_bytes=600 * MIB)


def test_c9_memory_that_will_not_last_is_told_once_while_there_is_time(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    for epochs in (4, 5, 6):
        training._instrument = after(epochs, growth_bytes=10 * MIB)
        training._warn_of_growth(30 - epochs)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: memory grows by 10 MiB an epoch from 0.59 GiB: 25 more epochs would take 0.83 GiB")
    assert "the limit of 0.78 GiB holds 20" in line


def test_c9_memory_that_lasts_is_not_spoken_of(training: Training, capsys: pytest.CaptureFixture[str]) -> None:
    training._instrument = after(20, growth_bytes=10 * MIB)
    training._warn_of_growth(10)
    assert capsys.readouterr().out == ""


def test_before_the_first_whole_epoch_there_is_no_advice(training: Training) -> None:
    assert training.advice() == ()


def test_c15_the_mean_size_of_images_comes_from_an_even_sample(tmp_path: Path) -> None:
    files = [tmp_path / f"{number:04d}.jpg" for number in range(1000)]
    for number, file in enumerate(files):
        file.write_bytes(b"x" * (100 if number < 500 else 300))
    assert mean_size_bytes(files) == pytest.approx(200, rel=0.1)
    assert mean_size_bytes([tmp_path / "gone.jpg", *map(str, files[:1])]) == 100
    assert mean_size_bytes([]) is None
    assert mean_size_bytes([tmp_path / "gone.jpg"]) is None
