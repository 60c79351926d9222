"""What this machine offers to a task that runs as a child process: a GPU that NVML names, else the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from yolo_airflow_provider.gpus.accelerator import Accelerator, canonical_product

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def discover() -> Accelerator:
    """The first GPU or MIG slice that NVML shows, `cpu` where there is none.

    The pod of a task sees one device; a machine with several is used one at a time, as Ultralytics' `device=0`.
    """
    return _gpu() or cpu()


def cpu() -> Accelerator:
    """The CPU, with the container's memory limit or the machine's memory as its budget."""
    limits = [limit for limit in map(_limit_bytes, _LIMITS) if limit is not None]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Accelerator(kind="cpu", memory_bytes=min([*limits, machine]))


def _limit_bytes(path: str) -> int | None:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _gpu() -> Accelerator | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None  # no driver, or no permission to ask it
    try:
        if pynvml.nvmlDeviceGetCount() == 0:
            return None
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        product = canonical_product(_text(pynvml.nvmlDeviceGetName(card)))
        slice_handle = _first_slice(card)
        if slice_handle is None:
            return Accelerator(kind="gpu", product=product, memory_bytes=_memory(card))
        # A slice's own name ends in its profile: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
        profile = _text(pynvml.nvmlDeviceGetName(slice_handle)).rpartition("MIG ")[2]
        return Accelerator(kind="mig", product=product, mig_profile=profile, memory_bytes=_memory(slice_handle))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _first_slice(card: Any) -> Any:
    import pynvml

    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(card)
        if not current:
            return None
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
            try:
                return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
            except pynvml.NVMLError_NotFound:
                continue
    except pynvml.NVMLError:
        return None  # the card knows no MIG
    return None


def _memory(handle: Any) -> int | None:
    import pynvml

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        return None


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
