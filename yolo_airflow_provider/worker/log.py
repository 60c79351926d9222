"""The worker's log: short plain lines on standard output, which Airflow shows in the task's log."""

from __future__ import annotations


def say(line: str) -> None:
    """Write one line and flush it, so that it is seen while the work goes on."""
    print(line, flush=True)


def gib(memory_bytes: float | None) -> str:
    """Memory for people: `3.42 GiB`, or `?` where it was not measured."""
    return "?" if memory_bytes is None else f"{memory_bytes / 2**30:.2f} GiB"


def duration(seconds: float) -> str:
    """Time for people: `48 s`, `12 min`, `3 h 20 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
