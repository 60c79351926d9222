"""Where a benchmark ran: a time without its machine says nothing."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yolo_airflow_provider.gpus import local
from yolo_airflow_provider.worker.measure import host


@dataclass(frozen=True)
class Machine:
    """What this process may use of the machine, not what is built in.

    Attributes:
        cores: by CPU affinity and the container's quota.
        memory_bytes: the container's limit where there is one.
        processor: the model's name, the architecture where the kernel gives none.
        python: version of the interpreter.
    """

    cores: float
    memory_bytes: int
    processor: str
    python: str

    def __str__(self) -> str:
        memory = self.memory_bytes / 2**30
        return f"{self.cores:g} cores of {self.processor}, {memory:.1f} GiB of memory, Python {self.python}"

    def as_dict(self) -> dict[str, Any]:
        """For the JSON object of a benchmark."""
        return asdict(self)


def this_machine() -> Machine:
    """Read it now."""
    return Machine(
        cores=host.cpu_cores(),
        memory_bytes=local.cpu().memory_bytes or 0,
        processor=processor_name(_text("/proc/cpuinfo")) or platform.machine(),
        python=platform.python_version(),
    )


def processor_name(cpuinfo: str) -> str:
    """The processor's name in the text of /proc/cpuinfo; empty where there is none, as on ARM."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
