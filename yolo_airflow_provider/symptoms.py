"""The texts by which a failure's cause is told: for the error in the worker's hands and for the tail of a pod's log.

Stands on the contract alone, since both the worker and the operators read by it.
"""

from __future__ import annotations

from yolo_airflow_provider.contract import FailureClass

# Lower case, in order: the first that occurs in the text decides. A text of several signs must all occur.
_SIGNS: tuple[tuple[tuple[str, ...], FailureClass], ...] = (
    # A loader process that died on a full /dev/shm (pytorch#5040, ultralytics#1238). First, since torch's own text
    # goes on about memory.
    (("bus error",), FailureClass.SHM),
    (("unable to open shared memory object",), FailureClass.SHM),
    # Lost devices, before memory: their texts contain "out of memory" nowhere, but come first in the log.
    (("failed to initialize nvml: unknown error",), FailureClass.GPU_LOST),
    (("gpu is lost",), FailureClass.GPU_LOST),
    (("fallen off the bus",), FailureClass.GPU_LOST),
    (("cuda-capable device(s) is/are busy or unavailable",), FailureClass.GPU_LOST),
    (("unspecified launch failure",), FailureClass.GPU_LOST),
    # Host memory. The kernel took a loader process and not the training, which then ends with an ordinary exit code:
    # torch's text is the only witness (torch/utils/data, `_error_if_any_worker_fails`; flyte#4704 for others).
    (("dataloader worker", "is killed by signal: killed"), FailureClass.HOST_OOM),
    (("defaultcpuallocator: can't allocate memory",), FailureClass.HOST_OOM),
    (("defaultcpuallocator: not enough memory",), FailureClass.HOST_OOM),
    (("cannot allocate memory",), FailureClass.HOST_OOM),
    # Device memory. On a MIG slice the allocator asks NVML what it may not know, and the out-of-memory shows as
    # this assertion (pytorch#112377, #197312); newer versions have the call in it where older ones have `r`.
    (("cuda out of memory",), FailureClass.GPU_OOM),
    (("outofmemoryerror",), FailureClass.GPU_OOM),
    (("out of memory",), FailureClass.GPU_OOM),
    (("nvml_success ==", "internal assert failed"), FailureClass.GPU_OOM),
    (("cublas_status_alloc_failed",), FailureClass.GPU_OOM),
    (("cudnn_status_internal_error",), FailureClass.GPU_OOM),
    (("unable to find an engine",), FailureClass.GPU_OOM),
    (("no space left on device",), FailureClass.DISK_FULL),
    (("disk quota exceeded",), FailureClass.DISK_FULL),
    # torch.save on a full disk: its archive writer finds less written than it wrote, and no errno is left of it.
    (("inline_container.cc", "unexpected pos"), FailureClass.DISK_FULL),
    (("pytorchstreamwriter failed writing",), FailureClass.DISK_FULL),
)


def classify_text(text: str) -> FailureClass | None:
    """The class that an error text or a log's tail tells, None where it tells none."""
    lowered = text.lower()
    return next((found for signs, found in _SIGNS if all(sign in lowered for sign in signs)), None)
