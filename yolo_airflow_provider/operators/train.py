"""MigTrainOperator: plan, train with Ultralytics' own trainer, measure, resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, cast

from yolo_airflow_provider.contract import JobResult, JobSpec, TrainJob
from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.operators import parameters
from yolo_airflow_provider.operators.base import Fit, Proposal
from yolo_airflow_provider.operators.model import ModelOperator
from yolo_airflow_provider.operators.offers import Candidate
from yolo_airflow_provider.operators.plan import DataSource, cached_bytes, read_data
from yolo_airflow_provider.planner.choice import CPU_RUNTIME_BYTES, DEFAULT_MAX_BATCH, LEAST_BATCH
from yolo_airflow_provider.planner.options import OBJECTIVES, Objective, Option, best

_PLANNED = frozenset(
    {"batch", "imgsz", "epochs", "model", "data", "workers", "amp", "device", "cache", "seed", "optimizer", "task"}
    | {"resume", "save_dir", "project", "name", "exist_ok"}
)
"""Ultralytics' arguments that the operator decides, by parameters of its own."""


class MigTrainOperator(ModelOperator):
    """Trains a model with the batch that the profile store's measurements bear out.

    A retry plans again with what the failure taught, and resumes from the last whole epoch. A training that an
    earlier try finished is reported again, not repeated.

    :param epochs: of the whole training, over all tries. (templated)
    :param batch: images a step, or `auto`. A number is overruled only where it is known not to fit. (templated)
    :param max_batch: largest batch that `auto` chooses. (templated)
    :param min_batch: smallest batch that `auto` chooses; batch normalisation bears smaller ones badly. (templated)
    :param optimize: which of several accelerators is taken: `cost` weighs the time by the share of the card, `time`
        takes the fastest, `fit` the smallest. What is free comes before what is in use. (templated)
    :param cache: Ultralytics' image cache: False, `ram` or `disk`. (templated)
    :param resume: False trains anew; what was there is moved aside. (templated)
    :param train_arguments: further Ultralytics training arguments, such as `{"lr0": 0.01}`. (templated)

    Returns `{"weights": path of best.pt, "last": path, "batch": ..., "epochs_done": ..., "metrics": {...},
    "measurement": {...} or None, "data": path, "imgsz": ...}`; an ExportOperator takes it as its `weights`.
    """

    template_fields: Sequence[str] = (
        *ModelOperator.template_fields,
        "epochs",
        "batch",
        "max_batch",
        "min_batch",
        "optimize",
        "cache",
        "resume",
        "train_arguments",
    )

    def __init__(
        self,
        *,
        epochs: int | str,
        batch: int | str = "auto",
        max_batch: int | str = DEFAULT_MAX_BATCH,
        min_batch: int | str = LEAST_BATCH,
        optimize: str = "cost",
        cache: bool | str = False,
        resume: bool | str = True,
        train_arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.epochs = epochs
        self.batch = batch
        self.max_batch = max_batch
        self.min_batch = min_batch
        self.optimize = optimize
        self.cache = cache
        self.resume = resume
        self.train_arguments = train_arguments

    def _propose(self, accelerator: Accelerator) -> Proposal:
        source = read_data(self.data)
        common = self._common(source)
        self._check_arguments()
        cache = self.cache if self.cache in ("ram", "disk") else parameters.switch("cache", self.cache)
        epochs = parameters.whole_number("epochs", self.epochs, least=1)
        stored = self._known(common, accelerator)
        cached = self._cached_bytes(source, common["imgsz"], accelerator) if cache in (True, "ram") else 0
        question, choice = self._choose(
            common,
            accelerator,
            stored,
            batch=parameters.batch_size(self.batch),
            source=source,
            max_batch=parameters.whole_number("max_batch", self.max_batch, least=1),
            min_batch=parameters.whole_number("min_batch", self.min_batch, least=1),
            cached=cached,
            epochs=epochs,
        )
        job = TrainJob(
            **common,
            epochs=epochs,
            batch=choice.batch,
            cache=cache,
            resume=parameters.switch("resume", self.resume),
            overrides=dict(self.train_arguments or {}),
        )
        need = self._need(common, accelerator, stored, batch=job.batch, cached_bytes=cached)
        return Proposal(job, need, choice=(question, choice), amp=job.amp, objective=self._objective())

    def _preferred(self, fitting: Sequence[tuple[Candidate, Fit]]) -> tuple[Candidate, Fit]:
        """The best by the objective."""
        options = [
            Option(
                candidate.accelerator,
                fit.proposal.choice[1],
                epochs=int(self.epochs),
                free=candidate.offer is None or candidate.offer.free is None or candidate.offer.free > 0,
            )
            for candidate, fit in fitting
            if fit.proposal.choice is not None
        ]
        return fitting[best(options, self._objective())]

    def _objective(self) -> Objective:
        if self.optimize not in OBJECTIVES:
            raise BadInput(f"optimize={self.optimize!r} is none of {', '.join(OBJECTIVES)}")
        return cast(Objective, self.optimize)

    def _cached_bytes(self, source: DataSource, imgsz: int, accelerator: Accelerator) -> int:
        """What keeping all images in memory takes; Ultralytics keeps those of both splits."""
        summary = source.summary
        cached = cached_bytes(summary.train_images + summary.val_images, imgsz) if summary else 0
        budget = accelerator.memory_bytes if accelerator.kind == "cpu" else None
        if budget is not None and cached > budget - CPU_RUNTIME_BYTES:
            raise BadInput(
                f"cache='ram' keeps {cached / 2**30:.2f} GiB of images in memory, which the budget of"
                f" {budget / 2**30:.2f} GiB does not hold beside the training; leave the cache out, or give more memory"
            )
        return cached

    def _check_arguments(self) -> None:
        """What is planned is not to be asked for twice, with another value."""
        extra = self.train_arguments or {}
        device = extra.get("device")
        if device is not None and str(device) not in ("0", "cuda:0"):
            raise BadInput(
                f"train_arguments: device={device!r}: one pod has one slice, and one process trains on it; slices"
                " have no path to each other (NCCL refuses them). Ask for a larger slice: accelerator='3g.20gb'"
            )
        if planned := sorted(_PLANNED & set(extra)):
            names = ", ".join(planned)
            raise BadInput(f"train_arguments: {names}: pass it to the operator, or leave it out; it is planned")

    def _returned(self, spec: JobSpec, result: JobResult) -> dict[str, Any]:
        train = result.train
        if train is None:
            return {}
        measured = result.measurements[0] if result.measurements else None
        return {
            "weights": str(PurePosixPath(spec.run_folder, train.best_weights)),
            "last": str(PurePosixPath(spec.run_folder, train.last_weights)),
            "batch": measured.batch if measured else getattr(spec.job, "batch", None),
            "epochs_done": train.epochs_done,
            "resumed_epochs": train.resumed_epochs,
            "metrics": train.metrics,
            "measurement": measured.model_dump(mode="json", exclude_none=True) if measured else None,
            "data": getattr(spec.job, "data", None),
            "imgsz": spec.job.imgsz,
        }
