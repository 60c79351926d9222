"""The instrument of one training: trainer callbacks that measure memory, time and waiting, epoch by epoch.

The callbacks read the kernel's and the allocator's high-water marks at the edges of phases, and two clocks a batch.
The one thing without a high-water mark, what the container cannot give back, is sampled at most once a second.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from yolo_airflow_provider.contract import EpochRecord, FailureClass, Measurement
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.measure import cgroup, host
from yolo_airflow_provider.worker.measure.advice import DATA_BOUND_PERCENT
from yolo_airflow_provider.worker.measure.device import Device, MemoryPeak
from yolo_airflow_provider.worker.measure.growth import growth_bytes


@dataclass
class Peaks:
    """Running maxima of a phase."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None

    def take(self, peak: MemoryPeak) -> None:
        """Raise each maximum that the new peak passes."""
        self.allocated_bytes = _larger(self.allocated_bytes, peak.allocated_bytes)
        self.reserved_bytes = _larger(self.reserved_bytes, peak.reserved_bytes)
        self.device_bytes = _larger(self.device_bytes, peak.device_bytes)


@dataclass
class _Epoch:
    started: float
    host: host.HostCounters
    training: Peaks = field(default_factory=Peaks)
    validation: Peaks = field(default_factory=Peaks)
    wait_seconds: float = 0.0
    train_seconds: float = 0.0
    images: int = 0


class Instrument:
    """Measures one training; attach its callbacks to a trainer, read `measurement` at any time.

    Args:
        device: where the training runs.
        try_number: of the task, for the epoch records.
        on_epoch: called with each finished epoch's record and the trainer.
    """

    def __init__(
        self, device: Device, *, try_number: int, on_epoch: Callable[[EpochRecord, Any], None] | None = None
    ) -> None:
        self._device = device
        self._try_number = try_number
        self._on_epoch = on_epoch
        self._start = host.read_counters()
        self._epoch: _Epoch | None = None
        self._edge = 0.0
        self._in_validation = False
        self.training = Peaks()
        self.validation = Peaks()
        self.epochs: list[EpochRecord] = []
        self.steps_seconds: list[float] = []
        self._wait_seconds = 0.0
        self._train_seconds = 0.0
        self._images = 0
        self._asked_batch: int | None = None
        self._peak_rss_bytes: int | None = None
        self._container = cgroup.MemoryPeak()
        self._rss_series: list[int] = []
        self.started = False
        """The first batch was asked for: memory is from here on the batch's."""

    def attach(self, trainer: Any) -> None:
        """Register with a trainer, before `train()` is called."""
        for event in (
            "on_train_epoch_start",
            "on_train_batch_start",
            "on_train_batch_end",
            "on_train_epoch_end",
            "on_val_start",
            "on_val_batch_end",
            "on_val_end",
            "on_fit_epoch_end",
        ):
            trainer.add_callback(event, getattr(self, f"_{event}"))
        self._asked_batch = trainer.batch_size
        self._device.reset_peak()

    def note_peak(self) -> None:
        """Add what is held since the last edge to the phase that is running; for ends that no callback sees."""
        (self.validation if self._in_validation else self.training).take(self._peak())

    def _peak(self) -> MemoryPeak:
        """The device's peak since the last edge; the process's own is kept beside it, as both may start anew there."""
        self._peak_rss_bytes = _larger(self._peak_rss_bytes, host.peak_rss_bytes())
        self._container.sample_now()
        return self._device.peak()

    @property
    def seconds(self) -> float:
        """Since the instrument was made."""
        return time.monotonic() - self._start.at_seconds

    @property
    def held_bytes(self) -> int | None:
        """The most that the container was seen to hold; the process where there is none."""
        return self._container.bytes or self._peak_rss_bytes

    @property
    def rss_growth_bytes(self) -> int | None:
        """Growth of the process's resident memory an epoch, so far."""
        return growth_bytes(self._rss_series)

    @property
    def peak_device_bytes(self) -> int | None:
        """The larger of the training's and the validation's peak."""
        return _larger(self.training.device_bytes, self.validation.device_bytes)

    def measurement(
        self,
        *,
        part: str,
        batch: int,
        precision: str,
        optimizer: str,
        workers: int,
        failure: FailureClass | None = None,
    ) -> Measurement:
        """Everything measured so far, also of a training that broke off."""
        use = host.use_between(self._start, host.read_counters())
        epochs = [epoch.seconds for epoch in self.epochs]
        waited = 100 * self._wait_seconds / self._train_seconds if self._train_seconds else None
        return Measurement(
            part=part,
            failure_class=failure,
            batch=batch,
            precision="amp" if precision == "amp" else "fp32",
            optimizer=optimizer,
            workers=workers,
            peak_allocated_bytes=_larger(self.training.allocated_bytes, self.validation.allocated_bytes),
            peak_reserved_bytes=_larger(self.training.reserved_bytes, self.validation.reserved_bytes),
            peak_device_bytes=self.peak_device_bytes,
            validation_peak_bytes=self.validation.device_bytes,
            peak_rss_bytes=_larger(self._peak_rss_bytes, host.peak_rss_bytes()),
            peak_container_bytes=self._container.bytes,
            rss_growth_bytes=self.rss_growth_bytes,
            step_seconds=_rounded(statistics.median(self.steps_seconds) if self.steps_seconds else None),
            epoch_seconds=_rounded(statistics.median(epochs) if epochs else None),
            epoch_seconds_spread=_rounded(max(epochs) - min(epochs) if epochs else None),
            images_per_second=_rounded(self._images / self._train_seconds if self._train_seconds else None),
            data_wait_percent=_rounded(waited),
            iowait_percent=_rounded(use.iowait_percent),
            cpu_percent=_rounded(use.cpu_percent),
            throttled_percent=_rounded(use.throttled_percent),
            io_pressure_percent=_rounded(use.io_pressure_percent),
            memory_pressure_percent=_rounded(use.memory_pressure_percent),
            read_bytes=use.read_bytes,
            written_bytes=use.written_bytes,
            bound_by=verdict(waited),
        )

    # Callbacks. The first argument is the trainer, for on_val_* the validator.

    def _on_train_epoch_start(self, trainer: Any) -> None:
        if self._asked_batch is not None and trainer.batch_size != self._asked_batch:
            # Ultralytics 8.4 halves the batch by itself after an out-of-memory in the first epoch
            # (engine/trainer.py). The measurement must say what did not fit, and the planner decides what is next.
            raise JobError(
                FailureClass.GPU_OOM,
                f"batch {self._asked_batch} ran out of device memory in its first epoch",
                stage="train",
                needed_bytes=self.peak_device_bytes,
            )
        self.started = True
        self._device.reset_peak()
        self._edge = time.perf_counter()
        self._epoch = _Epoch(started=self._edge, host=host.read_counters())

    def _on_train_batch_start(self, trainer: Any) -> None:
        if self._epoch is not None:
            now = time.perf_counter()
            self._epoch.wait_seconds += now - self._edge
            self._edge = now

    def _on_train_batch_end(self, trainer: Any) -> None:
        if self._epoch is not None:
            now = time.perf_counter()
            self.steps_seconds.append(now - self._edge)
            self._container.sample()
            self._edge = time.perf_counter()  # a sample is neither work nor waiting

    def _on_train_epoch_end(self, trainer: Any) -> None:
        epoch = self._epoch
        if epoch is None:
            return
        epoch.train_seconds = time.perf_counter() - epoch.started
        epoch.images = len(trainer.train_loader.dataset)
        peak = self._peak()
        epoch.training.take(peak)
        self.training.take(peak)
        self._wait_seconds += epoch.wait_seconds
        self._train_seconds += epoch.train_seconds
        self._images += epoch.images

    def _on_val_start(self, validator: Any) -> None:
        self._in_validation = True
        self._device.reset_peak()

    def _on_val_batch_end(self, validator: Any) -> None:
        self._container.sample()

    def _on_val_end(self, validator: Any) -> None:
        peak = self._peak()
        self.validation.take(peak)
        if self._epoch is not None:
            self._epoch.validation.take(peak)
        self._in_validation = False
        self._device.reset_peak()

    def _on_fit_epoch_end(self, trainer: Any) -> None:
        epoch = self._epoch
        if epoch is None:
            return  # the final validation of the best weights reports as an epoch, and is none
        self._epoch = None
        self.training.take(self._peak())  # writing the checkpoint copies the EMA
        use = host.use_between(epoch.host, host.read_counters())
        record = EpochRecord(
            epoch=trainer.epoch + 1,
            try_number=self._try_number,
            seconds=round(time.perf_counter() - epoch.started, 4),
            images_per_second=_rounded(epoch.images / epoch.train_seconds if epoch.train_seconds else None),
            peak_device_bytes=_larger(epoch.training.device_bytes, epoch.validation.device_bytes),
            validation_peak_bytes=epoch.validation.device_bytes,
            data_wait_percent=_rounded(100 * epoch.wait_seconds / epoch.train_seconds if epoch.train_seconds else None),
            iowait_percent=_rounded(use.iowait_percent),
            losses=_finite(trainer.tloss or {}),
            metrics=plain_metrics(trainer.metrics or {}),
        )
        self.epochs.append(record)
        resident = host.rss_bytes()
        if resident is not None:
            self._rss_series.append(resident)
        if self._on_epoch is not None:
            self._on_epoch(record, trainer)


def verdict(data_wait_percent: float | None) -> str | None:
    """What bounded a run, as far as the waiting tells; None where it was not measured."""
    if data_wait_percent is None:
        return None
    return "data_loading" if data_wait_percent > DATA_BOUND_PERCENT else "compute"


def plain_metrics(metrics: dict[str, Any]) -> dict[str, float]:
    """Ultralytics' metrics by their plain names: `metrics/mAP50(B)` is `mAP50`; validation losses are left out."""
    named = {name.removeprefix("metrics/").removesuffix("(B)"): metrics[name] for name in metrics if "metrics/" in name}
    return _finite(named)


def _finite(values: dict[str, Any]) -> dict[str, float]:
    """Numbers that JSON and the store can hold. A loss that diverged is NaN: not measured, rather than wrong."""
    return {name: round(float(value), 5) for name, value in values.items() if math.isfinite(float(value))}


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)
