"""Ultralytics' own trainer, set up for a job: arguments, atomic checkpoints, and an ear for SIGTERM."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from yolo_airflow_provider.contract import FailureClass, ProbeJob, TrainJob
from yolo_airflow_provider.worker.checkpoints import AtomicCheckpoints
from yolo_airflow_provider.worker.failures import JobError, Stopped
from yolo_airflow_provider.worker.models import ModelSource


@cache
def trainer_class(task: str) -> type[Any]:
    """The trainer of a task, with atomic checkpoints.

    Raises:
        JobError: Ultralytics trains no such task.
    """
    from ultralytics import YOLO

    tasks = YOLO("yolov8n.yaml").task_map
    if task not in tasks:
        raise JobError(FailureClass.DATA, f"task {task!r} is not one of {', '.join(sorted(tasks))}", stage="setup")
    base = tasks[task]["trainer"]
    # Ultralytics decides by the class's name whether callbacks for trainers apply.
    return type(f"Atomic{base.__name__}", (AtomicCheckpoints, base), {})


def check_arguments(task: str, arguments: dict[str, Any]) -> None:
    """Check the task and all arguments without building anything.

    Raises:
        JobError: an argument that Ultralytics does not know or take, by its name.
    """
    from ultralytics.cfg import get_cfg

    trainer_class(task)
    try:
        get_cfg(overrides=arguments)
    except (SyntaxError, TypeError, ValueError) as error:
        raise JobError(
            FailureClass.DATA,
            f"a training argument is wrong: {' '.join(str(error).split())[:300]}",
            hint="see train_arguments and optimizer",
            stage="setup",
        ) from error


def check_device(job: TrainJob, device: str) -> None:
    """Refuse a device of the user's own: a pod is one slice or GPU, and what was planned for it is what runs.

    Ultralytics would start one process a device for "0,1". NCCL cannot tell the slices of a card apart ("Duplicate
    GPU detected", pytorch#130181), and a pod with one slice has no second device anyhow.

    Raises:
        JobError: `overrides` names another device than the one of the job.
    """
    asked = job.overrides.get("device")
    if asked is None or str(asked).removeprefix("cuda:") == device:
        return
    raise JobError(
        FailureClass.DATA,
        f"train_arguments ask for device={asked!r}, and the run has device {device}: one pod is one slice or GPU, and"
        " a training does not spread over several",
        hint="leave device out of train_arguments; for more memory or speed ask for a larger slice (accelerator=)",
        stage="setup",
    )


def training_arguments(
    job: TrainJob | ProbeJob,
    source: ModelSource,
    *,
    data: str,
    device: str,
    folder: Path,
    batch: int,
    epochs: int,
) -> dict[str, Any]:
    """Ultralytics' arguments of a training. Later ones win, but never over what was planned."""
    extra = dict(job.overrides) if isinstance(job, TrainJob) else {}
    return {
        "plots": False,
        **extra,
        "model": source.path,
        "task": job.task,
        "data": data,
        "imgsz": job.imgsz,
        "cache": job.cache if isinstance(job, TrainJob) else False,
        "epochs": epochs,
        "batch": batch,
        "amp": conditions(job, device)["precision"] == "amp",
        "optimizer": job.optimizer,
        "seed": job.seed,
        "workers": job.workers,
        "device": device,
        "save_dir": str(folder),
        "exist_ok": True,
        "verbose": False,
    }


def conditions(job: TrainJob | ProbeJob, device: str) -> dict[str, Any]:
    """What a measurement says of how it ran: Ultralytics uses neither mixed precision nor loader processes on `cpu`."""
    on_cpu = device == "cpu"
    return {"precision": "amp" if job.amp and not on_cpu else "fp32", "workers": 0 if on_cpu else job.workers}


class Preemption:
    """Turns SIGTERM into `Stopped`: at once while a run is set up, between two batches once it goes by them.

    Setup takes minutes (label scan, image cache, a slow loader's first batch), and nothing of it is half-written by an
    exception. A checkpoint would be. Kubernetes sends SIGTERM and waits for the grace period before it kills; a batch
    takes seconds at most.
    """

    def __init__(self) -> None:
        self._asked = False
        self._by_batches = False
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def attach(self, trainer: Any) -> None:
        """Begin the setup of a trainer, or of a model that validates; raises where the signal came meanwhile."""
        self._by_batches = False
        self._check()
        for event in ("on_train_batch_start", "on_val_start"):
            trainer.add_callback(event, self._begin)
        for event in (
            "on_pretrain_routine_end",
            "on_train_batch_start",
            "on_train_batch_end",
            "on_val_batch_start",
            "on_val_batch_end",
        ):
            trainer.add_callback(event, self._check)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._asked = True  # also where it is raised: in a destructor, say, Python drops what is raised
        if not self._by_batches:
            raise Stopped(stage="setup")

    def _begin(self, *_: Any) -> None:
        self._by_batches = True

    def _check(self, *_: Any) -> None:
        if self._asked:
            raise Stopped(stage="train" if self._by_batches else "setup")
