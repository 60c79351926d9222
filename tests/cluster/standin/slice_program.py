"""What a pod's container runs where there is no GPU: the worker, on a device that says it is the slice of its job.

The fake is at the outermost boundary, the device; it computes on the CPU. YOLO_STANDIN_FAULT makes it fail once a
run: `gpu_lost:2` and `gpu_oom:2` in epoch 2 by the texts that PyTorch raises, `host_memory:2` for real, by taking the
container's memory until the kernel ends it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

JOB = json.loads(os.environ.get("YOLO_JOB") or "{}")
TEXTS = {
    "gpu_lost": "Failed to initialize NVML: Unknown Error",
    # How an out-of-memory shows on a slice: pytorch#112377.
    "gpu_oom": 'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1016',
}


def stand_in_for_a_slice() -> None:
    """Replace what opens the device."""
    from yolo_airflow_provider.contract import Environment
    from yolo_airflow_provider.worker.measure import device

    class Slice(device.Cpu):
        # Ultralytics strips the blank and takes the CPU; the worker sees a device that is not called `cpu`.
        torch_name = " cpu"

        def __init__(self, accelerator: object) -> None:
            self._accelerator = accelerator
            self._fault, _, epoch = os.environ.get("YOLO_STANDIN_FAULT", "").partition(":")
            self._epoch = int(epoch or 0)

        def reset_peak(self) -> None:
            super().reset_peak()
            folder = Path(JOB["run_folder"])
            epochs, marker = folder / "epochs.jsonl", folder / "fault-happened"
            done = len(epochs.read_text(encoding="utf-8").splitlines()) if epochs.exists() else 0
            if self._fault and done >= self._epoch - 1 and not marker.exists():
                marker.touch()
                held = []
                while self._fault == "host_memory":
                    held.append(b"\1" * 2**26)
                raise RuntimeError(TEXTS[self._fault])

        def environment(self) -> Environment:
            given = self._accelerator
            return (
                super()
                .environment()
                .model_copy(
                    update={
                        "kind": given.kind,
                        "product": f"{given.product} {given.mig_profile}".strip(),
                        "memory_bytes": given.memory_budget_bytes,
                        "multiprocessors": 14,
                    }
                )
            )

    original = device.open_device
    device.open_device = lambda accelerator: original(accelerator) if accelerator.kind == "cpu" else Slice(accelerator)


if JOB.get("job", {}).get("kind") in ("train", "probe") and JOB["accelerator"]["kind"] != "cpu":
    stand_in_for_a_slice()

from yolo_airflow_provider.worker.job import main  # noqa: E402

sys.exit(main())
