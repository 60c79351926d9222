"""The one error of this package: a data set that cannot be used, and what to do about it."""

from __future__ import annotations

from yolo_airflow_provider.contract import FailureClass


class DatasetError(ValueError):
    """A data set that cannot be trained on, or cannot be prepared.

    Attributes:
        message: what is wrong, with the file, the key or line, and the value.
        hint: what to do about it.
        failure_class: `DATA`, or `DISK_FULL` where the workspace has no room.
    """

    def __init__(self, message: str, hint: str = "", *, failure_class: FailureClass = FailureClass.DATA) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.failure_class = failure_class
