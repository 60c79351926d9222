"""A command in a process of its own, measured from outside."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECK_SECONDS = 0.05
_LOG_TAIL = 3000


@dataclass(frozen=True)
class Used:
    """What a process took, from its start to its end.

    Attributes:
        seconds: on the wall clock.
        cpu_seconds: user and system time.
        peak_rss_bytes: the highest resident memory that was seen.
    """

    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int


def run_measured(command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path) -> Used:
    """Run a command to its end, its output in a file, and measure it.

    The peak is the highest of frequent readings of the kernel's own high-water mark. wait4's ru_maxrss is no measure
    here: it is the same mark as it stands at the end, and a process may set it back (proc(5), clear_refs), as the
    worker does between the phases of a training. Between two readings the mark keeps the peak, so only a peak within
    `CHECK_SECONDS` before such a reset is missed.

    Args:
        command: to run.
        environment: the whole of the process's environment.
        folder: to run it in.
        log: takes stdout and stderr; its end is in the message of a failure.

    Raises:
        RuntimeError: the command failed.
    """
    peak = 0
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, high_water_bytes(_status(process.pid)))
            time.sleep(CHECK_SECONDS)
        # Popen does not know that its process was waited for here.
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    return Used(
        seconds=time.monotonic() - started,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_rss_bytes=peak,
    )


def high_water_bytes(status: str) -> int:
    """VmHWM in the text of /proc/PID/status; 0 where there is none, as of a process that has just ended."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """An environment without what configures Airflow or Ultralytics: both sides start from the same."""
    configuring = ("AIRFLOW", "_AIRFLOW", "YOLO_", "ULTRALYTICS_")
    return {name: value for name, value in variables.items() if not name.startswith(configuring)}
