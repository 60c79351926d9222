"""How long an epoch takes: from what was measured nearest to it, else from the architecture and the data sheet.

The cold model is a roofline (Williams and others, CACM 52(4), 2009): a step takes as long as its arithmetic or its
memory traffic, whichever is longer, but no less than launching its kernels; and the loop waits where the loader does
not keep up. Each has one constant here, fitted to publicly reported trainings (`python -m benchmarks.timing`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from yolo_airflow_provider.gpus.cards import Device
from yolo_airflow_provider.planner.catalogue import Architecture

ARITHMETIC_EFFICIENCY = 0.4
"""Share of a card's arithmetic that the convolutions of a step reach."""
BANDWIDTH_EFFICIENCY = 0.6
"""Of a card's bandwidth, for the traffic of operators that are not fused."""
LAUNCH_SECONDS = 3e-6
"""Of one operator from Python; forward, backward and optimizer."""
LOADER_IMAGES_PER_SECOND = 20.0
"""That one loader process with a core of its own decodes and augments at 640 pixels with mosaic."""
CPU_FLOPS = 1.5e11
"""A second of one core in 32 bit; Ultralytics computes with one thread where it sees one core."""
LINK_BYTES_PER_SECOND = 1.2e10
"""Between two cards, where a ring adds up gradients: about what PCIe 4.0 x16 gives; NVLink is faster. Not measured."""
EPOCH_SECONDS = 3.0
"""Of every epoch: loaders begin anew, a checkpoint is written."""
VALIDATION_OVER_TRAINING = 0.5
"""Time of a validation image over a training image."""

MEASURED_SPREAD, BATCH_SPREAD, DEVICE_SPREAD, COLD_FACTOR = 0.1, 0.2, 0.35, 2.4
"""How far the time may lie from what is expected: repeated, at another batch, on another device (fractions), and
predicted from the architecture alone (a factor either way)."""

Bound = Literal["compute", "memory_bandwidth", "data_loading", "overhead", "unknown"]
Basis = Literal["measured", "scaled", "predicted"]
_PIXELS_640 = 640**2
_GRADIENT_BYTES = 4


@dataclass(frozen=True)
class Job:
    """What is timed.

    Attributes:
        imgsz: side of the square input, pixels.
        batch: images a step.
        images: of the training split.
        val_images: of the validation split.
        precision: `amp` or `fp32`.
        workers: loader processes; 0 loads in the training process.
        cached: images are kept in memory, decoded.
        ranks: processes that share a batch out, each with a card and `workers` of its own; the first one validates.
    """

    imgsz: int
    batch: int
    images: int
    val_images: int = 0
    precision: Literal["amp", "fp32"] = "amp"
    workers: int = 8
    cached: bool = False
    ranks: int = 1


@dataclass(frozen=True)
class Timed:
    """A measured training or probe point of the same model, size and precision.

    Attributes:
        id: of the measurement.
        batch: images a step.
        images_per_second: while training.
        epoch_seconds: of an epoch with its validation; None for a probe point.
        images: of the training split.
        device: what it ran on, None where it is not known or a CPU.
    """

    id: int
    batch: int
    images_per_second: float | None = None
    epoch_seconds: float | None = None
    images: int | None = None
    device: Device | None = None


@dataclass(frozen=True)
class EpochTime:
    """Predicted seconds of an epoch, with the interval it is expected in."""

    expected_seconds: float
    low_seconds: float
    high_seconds: float
    basis: Basis
    bound_by: Bound = "unknown"
    evidence: tuple[int, ...] = ()

    def total(self, epochs: int, *, done: int = 0) -> EpochTime:
        """The epochs that are left of a training."""
        left = max(0, epochs - done)
        return EpochTime(
            self.expected_seconds * left,
            self.low_seconds * left,
            self.high_seconds * left,
            self.basis,
            self.bound_by,
            self.evidence,
        )


def cold(architecture: Architecture, device: Device | None, job: Job) -> EpochTime:
    """Predict from the architecture alone.

    Args:
        architecture: what is trained.
        device: what it runs on; None is one core of a CPU.
        job: on what.
    """
    step, bound = _step_seconds(architecture, device, job)
    loading = 1 / loader_rate(job) if device is not None else 0.0
    an_image = step / job.batch
    if loading > an_image:
        an_image, bound = loading, "data_loading"
    steps = math.ceil(job.images / job.batch)
    # The last step of an epoch takes as long as a whole one.
    training = max(steps * step, job.images * an_image)
    seconds = training + job.val_images * an_image * job.ranks * VALIDATION_OVER_TRAINING + EPOCH_SECONDS
    return EpochTime(seconds, seconds / COLD_FACTOR, seconds * COLD_FACTOR, "predicted", bound)


def loader_rate(job: Job) -> float:
    """Images a second that the loaders deliver."""
    rate = LOADER_IMAGES_PER_SECOND * _PIXELS_640 / job.imgsz**2 * max(1, job.workers) * job.ranks
    # Decoding is about half of the work; the other half is augmentation.
    return rate * 2 if job.cached else rate


def expect(
    evidence: Sequence[Timed], architecture: Architecture | None, device: Device | None, job: Job
) -> EpochTime | None:
    """Seconds of an epoch from the best evidence that there is; None where there is none.

    The same batch on this device first, then other batches on it, then other devices scaled by what bounds the step,
    then the architecture alone.
    """
    here = [one for one in evidence if _same(one.device, device)]
    epochs = [one for one in here if one.epoch_seconds and one.images]
    same = [one for one in epochs if one.batch == job.batch]
    if same:
        seconds = median((one.epoch_seconds or 0) * job.images / (one.images or 1) for one in same)
        return _around(seconds, MEASURED_SPREAD, "measured", same)
    if epochs:
        seconds = median(
            (one.epoch_seconds or 0) * job.images / (one.images or 1) * _batch_ratio(architecture, device, job, one)
            for one in epochs
        )
        return _around(seconds, BATCH_SPREAD, "scaled", epochs)
    probed = [one for one in here if one.images_per_second]
    if probed:
        nearest = min(probed, key=lambda one: abs(math.log(one.batch / job.batch)))
        an_image = 1 / (nearest.images_per_second or 1) * _batch_ratio(architecture, device, job, nearest)
        seconds = an_image * (job.images + job.val_images * VALIDATION_OVER_TRAINING) + EPOCH_SECONDS
        return _around(seconds, BATCH_SPREAD, "scaled", [nearest])
    if architecture is None:
        return None
    there = [one for one in evidence if one.device is not None and one.epoch_seconds and one.images]
    predicted = cold(architecture, device, job)
    if not there or device is None:
        return predicted
    # Measured over predicted elsewhere corrects the prediction here.
    ratio = median(
        (one.epoch_seconds or 0) / cold(architecture, one.device, _job_of(job, one)).expected_seconds for one in there
    )
    scaled = _around(predicted.expected_seconds * ratio, DEVICE_SPREAD, "scaled", there)
    return EpochTime(
        scaled.expected_seconds,
        scaled.low_seconds,
        scaled.high_seconds,
        "scaled",
        predicted.bound_by,
        scaled.evidence,
    )


def _step_seconds(architecture: Architecture, device: Device | None, job: Job) -> tuple[float, Bound]:
    pixels = math.ceil(job.batch / job.ranks) * job.imgsz**2
    flops = architecture.step_flops_per_pixel * pixels
    launching = architecture.kernels * LAUNCH_SECONDS
    if device is None:
        return flops / CPU_FLOPS + launching, "compute"
    moved = architecture.step_moved_bytes_per_pixel * pixels * (1 if job.precision == "amp" else 2)
    rate = device.fp16_flops if job.precision == "amp" else device.fp32_flops
    parts: list[tuple[float, Bound]] = [
        (flops / (rate * ARITHMETIC_EFFICIENCY), "compute"),
        (moved / (device.bandwidth_bytes_per_second * BANDWIDTH_EFFICIENCY), "memory_bandwidth"),
        (launching, "overhead"),
    ]
    step, bound = max(parts)
    if job.ranks == 1:
        return step, bound
    exchanged = 2 * (job.ranks - 1) / job.ranks * architecture.parameters * _GRADIENT_BYTES
    # It begins while the backward pass still runs, and is not hidden by it where it takes longer.
    return (step, bound) if (seconds := exchanged / LINK_BYTES_PER_SECOND) <= step / 2 else (step / 2 + seconds, bound)


def _batch_ratio(architecture: Architecture | None, device: Device | None, job: Job, one: Timed) -> float:
    """Seconds an image at the batch asked for over those at the batch measured."""
    if architecture is None:
        return 1.0
    there = _job_of(job, one)
    asked, _ = _step_seconds(architecture, device, job)
    known, _ = _step_seconds(architecture, device, there)
    return (asked / job.batch) / (known / there.batch)


def _job_of(job: Job, one: Timed) -> Job:
    return Job(
        imgsz=job.imgsz,
        batch=one.batch,
        images=one.images or job.images,
        val_images=round(job.val_images * (one.images or job.images) / job.images),
        precision=job.precision,
        workers=job.workers,
        cached=job.cached,
        ranks=job.ranks,
    )


def _same(one: Device | None, other: Device | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.product, one.profile) == (other.product, other.profile)


def _around(seconds: float, spread: float, basis: Basis, evidence: Sequence[Timed]) -> EpochTime:
    ids = tuple(one.id for one in evidence)
    return EpochTime(seconds, seconds * (1 - spread), seconds * (1 + spread), basis, evidence=ids)
