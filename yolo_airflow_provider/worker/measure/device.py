"""Memory of the device that a run computes on: CUDA's figures on a GPU or slice, the process's own on `cpu`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal, Protocol

import torch

from yolo_airflow_provider.contract import Accelerator, Environment
from yolo_airflow_provider.worker.measure import host


@dataclass(frozen=True)
class MemoryPeak:
    """Peaks since the last reset, bytes; None where the device has no such figure."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None


class Device(Protocol):
    """What the instrument asks of a device."""

    torch_name: str

    def reset_peak(self) -> None:
        """Start a new peak at what is held now."""

    def peak(self) -> MemoryPeak:
        """Peaks since the last reset."""

    def release(self) -> None:
        """Give back what is cached, so that the next measurement starts from what is needed."""

    def environment(self) -> Environment:
        """What the device says it is."""


class Cpu:
    """The process's own resident memory is the device memory."""

    torch_name = "cpu"

    def reset_peak(self) -> None:
        """Start a new peak at what is resident now."""
        host.reset_peak_rss()

    def peak(self) -> MemoryPeak:
        """The kernel's high-water mark."""
        return MemoryPeak(None, None, host.peak_rss_bytes())

    def release(self) -> None:
        """Collect garbage and hand free heap back to the kernel."""
        gc.collect()
        _trim_heap()

    def environment(self) -> Environment:
        """The container's limit and cores."""
        return Environment(
            kind="cpu", memory_bytes=host.memory_limit_bytes(), cpu_cores=host.cpu_cores(), **_software()
        )


class Cuda:
    """Device 0 of the container: the whole GPU or the one slice that it was given."""

    torch_name = "0"

    def __init__(self, kind: Literal["gpu", "mig"]) -> None:
        self._kind: Literal["gpu", "mig"] = kind
        torch.cuda.init()

    def reset_peak(self) -> None:
        """Start new peaks of torch's allocator."""
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> MemoryPeak:
        """Allocated and reserved peaks; device use is the reserved peak plus what lies outside the allocator now.

        `mem_get_info` has no peak of its own. The part outside torch's allocator (CUDA context, libraries'
        workspaces) hardly changes once training runs, so it is added to the reserved peak.
        """
        free, total = torch.cuda.mem_get_info()
        reserved_peak = torch.cuda.max_memory_reserved()
        outside = max(total - free - torch.cuda.memory_reserved(), 0)
        return MemoryPeak(torch.cuda.max_memory_allocated(), reserved_peak, reserved_peak + outside)

    def release(self) -> None:
        """Empty torch's cache."""
        gc.collect()
        torch.cuda.empty_cache()

    def environment(self) -> Environment:
        """Product, usable memory and multiprocessors; on a slice these are the slice's."""
        properties = torch.cuda.get_device_properties(0)
        return Environment(
            kind=self._kind,
            product=properties.name[:128],
            memory_bytes=properties.total_memory,
            multiprocessors=properties.multi_processor_count,
            cpu_cores=host.cpu_cores(),
            **_software(),
        )


def open_device(accelerator: Accelerator) -> Device:
    """The device that the job was given.

    Raises:
        RuntimeError: a GPU was promised and CUDA finds none.
    """
    if accelerator.kind == "cpu":
        return Cpu()
    return Cuda(accelerator.kind)


def _software() -> dict[str, str]:
    return {
        "node": host.node_name(),
        "torch": torch.__version__,
        "ultralytics": version("ultralytics"),
    }


def _trim_heap() -> None:
    """Glibc keeps freed heap; malloc_trim(3) gives it back. Elsewhere nothing happens."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
