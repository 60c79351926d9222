"""`yolo-airflow profiles usage`: who used how much of what."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from yolo_airflow_provider.commands import tables
from yolo_airflow_provider.commands.arguments import Subparsers, add_command, add_json, add_since
from yolo_airflow_provider.commands.opening import open_existing

MOST_ROWS = 200_000
"""Rows of the view (one a day, DAG and device) that are added up; more are said to be left out."""

_DEVICE = ("accelerator_kind", "product", "mig_profile")
_GROUPS = {"dag": ("dag_id", *_DEVICE), "device": _DEVICE, "day": ("day",)}
_ADDED = ("measurements", "succeeded", "out_of_memory", "training_seconds", "read_bytes", "written_bytes")

_KEY_COLUMNS: dict[str, tables.Columns] = {
    "dag": {"dag": tables.text("dag_id"), "on": tables.Cell(tables.device_text)},
    "device": {"on": tables.Cell(tables.device_text)},
    "day": {"day (UTC)": tables.text("day")},
}
_COLUMNS: tables.Columns = {
    "measurements": tables.count("measurements"),
    "succeeded": tables.count("succeeded"),
    "out of memory": tables.count("out_of_memory"),
    "trained": tables.seconds("training_seconds"),
    "peak memory": tables.memory("peak_device_bytes"),
    "read": tables.memory("read_bytes"),
    "written": tables.memory("written_bytes"),
    "first (UTC)": tables.moment("first_at"),
    "last (UTC)": tables.moment("last_at"),
}


def add_parser(commands: Subparsers) -> None:
    """Add `usage`."""
    parser = add_command(
        commands,
        "usage",
        usage,
        text="Add up what was used: runs, training time, memory. Whole days in UTC are counted.",
    )
    add_since(parser)
    parser.add_argument("--by", choices=tuple(_GROUPS), default="dag", help="a row for each (default: %(default)s)")
    add_json(parser)


def usage(options: argparse.Namespace) -> int:
    """Print what was used, most training time first; days in their order, the newest first."""
    store = open_existing(options.url)
    days = tables.records(store.frame("usage_by_dag", limit=MOST_ROWS, since=options.since))
    for day in days:
        day["day"] = day["day"].date()
    if len(days) == MOST_ROWS:
        print(f"{options.title}: only the newest {MOST_ROWS:,} rows were added up; narrow --since", file=sys.stderr)
    rows = add_up(days, _GROUPS[options.by])
    if options.by == "day":
        rows.sort(key=lambda row: row["day"], reverse=True)
    if options.json:
        tables.print_json(rows)
    else:
        tables.print_table({**_KEY_COLUMNS[options.by], **_COLUMNS}, rows, empty="nothing was measured that matches")
    return 0


def add_up(days: Iterable[tables.Row], group: tuple[str, ...]) -> list[dict[str, Any]]:
    """Sum rows of `usage_by_dag`, most training time first.

    A sum of nothing but missing values is missing.

    Args:
        days: rows of the view.
        group: columns that the rows of one sum share.
    """
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for day in days:
        key = tuple(day[name] for name in group)
        total = sums.setdefault(key, {name: day[name] for name in group})
        for name in _ADDED:
            total[name] = _fold(lambda a, b: a + b, total.get(name), day[name])
        total["peak_device_bytes"] = _fold(max, total.get("peak_device_bytes"), day["peak_device_bytes"])
        total["first_at"] = _fold(min, total.get("first_at"), day["first_at"])
        total["last_at"] = _fold(max, total.get("last_at"), day["last_at"])
    return sorted(
        sums.values(), key=lambda total: (-(total["training_seconds"] or 0), *(str(total[name]) for name in group))
    )


def _fold(combine: Any, one: Any, other: Any) -> Any:
    """Two values as one; what is missing does not count."""
    return other if one is None else one if other is None else combine(one, other)
