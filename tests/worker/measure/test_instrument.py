"""The instrument on a trainer that trains nothing: which figures reach the measurement."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests_support import CallbackTrainer

from yolo_airflow_provider.worker.measure import cgroup, host
from yolo_airflow_provider.worker.measure.device import Cpu
from yolo_airflow_provider.worker.measure.run import Instrument

MIB = 2**20


class Trainer(CallbackTrainer):
    """With what the instrument reads of a trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 4
        self.epoch = 0
        self.tloss: dict[str, float] = {"box": 1.0}
        self.metrics: dict[str, float] = {}
        self.train_loader = SimpleNamespace(dataset=range(8))

    def train_epoch(self, number: int) -> None:
        self.epoch = number
        self.run("on_train_epoch_start", "on_train_batch_start", "on_train_batch_end")
        self.run("on_train_batch_start", "on_train_batch_end", "on_train_epoch_end")
        self.run("on_val_start", "on_val_batch_end", "on_val_end", "on_fit_epoch_end")


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container of 1 GiB that holds 300 MiB."""
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path)
    (tmp_path / "memory.max").write_text(str(2**30))
    (tmp_path / "memory.stat").write_text(f"anon {200 * MIB}\nfile {700 * MIB}\nshmem {100 * MIB}\n")
    (tmp_path / "cpu.stat").write_text("nr_periods 100\nnr_throttled 10\n")
    return tmp_path


def measure(instrument: Instrument) -> dict[str, Any]:
    measurement = instrument.measurement(part="train", batch=4, precision="fp32", optimizer="SGD", workers=0)
    return measurement.model_dump(exclude_none=True)


def test_c8_the_containers_memory_its_throttling_and_the_growth_are_measured(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = iter([500 * MIB, *((600 + 10 * epoch) * MIB for epoch in range(7))])
    monkeypatch.setattr(host, "rss_bytes", lambda: next(resident))
    trainer, instrument = Trainer(), Instrument(Cpu(), try_number=1)
    instrument.attach(trainer)
    for number in range(7):
        trainer.train_epoch(number)
    (group / "memory.stat").write_text(f"anon {250 * MIB}\nfile 0\nshmem {150 * MIB}\n")
    trainer.train_epoch(7)
    (group / "memory.stat").write_text("anon 0\nfile 0\nshmem 0\n")
    (group / "cpu.stat").write_text("nr_periods 300\nnr_throttled 60\n")
    measured = measure(instrument)
    assert measured["peak_container_bytes"] == instrument.held_bytes == 400 * MIB
    assert measured["rss_growth_bytes"] == 10 * MIB
    assert measured["throttled_percent"] == 25.0


def test_outside_a_container_and_before_three_epochs_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path / "none")
    trainer, instrument = Trainer(), Instrument(Cpu(), try_number=1)
    instrument.attach(trainer)
    trainer.train_epoch(0)
    assert measure(instrument).keys().isdisjoint({"peak_container_bytes", "rss_growth_bytes", "throttled_percent"})
    assert instrument.held_bytes is not None  # the process's own
