"""Typed failures of the operators, one class each; import them for an Airflow `retry_policy`.

Every message names what happened with its numbers in its first line, and what to do after it.
"""

from __future__ import annotations

from typing import ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from yolo_airflow_provider.contract import Failure, FailureClass


class YoloError(AirflowException):
    """A run failed; Airflow retries it as the task's `retries` say.

    Attributes:
        failure: the failure as it was recorded, None where the operator itself refused.
    """

    failure_class: ClassVar[FailureClass]

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


class YoloRefusal(YoloError, AirflowFailException):
    """A failure that a retry cannot mend: Airflow fails the task at once and never consults a retry policy."""


class GpuOutOfMemory(YoloError):
    """The device's memory did not hold the training. A retry plans with that measured."""

    failure_class = FailureClass.GPU_OOM


class HostOutOfMemory(YoloError):
    """The container's memory, or on `cpu` the budget, did not hold it. A retry plans with that measured."""

    failure_class = FailureClass.HOST_OOM


class SharedMemoryTooSmall(YoloError):
    """/dev/shm was too small for the data loader."""

    failure_class = FailureClass.SHM


class DiskFull(YoloError):
    """No space on the workspace volume."""

    failure_class = FailureClass.DISK_FULL


class GpuLost(YoloError):
    """The device went away under the run. A retry keeps the plan and resumes."""

    failure_class = FailureClass.GPU_LOST


class Preempted(YoloError):
    """The run was stopped from outside. A retry keeps the plan and resumes."""

    failure_class = FailureClass.PREEMPTED


class Unschedulable(YoloError):
    """No node could take the pod."""

    failure_class = FailureClass.UNSCHEDULABLE


class ImageNotStarted(YoloError):
    """The container's image could not be pulled or started."""

    failure_class = FailureClass.IMAGE


class BadInput(YoloRefusal):
    """The data set, the model or a parameter is at fault; a retry changes nothing."""

    failure_class = FailureClass.DATA


class DoesNotFit(BadInput):
    """Not even the smallest batch fits the accelerator."""


class RunFailed(YoloError):
    """The run raised an error of its own."""

    failure_class = FailureClass.CODE


class ResultLost(YoloError):
    """The run ended and no result was read. A retry re-reports a finished run from its folder."""

    failure_class = FailureClass.LOST


_CLASSES: dict[FailureClass, type[YoloError]] = {
    error.failure_class: error
    for error in (
        GpuOutOfMemory,
        HostOutOfMemory,
        SharedMemoryTooSmall,
        DiskFull,
        GpuLost,
        Preempted,
        Unschedulable,
        ImageNotStarted,
        BadInput,
        RunFailed,
        ResultLost,
    )
}


def error_of(failure: Failure, *, where: str) -> YoloError:
    """The typed exception of a failure; `where` names the task and try it happened in."""
    hint = f"\n{failure.hint}" if failure.hint else ""
    return _CLASSES[failure.failure_class](f"{failure.failure_class}: {failure.message} ({where}){hint}", failure)
