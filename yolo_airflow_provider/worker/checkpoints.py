"""Checkpoints that survive a kill: written whole or not at all, two generations, load-tested before use.

Ultralytics 8.4.190 writes last.pt in place (engine/trainer.py, `save_model`), so a kill in that moment leaves a
torn file and nothing else. `AtomicCheckpoints` lets the trainer write beside the old file and renames.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.files import sync_file, sync_folder
from yolo_airflow_provider.worker.log import say

if TYPE_CHECKING:
    from ultralytics.engine.trainer import BaseTrainer as _Trainer
else:
    _Trainer = object

PREVIOUS = "previous.pt"


class AtomicCheckpoints(_Trainer):
    """Mixin for a trainer class: `weights/last.pt` is always whole, `weights/previous.pt` is the one before it.

    Attributes:
        fence: asked before anything takes its place; a training whose folder a later try has taken ends there.
    """

    last: Path
    best: Path
    fence: Fence

    def save_metrics(self, metrics: dict[str, Any]) -> None:
        """Append to results.csv, which comes right before the checkpoint of the epoch."""
        self.fence.check()
        super().save_metrics(metrics)

    def save_model(self) -> bool:
        """Save through the trainer, then make the new files take the old ones' place.

        The trainer writes to `self.last` and `self.best`, which are public attributes; for the time of the call they
        point to temporary files.
        """
        last, best = self.last, self.best
        new_last, new_best = (temporary_of(path, self.fence) for path in (last, best))
        try:
            # A kill may have left a torn one; this epoch may not be the best, and would then put it in place.
            _remove(new_last, new_best)
            try:
                self.last, self.best = new_last, new_best
                saved = super().save_model()
            finally:
                self.last, self.best = last, best
            if saved:
                self._put_in_place(new_last, new_best)
        except Exception:
            _remove(new_last, new_best)  # half a checkpoint on a full disk is in the way of the next try
            raise
        return bool(saved)

    def final_eval(self) -> None:
        """Validate the best weights; the trainer strips both checkpoints in place before it."""
        self.fence.check()
        super().final_eval()

    def _put_in_place(self, new_last: Path, new_best: Path) -> None:
        for new in (new_last, new_best):
            if new.exists():
                sync_file(new)
        self.fence.check()
        if new_best.exists():
            new_best.replace(self.best)
        if self.last.exists():
            self.last.replace(self.last.with_name(PREVIOUS))
        new_last.replace(self.last)
        sync_folder(self.last.parent)


def temporary_of(path: Path, fence: Fence) -> Path:
    """Where a try writes what will be `path`; a zombie of another try writes beside it, not into it."""
    return path.with_name(f".{path.name}.{fence.label}.tmp")


def remove_leftovers(weights_folder: Path) -> None:
    """Remove what killed tries left half-written. A zombie that still writes one ends at its rename, which is right."""
    _remove(*weights_folder.glob(".*.tmp"))


def _remove(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that loads. `epochs_done` counts whole epochs; `finished` means the optimizer was stripped."""

    path: Path
    """Absolute: a relative one is looked for in whatever folder the trainer runs in."""
    epochs_done: int
    finished: bool
    batch: int | None = None
    """Images a step of the try that wrote it."""


def newest(weights_folder: Path, *, trusted: bool) -> Checkpoint | None:
    """The newest checkpoint that loads, None where there is none. Torn files are named in the log and passed over.

    Args:
        weights_folder: of the training.
        trusted: the job's model may hold classes beyond the known ones, and so may its checkpoints.
    """
    found = [_load(weights_folder.absolute() / name, trusted=trusted) for name in ("last.pt", PREVIOUS)]
    return max((c for c in found if c is not None), key=lambda c: (c.finished, c.epochs_done), default=None)


def mend_best(weights_folder: Path, checkpoint: Checkpoint, *, trusted: bool, fence: Fence) -> None:
    """Replace a best.pt that does not load by the checkpoint that training goes on from.

    The trainer strips best.pt in place when it ends; a kill in that moment tears it, and no later try could end.

    Raises:
        JobError: a later try has the folder; nothing is replaced.
    """
    best = weights_folder / "best.pt"
    if best.exists() and _load(best, trusted=trusted) is None:
        temporary = temporary_of(best, fence)
        shutil.copyfile(checkpoint.path, temporary)
        fence.check()
        temporary.replace(best)


def strip(path: Path, fence: Fence) -> None:
    """Take the optimizer out of a checkpoint, as the trainer does at its end, in one step; nothing if there is none.

    Raises:
        JobError: a later try has the folder; nothing is replaced.
    """
    from ultralytics.utils.torch_utils import strip_optimizer

    if path.exists():
        temporary = temporary_of(path, fence)
        strip_optimizer(path, s=str(temporary))
        sync_file(temporary)
        fence.check()
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
    batch = (checkpoint.get("train_args") or {}).get("batch")
    return Checkpoint(path=path, epochs_done=done, finished=finished, batch=batch if isinstance(batch, int) else None)
