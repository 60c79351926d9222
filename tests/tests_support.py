"""What several tests share and no fixture can hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class StateStore(dict[str, Any]):
    """A task's state store without an Airflow behind it; as particular as the real one (task-sdk 1.3)."""

    def set(self, key: str, value: Any) -> None:
        if value is None:
            raise ValueError("Cannot set value as None")
        self[key] = value


class CallbackTrainer:
    """Calls back as Ultralytics' trainer and validator do, and trains nothing."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[Any], None]]] = defaultdict(list)

    def add_callback(self, event: str, function: Callable[[Any], None]) -> None:
        self._callbacks[event].append(function)

    def run(self, *events: str) -> None:
        for event in events:
            for function in self._callbacks[event]:
                function(self)
