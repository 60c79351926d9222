"""Readings of the host from /proc and the cgroup. Every reading is optional: None where it cannot be had."""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from yolo_airflow_provider.worker.measure import cgroup

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def rss_bytes() -> int | None:
    """Resident memory of this process."""
    fields = _text("/proc/self/statm").split()
    return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else None


def peak_rss_bytes() -> int | None:
    """The kernel's high-water mark of this process's resident memory since the last `reset_peak_rss`."""
    for line in _text("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def reset_peak_rss() -> bool:
    """Set the high-water mark back to what is resident now (proc(5), clear_refs 5). False where not allowed."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def node_name() -> str:
    """The node: in a pod the downward API may name it, the host name is the pod's."""
    return os.environ.get("NODE_NAME", platform.node())[:128]


def memory_limit_bytes() -> int | None:
    """The cgroup's memory limit, None where there is none."""
    return cgroup.read_limit_bytes()


def cpu_cores() -> float:
    """Cores that this process may use: the cgroup's quota where there is one, else its CPU affinity."""
    affinity = float(len(os.sched_getaffinity(0)))
    quota = _text("/sys/fs/cgroup/cpu.max").split()
    if len(quota) != 2:
        quota = [
            _text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip(),
            _text("/sys/fs/cgroup/cpu/cpu.cfs_period_us").strip(),
        ]
    if quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        return min(affinity, int(quota[0]) / int(quota[1]))
    return affinity


@dataclass(frozen=True)
class HostCounters:
    """Counters that only grow; two of them make a `HostUse`."""

    at_seconds: float
    cpu_seconds: float
    node_ticks: int | None
    node_iowait_ticks: int | None
    io_stall_seconds: float | None
    memory_stall_seconds: float | None
    read_bytes: int | None
    written_bytes: int | None
    cpu_periods: cgroup.CpuPeriods | None = None


@dataclass(frozen=True)
class HostUse:
    """What was used between two readings; percentages are 0 to 100, `cpu_percent` 100 a core."""

    seconds: float
    cpu_percent: float | None
    iowait_percent: float | None
    io_pressure_percent: float | None
    memory_pressure_percent: float | None
    read_bytes: int | None
    written_bytes: int | None
    throttled_percent: float | None = None
    """Of the container's scheduling periods; None where it has no CPU limit."""


def read_counters() -> HostCounters:
    """Read all counters now; takes well under a millisecond."""
    ticks = [int(field) for field in _text("/proc/stat").partition("\n")[0].split()[1:9]]
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    io = dict(line.split(": ") for line in _text("/proc/self/io").splitlines() if ": " in line)
    return HostCounters(
        at_seconds=time.monotonic(),
        cpu_seconds=own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        node_ticks=sum(ticks) if len(ticks) > 4 else None,
        node_iowait_ticks=ticks[4] if len(ticks) > 4 else None,
        io_stall_seconds=_stall_seconds("io"),
        memory_stall_seconds=_stall_seconds("memory"),
        read_bytes=int(io["read_bytes"]) if "read_bytes" in io else None,
        written_bytes=int(io["write_bytes"]) if "write_bytes" in io else None,
        cpu_periods=cgroup.read_cpu_periods(),
    )


def _stall_seconds(what: str) -> float | None:
    """Total of the line `some` of pressure stall information: the cgroup's own, else the node's."""
    for path in (f"/sys/fs/cgroup/{what}.pressure", f"/proc/pressure/{what}"):
        for line in _text(path).splitlines():
            if line.startswith("some ") and "total=" in line:
                return int(line.rpartition("total=")[2]) / 1e6
    return None


def use_between(before: HostCounters, after: HostCounters) -> HostUse:
    """What was used from `before` to `after`."""
    seconds = max(after.at_seconds - before.at_seconds, 1e-9)
    ticks = _difference(before.node_ticks, after.node_ticks)
    iowait = _difference(before.node_iowait_ticks, after.node_iowait_ticks)
    return HostUse(
        seconds=seconds,
        cpu_percent=100 * (after.cpu_seconds - before.cpu_seconds) / seconds,
        iowait_percent=_percent(iowait, ticks),
        io_pressure_percent=_percent(_difference(before.io_stall_seconds, after.io_stall_seconds), seconds),
        memory_pressure_percent=_percent(_difference(before.memory_stall_seconds, after.memory_stall_seconds), seconds),
        read_bytes=_whole(_difference(before.read_bytes, after.read_bytes)),
        written_bytes=_whole(_difference(before.written_bytes, after.written_bytes)),
        throttled_percent=_throttled_percent(before.cpu_periods, after.cpu_periods),
    )


def _throttled_percent(before: cgroup.CpuPeriods | None, after: cgroup.CpuPeriods | None) -> float | None:
    if before is None or after is None:
        return None
    return _percent(
        _difference(before.throttled, after.throttled),
        _difference(before.periods, after.periods),
    )


def _difference(before: float | None, after: float | None) -> float | None:
    # /proc/stat's iowait may step back by a tick (proc(5)); less than nothing is nothing.
    return None if before is None or after is None else max(after - before, 0)


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else min(100.0, 100 * part / whole)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
