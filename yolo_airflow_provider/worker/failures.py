"""Why a job failed: one exception that carries the class, and the class of any other."""

from __future__ import annotations

import errno

from yolo_airflow_provider.contract import Failure, FailureClass
from yolo_airflow_provider.symptoms import classify_text

_HINTS = {
    FailureClass.GPU_OOM: "the next try plans with this measured, and takes a smaller batch; or ask for a larger slice",
    FailureClass.HOST_OOM: "the next try plans with this measured, and takes a smaller batch; or give more memory",
    FailureClass.SHM: "make /dev/shm larger (a memory emptyDir) or use fewer data loader workers",
    FailureClass.DISK_FULL: "free space on the workspace volume, or give it a larger one",
    FailureClass.GPU_LOST: "the device went away; the next try resumes from the last whole epoch",
    FailureClass.PREEMPTED: "the next try resumes from the last whole epoch",
}


class JobError(Exception):
    """The job cannot go on.

    Attributes:
        failure_class: what kind of failure it is.
        hint: what to do about it.
        stage: `setup`, `train`, `validate`, `probe`, `export`, ...
        needed_bytes: memory that was reached or asked for, where it is known.
    """

    def __init__(
        self,
        failure_class: FailureClass,
        message: str,
        *,
        hint: str = "",
        stage: str = "",
        needed_bytes: int | None = None,
    ) -> None:
        super().__init__(message)
        self.failure_class = failure_class
        self.hint = hint or _HINTS.get(failure_class, "")
        self.stage = stage
        self.needed_bytes = needed_bytes


def classify(error: BaseException) -> FailureClass:
    """The class of any exception, by its type first and its text second."""
    if isinstance(error, JobError):
        return error.failure_class
    if isinstance(error, MemoryError):
        return FailureClass.HOST_OOM
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FailureClass.DISK_FULL
    declared = getattr(error, "failure_class", None)
    if isinstance(declared, FailureClass):
        return declared
    return classify_text(f"{type(error).__name__}: {error}") or FailureClass.CODE


def describe_failure(error: BaseException, *, stage: str, budget_bytes: int | None = None) -> Failure:
    """The failure as the result carries it: the error's own first words, and what to do."""
    found = classify(error)
    known = isinstance(error, JobError) or hasattr(error, "failure_class")
    return Failure(
        failure_class=found,
        message=str(error) if known else f"{type(error).__name__}: {error}",
        hint=getattr(error, "hint", "") or _HINTS.get(found, ""),
        stage=getattr(error, "stage", "") or stage,
        needed_bytes=getattr(error, "needed_bytes", None),
        budget_bytes=budget_bytes,
    )
