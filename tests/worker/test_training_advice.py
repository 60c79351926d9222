"""What a training tells about itself while it runs and at its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yolo_airflow_provider.contract import EpochRecord, JobSpec, ModelFacts, TrainJob
from yolo_airflow_provider.worker import models, train as module
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


def after(epochs: int, *, growth_bytes: int | None) -> Any:
    return SimpleNamespace(epochs=[None] * epochs, rss_growth_bytes=growth_bytes, held_bytes=600 * MIB)


def test_c9_memory_that_will_not_last_is_told_once_while_there_is_time(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    for epochs, growth_bytes in ((4, None), (5, 10 * MIB), (6, 10 * MIB)):
        training._instrument = after(epochs, growth_bytes=growth_bytes)
        training._warn_of_growth(30 - epochs)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: memory grows by 10 MiB an epoch from 0.59 GiB: 25 more epochs would take 0.83 GiB")
    assert "the limit of 0.78 GiB holds 20" in line


def test_c9_memory_that_lasts_is_not_spoken_of(training: Training, capsys: pytest.CaptureFixture[str]) -> None:
    training._instrument = after(20, growth_bytes=10 * MIB)
    training._warn_of_growth(10)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("first", "last", "ahead"), [(1, 30, 0), (21, 30, 20), (1, 12, 18), (11, 20, 10)], ids=["whole", "end", "1", "2"]
)
def test_growth_is_reckoned_for_the_epochs_that_are_left_or_that_earlier_tries_trained(
    first: int, last: int, ahead: int, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[Any] = []
    monkeypatch.setattr(module, "advise", lambda _, circumstances: known.append(circumstances) or ())
    monkeypatch.setattr(training, "measured", lambda: (None,))
    epochs = [SimpleNamespace(epoch=number) for number in range(first, last + 1)]
    training._instrument = SimpleNamespace(epochs=epochs, seconds=1.0)  # type: ignore[assignment]
    training._resumed_epochs = first - 1
    assert training.advice() == ()
    assert known[0].epochs_ahead == ahead


def test_the_cache_holds_the_validation_images_too(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ModelFacts(name="n", task="detect", parameters=1, stride=32, classes=1)
    monkeypatch.setattr(models, "facts", lambda *_, **__: facts)
    trainer = SimpleNamespace(
        model=None,
        optimizer=None,
        train_loader=SimpleNamespace(dataset=range(80)),
        test_loader=SimpleNamespace(dataset=range(20)),
    )
    training._built(trainer, "n")
    assert training._cached_images == 100


def test_an_epoch_after_a_kill_is_a_line_of_its_own(training: Training) -> None:
    path = training._run_folder / "epochs.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"epoch": 1, "try_num')
    for number in (1, 2):
        training._epoch_done(EpochRecord(epoch=number, try_number=2, seconds=1.0), None)
    torn, *whole = path.read_text().splitlines()
    assert torn == '{"epoch": 1, "try_num'
    assert [json.loads(line)["epoch"] for line in whole] == [1, 2]


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
