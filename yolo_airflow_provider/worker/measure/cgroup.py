"""What the container itself is charged: memory that cannot be taken back, and how often its CPU limit stopped it.

Read from the cgroup, version 2 (one folder) or 1 (a folder a controller), as a container sees it under /sys/fs/cgroup.
The functions that read texts are pure; every reading is None where it cannot be had.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from yolo_airflow_provider.contract import PARENT_VARIABLE

SAMPLE_SECONDS = 1.0
"""Least time between two samples of a run. Reading memory.stat makes the kernel add up its per-CPU counters."""

_ROOT = Path("/sys/fs/cgroup")
_MEMORY = ("memory.stat", "memory/memory.stat")
_LIMIT = ("memory.max", "memory/memory.limit_in_bytes")
_CPU = ("cpu.stat", "cpu/cpu.stat", "cpu,cpuacct/cpu.stat")


@dataclass(frozen=True)
class CpuPeriods:
    """How many scheduling periods a container with a CPU limit had work in, and in how many of them it was stopped."""

    periods: int
    throttled: int


def unreclaimable_bytes(memory_stat: str) -> int | None:
    """Memory in a `memory.stat` that no reclaim gives back: anonymous pages, and those of /dev/shm and other tmpfs.

    Version 2 calls the first `anon`. Version 1 calls it `rss` (anonymous and swap cache, without shmem), and `total_`
    before a name adds the groups below, as version 2 does by itself. Old kernels of version 1 list no shmem.

    memory.peak (version 1: memory.max_usage_in_bytes) is no substitute. It counts the page cache, which the kernel
    keeps for as long as nobody else wants the memory: whatever reads a data set reaches any limit by it.
    """
    fields = _fields(memory_stat)
    if "anon" in fields:
        return fields["anon"] + fields.get("shmem", 0)
    prefix = "total_" if "total_rss" in fields else ""
    if f"{prefix}rss" in fields:
        return fields[f"{prefix}rss"] + fields.get(f"{prefix}shmem", 0)
    return None


def cpu_periods(cpu_stat: str) -> CpuPeriods | None:
    """Periods of a `cpu.stat`; both versions write the same two names. None where the group has no such counters."""
    fields = _fields(cpu_stat)
    if "nr_periods" not in fields or "nr_throttled" not in fields:
        return None
    return CpuPeriods(fields["nr_periods"], fields["nr_throttled"])


def limit_bytes(limit: str) -> int | None:
    """The limit in a `memory.max` or `memory.limit_in_bytes`, None for "no limit".

    Version 2 writes `max`, version 1 the largest multiple of a page in 63 bits.
    """
    text = limit.strip()
    return int(text) if text.isdigit() and int(text) < 2**60 else None


def read_unreclaimable_bytes() -> int | None:
    """Memory that the container holds now and cannot give back; None outside a container with a memory limit.

    Without a limit the group is the whole machine's, or one that others are in too.
    """
    if _is_shared() or read_limit_bytes() is None:
        return None
    return unreclaimable_bytes(_first(_MEMORY))


def read_limit_bytes() -> int | None:
    """The container's memory limit, None where there is none."""
    return limit_bytes(_first(_LIMIT))


def read_cpu_periods() -> CpuPeriods | None:
    """The container's scheduling periods so far; they count only where it has a CPU limit."""
    return None if _is_shared() else cpu_periods(_first(_CPU))


class MemoryPeak:
    """The largest `unreclaimable_bytes` of a run, as far as samples tell: a lower bound of the true one.

    Unlike the process's own peak it counts the loader's processes, pages that they share once, and /dev/shm.

    Args:
        read: one sample.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        read: Callable[[], int | None] = read_unreclaimable_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._next_seconds = float("-inf")
        self.bytes: int | None = None
        """None until a sample was to be had."""

    def sample(self) -> None:
        """Sample, unless the last one was less than `SAMPLE_SECONDS` ago."""
        if self._clock() >= self._next_seconds:
            self.sample_now()

    def sample_now(self) -> None:
        """Sample in any case; for the edges of phases, where memory is largest or about to be given back."""
        self._next_seconds = self._clock() + SAMPLE_SECONDS
        held = self._read()
        if held is not None:
            self.bytes = max(held, self.bytes or 0)


def _is_shared() -> bool:
    """A local run is a process in the container of an Airflow worker, beside every other task that it runs."""
    return bool(os.environ.get(PARENT_VARIABLE))


def _first(names: tuple[str, ...]) -> str:
    for name in names:
        try:
            return (_ROOT / name).read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
    return ""


def _fields(stat: str) -> dict[str, int]:
    pairs = (line.split() for line in stat.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
