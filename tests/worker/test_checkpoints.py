"""Every moment in which a kill may come while a checkpoint is written."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.worker.checkpoints import PREVIOUS, AtomicCheckpoints, remove_leftovers, temporary_of
from yolo_airflow_provider.worker.failures import JobError, classify
from yolo_airflow_provider.worker.fence import Fence


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


class PlainTrainer:
    """Writes as Ultralytics' trainer does: last.pt in place, best.pt when the epoch is the best."""

    def __init__(self, folder: Path) -> None:
        self.last, self.best = folder / "last.pt", folder / "best.pt"
        self.is_best = True
        self.content = ""
        self.dies_in: str | None = None
        self.death: BaseException = Killed()

    def save_model(self) -> bool:
        for name, path in (("last", self.last), ("best", self.best)):
            if name == "best" and not self.is_best:
                continue
            if self.dies_in == name:
                path.write_text(self.content[:2])
                raise self.death
            path.write_text(self.content)
        return True

    def save_metrics(self, metrics: dict[str, Any]) -> None:
        with self.last.with_name("results.csv").open("a") as file:
            file.write(f"{metrics['epoch']}\n")

    def final_eval(self) -> None:
        self.last.write_text("stripped")


class Trainer(AtomicCheckpoints, PlainTrainer):  # type: ignore[misc]
    """The mixin as it is used."""


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A training's weights, in a run's folder."""
    folder = tmp_path / "train" / "weights"
    folder.mkdir(parents=True)
    return folder


def trainer_of(weights: Path, *, try_number: int = 1) -> Trainer:
    trainer = Trainer(weights)
    trainer.fence = Fence(weights.parents[1], try_number)
    return trainer


def save(
    folder: Path,
    content: str,
    *,
    is_best: bool = True,
    dies_in: str | None = None,
    death: BaseException | None = None,
    try_number: int = 1,
) -> None:
    trainer = trainer_of(folder, try_number=try_number)
    trainer.content, trainer.is_best, trainer.dies_in = content, is_best, dies_in
    trainer.death = death or Killed()
    trainer.save_model()


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith(".")}


def test_e6_two_generations_are_kept(weights: Path) -> None:
    save(weights, "epoch 1")
    save(weights, "epoch 2", is_best=False)
    save(weights, "epoch 3", is_best=False)
    assert contents(weights) == {"last.pt": "epoch 3", PREVIOUS: "epoch 2", "best.pt": "epoch 1"}
    assert not list(weights.glob(".*"))


@pytest.mark.parametrize("dies_in", ["last", "best"])
def test_e7_a_kill_while_writing_leaves_what_was_there(dies_in: str, weights: Path) -> None:
    save(weights, "epoch 1")
    save(weights, "epoch 2")
    before = contents(weights)
    with pytest.raises(Killed):
        save(weights, "epoch 3", dies_in=dies_in)
    assert contents(weights) == before


def test_e7_what_a_kill_left_half_written_never_becomes_the_best(weights: Path) -> None:
    save(weights, "epoch 1")
    with pytest.raises(Killed):
        save(weights, "epoch 2", dies_in="best")
    save(weights, "epoch 2 again", is_best=False)
    assert contents(weights)["best.pt"] == "epoch 1"


def test_e7_a_kill_between_the_renames_leaves_one_generation(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(weights, "epoch 1")
    save(weights, "epoch 2")
    real = Path.replace

    def dies_at_last(self: Path, target: Path) -> Path:
        if Path(target).name == "last.pt":
            raise Killed
        return real(self, target)

    monkeypatch.setattr(Path, "replace", dies_at_last)
    with pytest.raises(Killed):
        save(weights, "epoch 3")
    assert contents(weights)[PREVIOUS] == "epoch 2"


@pytest.mark.parametrize("dies_in", ["last", "best"])
def test_e6_a_full_disk_keeps_what_was_there_and_leaves_nothing_in_the_way(dies_in: str, weights: Path) -> None:
    save(weights, "epoch 1")
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError) as caught:
        save(weights, "epoch 2", dies_in=dies_in, death=full)
    assert classify(caught.value) is FailureClass.DISK_FULL
    assert contents(weights) == {"last.pt": "epoch 1", "best.pt": "epoch 1"}
    assert not list(weights.glob(".*"))


def test_what_killed_tries_left_is_removed(weights: Path) -> None:
    with pytest.raises(Killed):
        save(weights, "epoch 1", dies_in="last")
    assert list(weights.glob(".*.tmp"))
    remove_leftovers(weights)
    assert not list(weights.glob(".*"))


def test_nothing_takes_its_place_once_a_later_try_has_the_folder(weights: Path) -> None:
    save(weights, "epoch 1")
    save(weights, "epoch 2 of try 2", try_number=2)
    Fence(weights.parents[1], 2).take()
    before = contents(weights)
    zombie = trainer_of(weights)
    zombie.content = "epoch 2 of try 1"
    for write in (zombie.save_model, zombie.final_eval, lambda: zombie.save_metrics({"epoch": 2})):
        with pytest.raises(JobError, match=r"try 2 on node .* has taken over"):
            write()
    assert contents(weights) == before
    assert not list(weights.glob(".*"))


def test_tries_do_not_share_a_temporary_file(weights: Path) -> None:
    """A zombie that is in the middle of a save when the later try saves."""
    last = weights / "last.pt"
    run = weights.parents[1]
    fences = (Fence(run, 1), Fence(run, 2), Fence(run, 1, "attempt of a run"), Fence(run, 1, "of one made again"))
    assert len({temporary_of(last, fence) for fence in fences}) == len(fences)
