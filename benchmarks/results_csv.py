"""Ultralytics' `results.csv`: one row an epoch, `time` in seconds since the training's start."""

from __future__ import annotations

import csv
from itertools import pairwise

_TIME = "time"


def epoch_seconds(text: str) -> tuple[float, ...]:
    """Seconds of every epoch but the first, which holds what happens only once.

    Raises:
        ValueError: fewer than two epochs, or no column `time`.
    """
    head, rows = _read(text)
    if _TIME not in head or len(rows) < 2:
        raise ValueError(f"results.csv needs a column {_TIME!r} and two epochs, has {head} and {len(rows)}")
    times = [float(row[head.index(_TIME)]) for row in rows]
    return tuple(later - earlier for earlier, later in pairwise(times))


def outcomes(text: str) -> tuple[tuple[str, ...], ...]:
    """Every row without its time: losses, metrics and learning rates as they were written."""
    head, rows = _read(text)
    return tuple(tuple(cell for name, cell in zip(head, row, strict=True) if name != _TIME) for row in rows)


def _read(text: str) -> tuple[list[str], list[list[str]]]:
    # Releases differ in padding the columns with spaces.
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    return (rows[0], rows[1:]) if rows else ([], [])
