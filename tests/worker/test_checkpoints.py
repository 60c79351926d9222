"""Every moment in which a kill may come while a checkpoint is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from yolo_airflow_provider.worker.checkpoints import PREVIOUS, AtomicCheckpoints


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


class PlainTrainer:
    """Writes as Ultralytics' trainer does: last.pt in place, best.pt when the epoch is the best."""

    def __init__(self, folder: Path) -> None:
        self.last, self.best = folder / "last.pt", folder / "best.pt"
        self.is_best = True
        self.content = ""
        self.dies_in: str | None = None

    def save_model(self) -> bool:
        for name, path in (("last", self.last), ("best", self.best)):
            if name == "best" and not self.is_best:
                continue
            if self.dies_in == name:
                path.write_text(self.content[:2])
                raise Killed
            path.write_text(self.content)
        return True


class Trainer(AtomicCheckpoints, PlainTrainer):  # type: ignore[misc]
    """The mixin as it is used."""


def save(folder: Path, content: str, *, is_best: bool = True, dies_in: str | None = None) -> None:
    trainer = Trainer(folder)
    trainer.content, trainer.is_best, trainer.dies_in = content, is_best, dies_in
    trainer.save_model()


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith(".")}


def test_two_generations_are_kept(tmp_path: Path) -> None:
    save(tmp_path, "epoch 1")
    save(tmp_path, "epoch 2", is_best=False)
    save(tmp_path, "epoch 3", is_best=False)
    assert contents(tmp_path) == {"last.pt": "epoch 3", PREVIOUS: "epoch 2", "best.pt": "epoch 1"}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("dies_in", ["last", "best"])
def test_a_kill_while_writing_leaves_what_was_there(dies_in: str, tmp_path: Path) -> None:
    save(tmp_path, "epoch 1")
    save(tmp_path, "epoch 2")
    before = contents(tmp_path)
    with pytest.raises(Killed):
        save(tmp_path, "epoch 3", dies_in=dies_in)
    assert contents(tmp_path) == before


def test_what_a_kill_left_half_written_never_becomes_the_best(tmp_path: Path) -> None:
    save(tmp_path, "epoch 1")
    with pytest.raises(Killed):
        save(tmp_path, "epoch 2", dies_in="best")
    save(tmp_path, "epoch 2 again", is_best=False)
    assert contents(tmp_path)["best.pt"] == "epoch 1"


def test_a_kill_between_the_renames_leaves_one_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, "epoch 1")
    save(tmp_path, "epoch 2")
    real = Path.replace

    def dies_at_last(self: Path, target: Path) -> Path:
        if Path(target).name == "last.pt":
            raise Killed
        return real(self, target)

    monkeypatch.setattr(Path, "replace", dies_at_last)
    with pytest.raises(Killed):
        save(tmp_path, "epoch 3")
    assert contents(tmp_path)[PREVIOUS] == "epoch 2"
