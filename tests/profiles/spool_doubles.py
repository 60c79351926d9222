"""What stands in for a task's log, and for a store that is in trouble."""

from __future__ import annotations

from typing import Any, cast

from yolo_airflow_provider.profiles.errors import StoreUnavailable
from yolo_airflow_provider.profiles.store import ProfileStore

AWAY = StoreUnavailable("no database for 120 s:\nconnection refused")


class Lines(list[str]):
    """A log: what was said, each with its level."""

    def _say(self, level: str, message: str, *values: Any) -> None:
        self.append(f"{level} {message % values}")

    def info(self, message: str, /, *values: Any) -> None:
        self._say("info", message, *values)

    def warning(self, message: str, /, *values: Any) -> None:
        self._say("warning", message, *values)

    def error(self, message: str, /, *values: Any) -> None:
        self._say("error", message, *values)


class Fails:
    """A store whose writes fail from the n-th on; what it took before is in `taken`."""

    def __init__(self, error: Exception, *, after: int = 0) -> None:
        self.error = error
        self.after = after
        self.asked = 0
        self.released = 0
        self.taken: list[Any] = []

    def record(self, measurements: Any, epochs: Any = (), models: Any = ()) -> None:
        self._take((measurements, epochs, models))

    def decide(self, row: Any) -> None:
        self._take(row)

    def release(self) -> None:
        self.released += 1

    def _take(self, rows: Any) -> None:
        self.asked += 1
        if self.asked > self.after:
            raise self.error
        self.taken.append(rows)

    @property
    def as_store(self) -> ProfileStore:
        return cast(ProfileStore, self)
