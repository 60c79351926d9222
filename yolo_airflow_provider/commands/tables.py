"""What commands print: a table for people, JSON for programs, and the units of both."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """What a column shows of a row.

    Attributes:
        show: the text; empty for what was not measured.
        is_number: it stands on the right.
    """

    show: Callable[[Row], str]
    is_number: bool = False


Columns = Mapping[str, Cell]
"""The columns of a table by their titles, from the left."""

_LONGEST_CELL = 60


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame as plain Python values; None is "not measured"."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(name): _plain(value) for name, value in row.items()} for row in plain.to_dict("records")]


def print_json(value: object) -> None:
    """Print one JSON value."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=_in_json))


def print_table(columns: Columns, rows: Sequence[Row], *, empty: str) -> None:
    """Print a table.

    Args:
        columns: from the left.
        rows: from the top.
        empty: what to say when there are none.
    """
    if not rows:
        print(empty)
        return
    from tabulate import tabulate

    cells = [[printable(cell.show(row)) for cell in columns.values()] for row in rows]
    sides = ["right" if cell.is_number else "left" for cell in columns.values()]
    print(tabulate(cells, list(columns), tablefmt="simple", disable_numparse=True, colalign=sides))


def printable(text: str) -> str:
    """One line of a text that came from anywhere: no control characters, no more than fits a cell."""
    lines = text.strip().splitlines()
    first = "".join("?" if unicodedata.category(c)[0] == "C" else c for c in (lines[0] if lines else ""))
    return first if len(first) <= _LONGEST_CELL else f"{first[: _LONGEST_CELL - 3]}..."


def text(name: str) -> Cell:
    """Shows a value as it is."""
    return Cell(_shown(name, str))


def count(name: str) -> Cell:
    """Shows a whole number."""
    return Cell(_shown(name, str), is_number=True)


def number(name: str, digits: int = 1) -> Cell:
    """Shows a number with so many decimals."""
    return Cell(_shown(name, lambda value: f"{value:.{digits}f}"), is_number=True)


def memory(name: str) -> Cell:
    """Shows bytes in GiB or MiB."""
    return Cell(_shown(name, memory_text), is_number=True)


def seconds(name: str) -> Cell:
    """Shows a duration in a unit that fits it."""
    return Cell(_shown(name, seconds_text), is_number=True)


def moment(name: str) -> Cell:
    """Shows a time in UTC, to the minute."""
    return Cell(_shown(name, moment_text))


def memory_text(memory_bytes: float) -> str:
    """`3.00 GiB`, `512.0 MiB`."""
    return f"{memory_bytes / 2**30:.2f} GiB" if abs(memory_bytes) >= 2**30 else f"{memory_bytes / 2**20:.1f} MiB"


def seconds_text(duration_seconds: float) -> str:
    """`7.5 s`, `12.0 min`, `3.4 h`."""
    if abs(duration_seconds) < 120:
        return f"{duration_seconds:.1f} s"
    return f"{duration_seconds / 60:.1f} min" if abs(duration_seconds) < 7200 else f"{duration_seconds / 3600:.1f} h"


def moment_text(value: date) -> str:
    """`2026-05-04 12:30`, in UTC; a date by itself as it is."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M") if isinstance(value, datetime) else value.isoformat()


def device_text(row: Row) -> str:
    """What a row ran on: `cpu`, `1x 1g.5gb of NVIDIA-A100-SXM4-40GB`."""
    kind = row.get("accelerator_kind")
    if kind is None:
        return ""
    from yolo_airflow_provider.gpus.accelerator import Accelerator

    return Accelerator(kind=kind, product=row.get("product") or "", mig_profile=row.get("mig_profile") or "").label


def _shown(name: str, show: Callable[[Any], str]) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = row.get(name)
        return "" if value is None else show(value)

    return cell


def _plain(value: Any) -> Any:
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


def _in_json(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
