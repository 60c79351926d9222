"""Outside a container nothing stops a process at its memory budget; this guard does, as the kernel would."""

from __future__ import annotations

import threading
from collections.abc import Callable

from yolo_airflow_provider.worker.measure import host

CHECK_SECONDS = 0.1
"""Ten readings of /proc/self/statm a second cost about 0.01 % of a core."""


class BudgetGuard:
    """A daemon thread that calls `over` once, when resident memory passes the budget.

    A batch that does not fit allocates gigabytes within a second or two, so a check every 0.1 s ends it before
    the machine suffers. The thread needs the interpreter lock for microseconds only.
    """

    def __init__(self, budget_bytes: int, over: Callable[[int], None]) -> None:
        self._budget_bytes = budget_bytes
        self._over = over
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-budget", daemon=True)

    def __enter__(self) -> BudgetGuard:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(CHECK_SECONDS):
            used = host.rss_bytes()
            if used is not None and used > self._budget_bytes:
                self._over(used)
                return
