"""Checkpoints that survive a kill: written whole or not at all, two generations, load-tested before use.

Ultralytics 8.4.190 writes last.pt in place (engine/trainer.py, `save_model`), so a kill in that moment leaves a
torn file and nothing else. `AtomicCheckpoints` lets the trainer write beside the old file and renames.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yolo_airflow_provider.worker.files import sync_file, sync_folder
from yolo_airflow_provider.worker.log import say

if TYPE_CHECKING:
    from ultralytics.engine.trainer import BaseTrainer as _Trainer
else:
    _Trainer = object

PREVIOUS = "previous.pt"


class AtomicCheckpoints(_Trainer):
    """Mixin for a trainer class: `weights/last.pt` is always whole, `weights/previous.pt` is the one before it."""

    last: Path
    best: Path

    def save_model(self) -> bool:
        """Save through the trainer, then make the new files take the old ones' place.

        The trainer writes to `self.last` and `self.best`, which are public attributes; for the time of the call they
        point to temporary files.
        """
        last, best = self.last, self.best
        new_last, new_best = (path.with_name(f".{path.name}.tmp") for path in (last, best))
        for leftover in (new_last, new_best):
            # A kill may have left a torn one; this epoch may not be the best, and would then put it in place.
            leftover.unlink(missing_ok=True)
        try:
            self.last, self.best = new_last, new_best
            saved = super().save_model()
        finally:
            self.last, self.best = last, best
        if not saved:
            return False
        for new in (new_last, new_best):
            if new.exists():
                sync_file(new)
        if new_best.exists():
            new_best.replace(best)
        if last.exists():
            last.replace(last.with_name(PREVIOUS))
        new_last.replace(last)
        sync_folder(last.parent)
        return True


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that loads. `epochs_done` counts whole epochs; `finished` means the optimizer was stripped."""

    path: Path
    epochs_done: int
    finished: bool


def newest(weights_folder: Path, *, trusted: bool) -> Checkpoint | None:
    """The newest checkpoint that loads, None where there is none. Torn files are named in the log and passed over.

    Args:
        weights_folder: of the training.
        trusted: the job's model may hold classes beyond the known ones, and so may its checkpoints.
    """
    found = [_load(weights_folder / name, trusted=trusted) for name in ("last.pt", PREVIOUS)]
    return max((c for c in found if c is not None), key=lambda c: (c.finished, c.epochs_done), default=None)


def mend_best(weights_folder: Path, checkpoint: Checkpoint, *, trusted: bool) -> None:
    """Replace a best.pt that does not load by the checkpoint that training goes on from.

    The trainer strips best.pt in place when it ends; a kill in that moment tears it, and no later try could end.
    """
    best = weights_folder / "best.pt"
    if best.exists() and _load(best, trusted=trusted) is None:
        temporary = best.with_name(f".{best.name}.mend")
        shutil.copyfile(checkpoint.path, temporary)
        temporary.replace(best)


def strip(path: Path) -> None:
    """Take the optimizer out of a checkpoint, as the trainer does at its end, in one step; nothing if there is none."""
    from ultralytics.utils.torch_utils import strip_optimizer

    if path.exists():
        temporary = path.with_name(f".{path.name}.strip")
        strip_optimizer(path, s=str(temporary))
        sync_file(temporary)
        temporary.replace(path)


def _load(path: Path, *, trusted: bool) -> Checkpoint | None:
    if not path.exists():
        return None
    try:
        from ultralytics.nn.tasks import torch_safe_load

        # Our own trainer wrote it, but the volume is shared: nothing but known classes is reconstructed.
        checkpoint: dict[str, Any] = torch_safe_load(str(path), safe_only=not trusted)[0]
        epoch = int(checkpoint["epoch"])
        finished = epoch < 0
        results = checkpoint.get("train_results") or {}
        # Numbers and not rows: a retrained epoch is in results.csv twice.
        done = int(max(results.get("epoch") or [0])) if finished else epoch + 1
    except Exception as error:
        size = path.stat().st_size if path.exists() else 0
        why = f"{type(error).__name__}: {str(error)[:120]}"
        say(f"checkpoint {path} ({size:,} bytes) does not load and is passed over: {why}")
        return None
    return Checkpoint(path=path, epochs_done=done, finished=finished)
