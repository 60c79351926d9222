"""Why a job failed: an exception that carries the class, one for SIGTERM, and the class of any other."""

from __future__ import annotations

import errno

from yolo_airflow_provider.contract import Failure, FailureClass
from yolo_airflow_provider.symptoms import classify_text

_HINTS = {
    FailureClass.GPU_OOM: "the next try plans with this measured, and takes a smaller batch; or ask for a larger slice",
    FailureClass.SHM: "make /dev/shm larger (a memory emptyDir) or use fewer data loader workers",
    FailureClass.DISK_FULL: "free space on the workspace volume, or give it a larger one",
}
_GOES_ON = {
    "train": "the next try resumes from the last whole epoch",
    "probe": "the next try keeps the points that were measured and goes on with the others",
}


def hint_of(failure_class: FailureClass, *, job: str, on_cpu: bool) -> str:
    """What to do about a failure that says nothing of its own; empty where there is nothing to say.

    Args:
        failure_class: what kind of failure it is.
        job: `train`, `probe`, ...; what the next try does depends on it.
        on_cpu: whether host memory is what the batch is planned for.
    """
    if failure_class is FailureClass.HOST_OOM:
        if job not in _GOES_ON:
            return "give the task more memory"
        if on_cpu:
            return "the next try plans with this measured, and takes a smaller batch; or give more memory"
        return "the next try keeps the batch and is given more host memory; or use fewer data loader workers"
    goes_on = _GOES_ON.get(job, "the next try does it again")
    if failure_class is FailureClass.GPU_LOST:
        return f"the device went away; {goes_on}"
    return goes_on if failure_class is FailureClass.PREEMPTED else _HINTS.get(failure_class, "")


class JobError(Exception):
    """The job cannot go on.

    Attributes:
        failure_class: what kind of failure it is.
        hint: what to do about it; empty for what `hint_of` says of the class.
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
        self.hint = hint
        self.stage = stage
        self.needed_bytes = needed_bytes


class Stopped(BaseException):
    """SIGTERM. No `Exception`, so that nothing between its place and the job's answer takes it for something else.

    Attributes:
        failure_class: `PREEMPTED`.
        stage: as of a `JobError`.
    """

    failure_class = FailureClass.PREEMPTED

    def __init__(self, *, stage: str = "") -> None:
        super().__init__("the run was asked to stop (SIGTERM)")
        self.stage = stage


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


def describe_failure(error: BaseException, *, job: str, on_cpu: bool, budget_bytes: int | None = None) -> Failure:
    """The failure as the result carries it: the error's own first words, and what to do."""
    found = classify(error)
    known = isinstance(error, JobError) or hasattr(error, "failure_class")
    return Failure(
        failure_class=found,
        message=str(error) if known else f"{type(error).__name__}: {error}",
        hint=getattr(error, "hint", "") or hint_of(found, job=job, on_cpu=on_cpu),
        stage=getattr(error, "stage", "") or job,
        needed_bytes=getattr(error, "needed_bytes", None),
        budget_bytes=budget_bytes,
    )
