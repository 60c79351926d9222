"""A training to its end: resumes what an earlier try left, and never trains a finished run again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from yolo_airflow_provider.contract import (
    EpochRecord,
    FailureClass,
    JobResult,
    JobSpec,
    Measurement,
    ModelFacts,
    TrainJob,
    TrainSummary,
)
from yolo_airflow_provider.worker import models
from yolo_airflow_provider.worker.checkpoints import Checkpoint, mend_best, newest, remove_leftovers, strip
from yolo_airflow_provider.worker.data import mean_size_bytes, read_dataset
from yolo_airflow_provider.worker.earlier import changes, identity as job_identity, marker, read_identity, set_aside
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.files import append_line, make_folder, write_atomically
from yolo_airflow_provider.worker.log import duration, gib, say
from yolo_airflow_provider.worker.measure import host
from yolo_airflow_provider.worker.measure.advice import Circumstances, advise, growing
from yolo_airflow_provider.worker.measure.device import Device
from yolo_airflow_provider.worker.measure.run import Instrument, plain_metrics
from yolo_airflow_provider.worker.trainer import (
    Preemption,
    check_arguments,
    check_device,
    conditions,
    trainer_class,
    training_arguments,
)


class Training:
    """One try of a training. `run` does it; `measured` answers at any time, also after a failure."""

    def __init__(self, spec: JobSpec, job: TrainJob, device: Device, fence: Fence) -> None:
        self._spec = spec
        self._job = job
        self._device = device
        self._fence = fence
        # Absolute, as a path that Ultralytics is to resume from must be.
        self._run_folder = Path(spec.run_folder).absolute()
        self._folder = self._run_folder / "train"
        self._instrument = Instrument(device, try_number=spec.identity.try_number, on_epoch=self._epoch_done)
        self._optimizer = job.optimizer
        self._resumed_epochs = 0
        self._facts: ModelFacts | None = None
        self._cached_images = 0
        self._image_bytes: float | None = None
        self._warned = False
        self._started = time.monotonic()

    def run(self, preemption: Preemption) -> JobResult:
        """Train, or finish, or only report what an earlier try finished.

        Raises:
            JobError: bad input, out of memory, asked to stop.
        """
        source = models.resolve(self._job.model, trusted_weights=self._job.trusted_weights)
        read_dataset(self._job.data)
        models.check_imgsz(self._job.imgsz, models.LEAST_STRIDE)
        # Everything that can be refused is refused before what an earlier try left is touched.
        check_device(self._job, self._device.torch_name)
        check_arguments(self._job.task, self._arguments(source))
        checkpoint = self._found_checkpoint()
        if checkpoint is not None and (checkpoint.finished or checkpoint.epochs_done >= self._job.epochs):
            return self._finish_earlier(checkpoint, source.name, preemption)
        trainer = self._trainer(source, checkpoint)
        self._instrument.attach(trainer)
        preemption.attach(trainer)
        trainer.add_callback("on_pretrain_routine_end", lambda t: self._built(t, source.name))
        trainer.train()
        advice = self.advice()
        for sentence in advice:
            say(sentence)
        return self._result(plain_metrics(trainer.metrics or {}), epochs_done=self._epochs_done(), notes=advice)

    def measured(self, failure: FailureClass | None = None) -> tuple[Measurement, ...]:
        """What was measured so far; empty before the model was built."""
        if self._facts is None:
            return ()
        self._instrument.note_peak()
        return (
            self._instrument.measurement(
                part="train",
                batch=self._job.batch,
                optimizer=self._optimizer,
                failure=failure,
                **conditions(self._job, self._device.torch_name),
            ),
        )

    def advice(self) -> tuple[str, ...]:
        """What the measurement says about the next run; nothing before the first whole epoch."""
        if not self._instrument.epochs:
            return ()
        (measured,) = self.measured()
        # At its end it speaks of the next of its kind, which trains in one process what earlier tries did here.
        ahead = (self._job.epochs - self._epochs_done()) or (self._job.epochs - len(self._instrument.epochs))
        known = Circumstances(
            on_cpu=self._device.torch_name == "cpu",
            imgsz=self._job.imgsz,
            cpu_cores=host.cpu_cores(),
            cache=self._job.cache,
            seconds=self._instrument.seconds,
            images=self._cached_images,
            image_bytes=self._image_bytes,
            epochs_ahead=ahead,
            memory_limit_bytes=self._memory_limit_bytes(),
        )
        return advise(measured, known)

    @property
    def facts(self) -> ModelFacts | None:
        """The architecture, once it was built."""
        return self._facts

    @property
    def started(self) -> bool:
        """The first batch was asked for."""
        return self._instrument.started

    def _found_checkpoint(self) -> Checkpoint | None:
        """What an earlier try left, if it was the same training; otherwise it is moved aside, not deleted."""
        self._fence.check()  # importing torch took seconds
        earlier, identity = read_identity(self._run_folder), job_identity(self._job)
        if self._folder.exists() and (earlier != identity or not self._job.resume):
            why = changes(earlier, identity) or "resume=False"
            aside = set_aside(self._run_folder, self._folder)
            say(f"the folder holds another training ({why}): it is kept as {aside.name}, this one starts anew")
        make_folder(self._folder)
        write_atomically(marker(self._run_folder), json.dumps(identity))
        weights = self._folder / "weights"
        remove_leftovers(weights)
        checkpoint = newest(weights, trusted=self._job.trusted_weights)
        if checkpoint is not None:
            mend_best(weights, checkpoint, trusted=self._job.trusted_weights, fence=self._fence)
        return checkpoint

    def _arguments(self, source: models.ModelSource) -> dict[str, Any]:
        return training_arguments(
            self._job,
            source,
            data=self._job.data,
            device=self._device.torch_name,
            folder=self._folder,
            batch=self._job.batch,
            epochs=self._job.epochs,
        )

    def _trainer(self, source: models.ModelSource, checkpoint: Checkpoint | None) -> Any:
        arguments = self._arguments(source)
        if checkpoint is not None:
            self._resumed_epochs = checkpoint.epochs_done
            batch = self._job.batch
            other = f", now with batch {batch} instead of {checkpoint.batch}" if checkpoint.batch != batch else ""
            say(f"resuming after epoch {checkpoint.epochs_done} of {self._job.epochs} from {checkpoint.path}{other}")
            arguments |= {"resume": str(checkpoint.path), "model": str(checkpoint.path)}
        self._fence.check()  # the trainer's constructor removes results.csv and rewrites args.yaml
        trainer = trainer_class(self._job.task)(overrides=arguments)
        trainer.fence = self._fence
        return trainer

    def _built(self, trainer: Any, name: str) -> None:
        """Setup is over: keep the architecture's facts, refuse what the trainer would have bent in silence."""
        module = getattr(trainer.model, "module", trainer.model)
        self._facts = models.facts(module, name=name, task=self._job.task, imgsz=self._job.imgsz)
        models.check_imgsz(self._job.imgsz, self._facts.stride)
        images = len(trainer.train_loader.dataset)
        self._cached_images = images + len(trainer.test_loader.dataset)
        self._image_bytes = mean_size_bytes(getattr(trainer.train_loader.dataset, "im_files", ()))
        if self._job.batch > images:
            raise JobError(
                FailureClass.DATA,
                f"batch {self._job.batch} is larger than the data set's {images} training images",
                hint=f"use batch <= {images}, or batch='auto'",
                stage="setup",
            )
        self._optimizer = type(trainer.optimizer).__name__
        say(
            f"training {name} ({self._facts.parameters / 1e6:.2f} M parameters, {self._facts.gflops or 0:.1f} GFLOPs)"
            f" on {images} images at {self._job.imgsz}, batch {self._job.batch}, {self._optimizer},"
            f" {self._device.environment().product or self._device.torch_name}"
        )

    def _epoch_done(self, record: EpochRecord, trainer: Any) -> None:
        self._fence.check()
        append_line(self._run_folder / "epochs.jsonl", record.model_dump_json(exclude_none=True))
        left = (self._job.epochs - record.epoch) * record.seconds
        losses = " ".join(f"{name} {value:.3f}" for name, value in record.losses.items())
        say(
            f"epoch {record.epoch}/{self._job.epochs}: {losses}, mAP50 {record.metrics.get('mAP50', 0):.3f},"
            f" mAP50-95 {record.metrics.get('mAP50-95', 0):.3f}, {record.images_per_second or 0:.1f} images/s,"
            f" waited {record.data_wait_percent or 0:.0f} % for data, peak {gib(record.peak_device_bytes)},"
            f" {duration(record.seconds)}, {duration(left)} left"
        )

        self._warn_of_growth(self._job.epochs - record.epoch)

    def _warn_of_growth(self, epochs_left: int) -> None:
        """Say once, while there is time, that memory will not last to the end."""
        if self._warned:
            return
        instrument = self._instrument
        warning = growing(instrument.rss_growth_bytes, instrument.held_bytes, epochs_left, self._memory_limit_bytes())
        if warning is not None:
            self._warned = True
            say(f"warning: {warning}")

    def _memory_limit_bytes(self) -> int | None:
        """Of the container, or the budget that a local process is held to."""
        given = self._spec.accelerator
        budget = given.memory_budget_bytes if given.kind == "cpu" and given.enforce_budget else None
        return min((limit for limit in (host.memory_limit_bytes(), budget) if limit), default=None)

    def _epochs_done(self) -> int:
        return self._instrument.epochs[-1].epoch if self._instrument.epochs else self._resumed_epochs

    def _result(self, metrics: dict[str, float], *, epochs_done: int, notes: tuple[str, ...] = ()) -> JobResult:
        weights = Path("train") / "weights"
        best = weights / "best.pt"
        if not (self._run_folder / best).exists():
            best = weights / "last.pt"  # no epoch had a fitness, NaN say
        return JobResult(
            kind="train",
            try_number=self._spec.identity.try_number,
            model=self._facts,
            environment=self._device.environment(),
            measurements=self.measured(),
            train=TrainSummary(
                epochs=self._job.epochs,
                epochs_done=epochs_done,
                resumed_epochs=self._resumed_epochs,
                best_weights=str(best),
                last_weights=str(weights / "last.pt"),
                metrics=metrics,
                training_seconds=round(time.monotonic() - self._started, 3),
            ),
            notes=notes,
        )

    def _finish_earlier(self, checkpoint: Checkpoint, name: str, preemption: Preemption) -> JobResult:
        """An earlier try trained every epoch but its result was not read: validate the best weights and report."""
        from ultralytics import YOLO

        note = (
            f"an earlier try finished all {checkpoint.epochs_done} epochs; its weights are validated, not trained again"
        )
        say(note)
        weights = self._folder / "weights"
        for file in (weights / "last.pt", weights / "best.pt"):
            strip(file, self._fence)
        best = weights / "best.pt"
        model = YOLO(best if best.exists() else checkpoint.path)
        self._facts = models.facts(model.model, name=name, task=self._job.task, imgsz=self._job.imgsz)
        self._resumed_epochs = checkpoint.epochs_done
        preemption.attach(model)
        metrics = model.val(
            data=self._job.data,
            imgsz=self._job.imgsz,
            batch=self._job.batch,
            device=self._device.torch_name,
            plots=False,
            verbose=False,
            save_dir=str(self._folder / "final"),
        )
        result = self._result(plain_metrics(metrics.results_dict), epochs_done=checkpoint.epochs_done, notes=(note,))
        # Nothing was trained in this try: its memory and time would teach the planner wrong.
        return result.model_copy(update={"measurements": ()})
