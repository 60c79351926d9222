"""What a pod needs of its node beside the accelerator: CPU, memory and /dev/shm. Pure functions.

A training on a GPU lives in two memories; this is about the other one. On `cpu` the container's memory is the budget
that the batch is planned for, so only CPU and /dev/shm are decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHM_BYTES_PER_IMAGE_PIXEL = 3
"""A loader process hands over images as uint8 with three channels."""
SHM_PREFETCHED_BATCHES = 4
"""Batches a loader process may have ready (Ultralytics 8.4, data/build.py) besides the one in use."""
SHM_LEAST_BYTES = 256 * 2**20

GPU_PROCESS_BYTES = 3 * 2**30
"""Host memory of a training process on a GPU where nothing is measured: torch's CUDA build holds 0.8 GiB once it is
imported, the CUDA context and cuDNN's kernels come on top."""
LOADER_PROCESS_BYTES = 512 * 2**20
"""Of its own, beside what a loader process shares with its parent, and without the batches in /dev/shm."""

MEMORY_MARGIN = 1.25
"""Over the largest peak that was measured."""
AFTER_OUT_OF_MEMORY = 1.5
"""A limit that was too small says nothing about how much too small it was."""


@dataclass(frozen=True)
class HostObservation:
    """What an earlier run of the same profile took of its node.

    Attributes:
        id: of the measurement.
        container_bytes: peak of the whole container's memory that could not be reclaimed, None if not measured.
        process_bytes: peak resident memory of the worker's process alone.
        workers: loader processes that it had.
        cached_bytes: images that it kept in memory.
        limit_bytes: the container's limit.
        out_of_memory: the container ran out of it.
    """

    id: int
    container_bytes: int | None = None
    process_bytes: int | None = None
    workers: int = 0
    cached_bytes: int = 0
    limit_bytes: int | None = None
    out_of_memory: bool = False


@dataclass(frozen=True)
class HostNeed:
    """What a pod asks for.

    Attributes:
        cpu_millicores: requested; never limited, as throttling would only make the slice wait.
        memory_bytes: requested, None to ask for none; with `shared_bytes` in it.
        limited: the memory is the container's limit too.
        shared_bytes: size of /dev/shm, 0 for what the runtime gives (64 MiB).
        why: where the memory comes from, for people.
    """

    cpu_millicores: int
    memory_bytes: int | None
    limited: bool
    shared_bytes: int = 0
    why: str = ""


def cpu_task(memory_bytes: int) -> HostNeed:
    """A task of one process without a budget: a request to be placed by, and no limit to die of."""
    return HostNeed(cpu_millicores=1000, memory_bytes=memory_bytes, limited=False, why="a fixed request")


def shared_bytes(*, batch: int, imgsz: int, workers: int, too_small: int = 0) -> int:
    """Size of /dev/shm for the loader's batches; the runtime's default of 64 MiB ends in a bus error.

    Args:
        batch: images a step.
        imgsz: side of the square input, pixels.
        workers: loader processes; without them nothing is handed over in /dev/shm.
        too_small: tries of this task that ran out of it; each doubles the size.
    """
    if not workers:
        return 0
    batches = workers * SHM_PREFETCHED_BATCHES + 2
    needed = max(SHM_LEAST_BYTES, batch * imgsz * imgsz * SHM_BYTES_PER_IMAGE_PIXEL * batches)
    return int(needed * 2**too_small)


def training(
    kind: str,
    *,
    workers: int,
    shared: int,
    cached_bytes: int = 0,
    observations: Sequence[HostObservation] = (),
) -> HostNeed:
    """What a training or a probe asks for.

    Args:
        kind: of the accelerator. On `cpu` Ultralytics loads in the training process, and the budget is the memory.
        workers: loader processes.
        shared: bytes of /dev/shm. It is a memory volume and counts into the container's limit.
        cached_bytes: images that the run keeps in memory.
        observations: of the same profile.
    """
    if kind == "cpu":
        return HostNeed(cpu_millicores=1000, memory_bytes=None, limited=True)
    needed, why = _measured(workers, shared, cached_bytes, observations)
    if not needed:
        needed = GPU_PROCESS_BYTES + workers * LOADER_PROCESS_BYTES + shared + cached_bytes
        why = "nothing measured yet, a fixed estimate"
    failed = max((seen for seen in observations if seen.out_of_memory), key=_limit, default=None)
    if failed is not None and (least := int(_limit(failed) * AFTER_OUT_OF_MEMORY)) > needed:
        needed, why = least, f"{_gib(_limit(failed))} were too little (measurement {failed.id})"
    return HostNeed(
        cpu_millicores=1000 * (workers + 1), memory_bytes=needed, limited=True, shared_bytes=shared, why=why
    )


def _measured(workers: int, shared: int, cached_bytes: int, observations: Sequence[HostObservation]) -> tuple[int, str]:
    """The largest peak with its margin, and with what this run has beyond that one; 0 where there is none.

    The container's peak holds its loader processes and what was used of /dev/shm, the process's does not; the limit
    must hold all of it.
    """
    peaks = []
    for seen in observations:
        if seen.out_of_memory or not seen.process_bytes:
            continue
        cached = max(0, cached_bytes - seen.cached_bytes)
        more = max(0, workers - seen.workers) * LOADER_PROCESS_BYTES + cached
        alone = int(seen.process_bytes * MEMORY_MARGIN) + workers * LOADER_PROCESS_BYTES + shared + cached
        if seen.container_bytes is None:
            peaks.append((alone, seen))
        else:
            together = int(seen.container_bytes * MEMORY_MARGIN) + more
            peaks.append((max(together, int(seen.process_bytes * MEMORY_MARGIN) + shared), seen))
    if not peaks:
        return 0, ""
    needed, largest = max(peaks, key=lambda peak: peak[0])
    peak = max(largest.container_bytes or 0, largest.process_bytes or 0)
    return needed, f"{_gib(peak)} measured (measurement {largest.id})"


def _limit(seen: HostObservation) -> int:
    return seen.limit_bytes or 0


def _gib(memory_bytes: int) -> str:
    return f"{memory_bytes / 2**30:.2f} GiB"
