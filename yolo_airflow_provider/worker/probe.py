"""The probe: a few real training steps at two or three batch sizes, on the data set's most crowded images.

Each point is a whole epoch of Ultralytics' own trainer on a small subset: forward, real loss, backward, optimizer
and EMA at every step, then the validation pass at its usual twice the batch. Points run in ascending order, since
heap that a larger batch left behind would hide what a smaller one needs. Each point is on record in the run's folder
as soon as it is measured, and the next try of the same probe takes it from there.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from yolo_airflow_provider.contract import (
    MEMORY_FAILURES,
    FailureClass,
    JobResult,
    JobSpec,
    Measurement,
    ModelFacts,
    ProbeJob,
)
from yolo_airflow_provider.worker import models
from yolo_airflow_provider.worker.data import images_of, read_dataset
from yolo_airflow_provider.worker.failures import JobError, Stopped, classify
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.log import gib, say
from yolo_airflow_provider.worker.measure import host
from yolo_airflow_provider.worker.measure.advice import throttled
from yolo_airflow_provider.worker.measure.device import Device
from yolo_airflow_provider.worker.measure.run import Instrument
from yolo_airflow_provider.worker.points import Earlier, PointLog
from yolo_airflow_provider.worker.trainer import (
    Preemption,
    check_arguments,
    conditions,
    trainer_class,
    training_arguments,
)

WARM_UP_STEPS = 1
"""The first step builds autograd's and the allocator's caches; its time says nothing about the others."""


@dataclass(frozen=True)
class _Crowd:
    """A data set's images by number of objects, most first, with their label files."""

    train: list[tuple[Path, Path]]
    val: list[tuple[Path, Path]]
    description: dict[str, Any]


class Probe:
    """All points of a probe. `run` measures them; `measured` answers at any time."""

    def __init__(self, spec: JobSpec, job: ProbeJob, device: Device, fence: Fence) -> None:
        self._spec = spec
        self._job = job
        self._device = device
        self._fence = fence
        self._log = PointLog(spec, job, fence, limit_bytes=host.memory_limit_bytes())
        self._folder = Path(spec.run_folder) / "probe"
        self._points: list[Measurement] = []
        self._notes: list[str] = []
        self._running: tuple[Instrument, int] | None = None
        self._optimizer = job.optimizer
        self._facts: ModelFacts | None = None

    @property
    def facts(self) -> ModelFacts | None:
        """The architecture, once it was built."""
        return self._facts

    @property
    def started(self) -> bool:
        """The first batch was asked for, at any batch size."""
        return bool(self._points) or (self._running is not None and self._running[0].started)

    def run(self, preemption: Preemption) -> JobResult:
        """Measure each batch size.

        A batch that runs out of memory is a point too: it and larger ones are known not to fit.

        Raises:
            JobError: bad input; or not even the first batch fits.
        """
        source = models.resolve(self._job.model, trusted_weights=self._job.trusted_weights)
        crowd = _read_crowd(self._job.data)
        too_large = [batch for batch in self._job.batches if batch > len(crowd.train)]
        if too_large:
            raise JobError(
                FailureClass.DATA,
                f"batches {too_large} are larger than the data set's {len(crowd.train)} training images",
                hint=f"probe batches of at most {len(crowd.train)}",
                stage="setup",
            )
        self._fence.check()
        shutil.rmtree(self._folder, ignore_errors=True)  # the subset of a try that vanished
        earlier = self._log.earlier()
        for batch in sorted(set(self._job.batches)):
            known = earlier.points.get(batch)
            if known is not None and (known.failure_class is None or self._points):
                self._reuse(known, earlier)
            elif batch in earlier.vanished and self._points:
                self._note(f"two tries ended without a word while they measured batch {batch}: it is left out")
                break
            else:
                self._try(batch, source, crowd, preemption)
            if self._points[-1].failure_class is not None:
                say(f"probe: batch {batch} does not fit ({self._points[-1].failure_class}); larger ones are not tried")
                break
        return JobResult(
            kind="probe",
            try_number=self._spec.identity.try_number,
            model=self._facts,
            environment=self._device.environment(),
            measurements=tuple(self._points),
            notes=self.advice(),
        )

    def advice(self) -> tuple[str, ...]:
        """What the probe has to say: what it left out, and whether its CPU limit was in the way.

        Nothing about waiting for data, which in a handful of steps is mostly the first one.
        """
        found = [throttled(point, host.cpu_cores()) for point in self._points[-1:]]
        return (*self._notes, *(sentence for sentence in found if sentence))

    def measured(self, failure: FailureClass | None = None) -> tuple[Measurement, ...]:
        """The points so far, and the one that was running as a failure."""
        return (*self._points, *self._current(failure))

    def _note(self, sentence: str) -> None:
        self._notes.append(sentence)
        say(f"probe: {sentence}")

    def _reuse(self, point: Measurement, earlier: Earlier) -> None:
        """Take a point that an earlier try measured as this one's."""
        self._points.append(point)
        self._facts = self._facts or earlier.model
        self._note(f"batch {point.batch} was measured by an earlier try and is not measured again")

    def _try(self, batch: int, source: models.ModelSource, crowd: _Crowd, preemption: Preemption) -> None:
        """Measure a batch size; running out of memory is a point as well, but for the first one."""
        self._log.started(batch)
        say(f"probe: measuring batch {batch}")
        try:
            self._measure(batch, source, crowd, preemption)
        except (Exception, Stopped) as error:
            failure = classify(error)
            point = self._current(failure) if self._is_the_batchs(failure) else ()
            # On record first: it is an end of this batch, whether the probe goes on or not.
            with contextlib.suppress(OSError):
                self._log.measured(point[0], self._facts) if point else self._log.ended(batch, failure)
            if not point or not self._points:
                raise
            self._points.extend(point)
            self._running = None

    def _is_the_batchs(self, failure: FailureClass) -> bool:
        """Whether a smaller batch would not have failed so: the memory that batches are planned for ran out.

        Beside a GPU the host's memory holds the loader's processes, whose number is what it runs out by.
        """
        on_host = failure is FailureClass.HOST_OOM
        return failure in MEMORY_FAILURES and not (on_host and self._device.torch_name != "cpu")

    def _measure(self, batch: int, source: models.ModelSource, crowd: _Crowd, preemption: Preemption) -> None:
        data = _write_subset(self._folder / f"batch-{batch}", crowd, batch=batch, steps=self._job.steps)
        arguments = training_arguments(
            self._job,
            source,
            data=str(data),
            device=self._device.torch_name,
            folder=self._folder / f"batch-{batch}" / "train",
            batch=batch,
            epochs=1,
        )
        # nbs=batch makes every step an optimizer step; a probe's weights are nobody's.
        arguments |= {"nbs": batch, "save": False, "patience": 0, "close_mosaic": 0}
        check_arguments(self._job.task, arguments)
        trainer = trainer_class(self._job.task)(overrides=arguments)
        trainer.fence = self._fence
        self._device.release()
        instrument = Instrument(self._device, try_number=self._spec.identity.try_number)
        self._running = (instrument, batch)
        instrument.attach(trainer)
        preemption.attach(trainer)
        trainer.add_callback("on_pretrain_routine_end", lambda t: self._built(t, source.name))
        trainer.train()
        del instrument.steps_seconds[:WARM_UP_STEPS]
        point = self._current(None)[0]
        self._log.measured(point, self._facts)
        self._points.append(point)
        self._running = None
        del trainer
        self._device.release()
        shutil.rmtree(self._folder / f"batch-{batch}", ignore_errors=True)
        say(
            f"probe: batch {batch}: peak {gib(point.peak_device_bytes)}, validation {gib(point.validation_peak_bytes)},"
            f" {point.step_seconds or 0:.3f} s a step, waited {point.data_wait_percent or 0:.0f} % for data"
        )

    def _current(self, failure: FailureClass | None) -> tuple[Measurement, ...]:
        if self._running is None or self._facts is None:
            return ()
        instrument, batch = self._running
        instrument.note_peak()
        return (
            instrument.measurement(
                part=f"batch-{batch}",
                batch=batch,
                optimizer=self._optimizer,
                failure=failure,
                **conditions(self._job, self._device.torch_name),
            ),
        )

    def _built(self, trainer: Any, name: str) -> None:
        module = getattr(trainer.model, "module", trainer.model)
        self._facts = models.facts(module, name=name, task=self._job.task, imgsz=self._job.imgsz)
        models.check_imgsz(self._job.imgsz, self._facts.stride)
        self._optimizer = type(trainer.optimizer).__name__


def _read_crowd(data: str) -> _Crowd:
    """Read the prepared data set; ties are broken by name, so that a probe repeats itself."""
    from ultralytics.data.utils import img2label_paths

    description = read_dataset(data)

    def ordered(split: str) -> list[tuple[Path, Path]]:
        images = images_of(description, split)
        labels = img2label_paths([str(image) for image in images])
        pairs = list(zip(images, map(Path, labels), strict=True))
        return sorted(pairs, key=lambda pair: (-_objects(pair[1]), str(pair[0])))

    raw = yaml.safe_load(Path(data).read_text(encoding="utf-8"))
    kept = {key: raw[key] for key in ("kpt_shape", "flip_idx", "channels") if key in raw}
    return _Crowd(ordered("train"), ordered("val"), {"names": description["names"], **kept})


def _objects(label: Path) -> int:
    try:
        return sum(1 for line in label.read_text(encoding="utf-8").splitlines() if line.strip())
    except OSError:
        return 0


def _write_subset(folder: Path, crowd: _Crowd, *, batch: int, steps: int) -> Path:
    """A data set of exactly as many images as the steps take, most crowded first, repeated where there are too few."""
    shutil.rmtree(folder, ignore_errors=True)
    wanted = {"train": batch * (steps + WARM_UP_STEPS), "val": min(2 * batch, max(len(crowd.val), 1))}
    for split, pairs in (("train", crowd.train), ("val", crowd.val)):
        images, labels = folder / "images" / split, folder / "labels" / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for number in range(wanted[split]):
            image, label = pairs[number % len(pairs)]
            stem = f"{number:06d}"
            (images / f"{stem}{image.suffix}").symlink_to(image.resolve())
            if label.exists():
                shutil.copyfile(label, labels / f"{stem}.txt")
    data = folder / "data.yaml"
    content = {
        "path": str(folder.absolute()),
        "train": "images/train",
        "val": "images/val",
        **crowd.description,
    }
    data.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    return data
