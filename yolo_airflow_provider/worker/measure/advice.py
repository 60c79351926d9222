"""What a measurement says about the next run, in sentences: pure, from the numbers to at most one sentence a cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from yolo_airflow_provider.contract import Measurement
from yolo_airflow_provider.worker.log import gib

DATA_BOUND_PERCENT = 20.0
"""Above this share of waiting the loader bounds the run. The same share at which a larger slice is no longer worth
its price in facts collected from users (a GPU idle a fifth of the time)."""

THROTTLED_PERCENT = 10.0
"""Share of stopped periods worth a sentence. Kubernetes' own alert, CPUThrottlingHigh of kubernetes-mixin, waits for
25 % since a service does not mind less; in a training each step waits for the slowest loader process."""

STORAGE_BOUND_PERCENT = 20.0
"""Of CPU time in iowait, or of time under I/O pressure. By itself it may be the neighbours on the node; together with
as large a share of waiting for data it is this run's storage."""

SMALL_IMAGE_BYTES = 256 * 1024
"""Mean size below which a file costs its round trips rather than its bytes: a quarter of what one NFS read carries at
most (1 MiB, nfs(5)). COCO's images have 160 KiB."""

_DECODED_BYTES_PER_PIXEL = 3
_CACHE_MARGIN = 2
"""Ultralytics 8.4 fills its memory cache only where twice as much is free (data/base.py, `check_cache_ram`)."""


@dataclass(frozen=True)
class Circumstances:
    """What is known of a run beside what it measured; None where it is not known."""

    on_cpu: bool
    imgsz: int
    cpu_cores: float | None = None
    cache: bool | Literal["ram", "disk"] = False
    seconds: float | None = None
    """The time in which the measurement's bytes were read."""
    images: int | None = None
    """Of training and validation: Ultralytics caches both."""
    image_bytes: float | None = None
    """Mean size of an image file."""
    epochs_ahead: int = 0
    """Epochs that are left; of a training at its end those of earlier tries, which the next of its kind has in one."""
    memory_limit_bytes: int | None = None


def advise(measured: Measurement, known: Circumstances) -> tuple[str, ...]:
    """Sentences for the result's notes, what ends a run before what slows it."""
    held = measured.peak_container_bytes or measured.peak_rss_bytes
    found = (
        growing(measured.rss_growth_bytes, held, known.epochs_ahead, known.memory_limit_bytes),
        throttled(measured, known.cpu_cores),
        _slow_storage(measured, known.seconds),
        _waiting(measured, known),
        _small_files(measured, known, held),
    )
    return tuple(sentence for sentence in found if sentence)


def growing(growth_bytes: int | None, held_bytes: int | None, epochs: int, limit_bytes: int | None) -> str | None:
    """A warning where memory that goes on growing would pass the limit within some epochs.

    Args:
        growth_bytes: an epoch.
        held_bytes: what the container, or the process, reached so far.
        epochs: that are ahead.
        limit_bytes: the container's memory limit.
    """
    if not growth_bytes or not epochs or held_bytes is None or limit_bytes is None:
        return None
    reached = held_bytes + growth_bytes * epochs
    if reached <= limit_bytes:
        return None
    fitting = max(limit_bytes - held_bytes, 0) // growth_bytes
    return (
        f"memory grows by {growth_bytes / 2**20:,.0f} MiB an epoch from {gib(held_bytes)}: {epochs} more epochs would"
        f" take {gib(reached)}, and the limit of {gib(limit_bytes)} holds {fitting}; raise the container's memory, or"
        " let a retry resume from the last epoch, which starts with little"
    )


def throttled(measured: Measurement, cpu_cores: float | None) -> str | None:
    """What to do where the CPU limit stopped the run too often."""
    share = measured.throttled_percent
    if share is None or share <= THROTTLED_PERCENT:
        return None
    limit = f" of {cpu_cores:g} cores" if cpu_cores else ""
    # One core a loader process and one for the training itself.
    wanted = f" to about {measured.workers + 1} cores" if measured.workers + 1 > (cpu_cores or 0) else ""
    return (
        f"the CPU limit{limit} stopped the run in {share:.0f} % of its scheduling periods: raise the container's CPU"
        f" limit{wanted}"
    )


def _slow_storage(measured: Measurement, seconds: float | None) -> str | None:
    if not _waits_for_storage(measured):
        return None
    iowait, pressure = measured.iowait_percent or 0.0, measured.io_pressure_percent or 0.0
    rate = f", {measured.read_bytes / seconds / 1e6:.1f} MB/s read" if measured.read_bytes and seconds else ""
    return (
        f"the storage is slow: {measured.data_wait_percent or 0:.0f} % of the training waited for data, {iowait:.0f} %"
        f" of CPU time for storage, I/O pressure {pressure:.0f} %{rate}; stage the images on a volume local to the node"
        " (PreprocessOperator's copy_images=True copies them into the workspace: if that is on a local disk)"
    )


def _waiting(measured: Measurement, known: Circumstances) -> str | None:
    if not _waits(measured):
        return None
    cache = "" if known.cache else ", or cache the images in memory (cache='ram')"
    waited = f"{measured.data_wait_percent or 0:.0f} % of the training waited for data"
    if known.on_cpu:
        # Ultralytics takes no loader processes on `cpu`: images are read between the steps.
        return f"{waited}, which on cpu is read between the steps: give it more cores or faster storage{cache}"
    cores = f" on {known.cpu_cores:g} cores" if known.cpu_cores else ""
    return (
        f"{waited} with {measured.workers} loader processes{cores}: give it more cores and workers{cache}; a larger"
        " slice would not make it faster"
    )


def _small_files(measured: Measurement, known: Circumstances, held_bytes: int | None) -> str | None:
    """Files that cost opening. cache='disk' is no way out: it writes a larger file an image beside the image."""
    if not _waits_for_storage(measured) or known.cache or not known.images or known.image_bytes is None:
        return None
    if known.image_bytes >= SMALL_IMAGE_BYTES:
        return None
    decoded = known.images * known.imgsz**2 * _DECODED_BYTES_PER_PIXEL
    files = f"{known.images:,} images of {known.image_bytes / 1024:.0f} KiB on average cost opening more than reading"
    if known.memory_limit_bytes is None or held_bytes is None:
        return (
            f"{files}: cache='ram' keeps them decoded in up to {gib(decoded)} of memory; a volume local to the node"
            " helps as well"
        )
    free = known.memory_limit_bytes - held_bytes
    if decoded * _CACHE_MARGIN <= free:
        return f"{files}: cache='ram' keeps them decoded in up to {gib(decoded)}, and {gib(free)} of memory are free"
    return (
        f"{files}: a volume local to the node helps; decoded in memory (cache='ram') they would take up to"
        f" {gib(decoded)}, and {gib(max(free, 0))} are free"
    )


def _waits_for_storage(measured: Measurement) -> bool:
    busy = max(measured.iowait_percent or 0.0, measured.io_pressure_percent or 0.0)
    return _waits(measured) and busy > STORAGE_BOUND_PERCENT


def _waits(measured: Measurement) -> bool:
    return (measured.data_wait_percent or 0.0) > DATA_BOUND_PERCENT
