"""`yolo-airflow profiles errors`: how far the predictions were off, and how often runs ran out of memory."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from yolo_airflow_provider.commands import tables
from yolo_airflow_provider.commands.arguments import Subparsers, add_command, add_json, add_since
from yolo_airflow_provider.commands.opening import open_existing

if TYPE_CHECKING:
    from datetime import datetime

    from yolo_airflow_provider.profiles.store import ProfileStore

MOST_ROWS = 100_000
"""Newest predictions that are looked at; more are said to be left out."""

_SUMMARY: tables.Columns = {
    "basis": tables.text("basis"),
    "predictions": tables.count("predictions"),
    "compared": tables.count("compared"),
    "mean error %": tables.number("mean_error_percent"),
    "largest %": tables.number("largest_error_percent"),
    "in interval %": tables.number("within_interval_percent"),
    "too low": tables.count("too_low"),
    "above interval": tables.count("above_interval"),
    "out of memory": tables.count("out_of_memory"),
    "epoch time error %": tables.number("mean_epoch_error_percent"),
}
_ROWS: tables.Columns = {
    "decided (UTC)": tables.moment("decided_at"),
    "dag": tables.text("dag_id"),
    "run": tables.text("run_id"),
    "task": tables.text("task_id"),
    "try": tables.count("try_number"),
    "model": tables.text("model"),
    "imgsz": tables.count("imgsz"),
    "batch": tables.count("batch"),
    "on": tables.Cell(tables.device_text),
    "basis": tables.text("basis"),
    "predicted": tables.memory("predicted_bytes"),
    "at most": tables.memory("predicted_high_bytes"),
    "measured": tables.memory("peak_device_bytes"),
    "error %": tables.number("error_percent"),
    "epoch error %": tables.number("epoch_error_percent"),
    "outcome": tables.text("outcome"),
}
_OUT_OF_MEMORY = ("gpu_oom", "host_oom")


def add_parser(commands: Subparsers) -> None:
    """Add `errors`."""
    parser = add_command(
        commands,
        "errors",
        errors,
        text="Compare predicted with measured memory. Errors above zero: too much was predicted. Too low is counted by"
        " itself, as it is what ends in out of memory.",
    )
    add_since(parser, default="30d")
    parser.add_argument("--rows", action="store_true", help="each prediction instead of a row for each basis")
    add_json(parser)


def errors(options: argparse.Namespace) -> int:
    """Print how good the predictions were."""
    store = open_existing(options.url)
    predictions = _read(store, "prediction_error", options.since, options.title)
    if options.rows:
        if options.json:
            tables.print_json(predictions)
        else:
            tables.print_table(_ROWS, predictions, empty=_nothing(options.since))
        return 0
    failures = Counter(row["outcome"] for row in _read(store, "oom_history", options.since, options.title))
    summary = summarise(predictions)
    if options.json:
        tables.print_json({"since": options.since, "predictions": summary, "out_of_memory": _by_name(failures)})
        return 0
    tables.print_table(_SUMMARY, summary, empty=_nothing(options.since))
    counted = ", ".join(f"{count} {name}" for name, count in sorted(failures.items())) or "none"
    print(
        f"\nout of memory since {tables.moment_text(options.since)} UTC, probes and unplanned runs included: {counted}"
    )
    return 0


def summarise(predictions: Sequence[tables.Row]) -> list[dict[str, Any]]:
    """One row for each basis of predictions, the most frequent first.

    Only runs that succeeded have a true peak to compare with. `too_low` were measured above what was predicted,
    `above_interval` above the upper end of its interval, which is what the choice of the batch relies on.

    Args:
        predictions: rows of the view `prediction_error`.
    """
    bases = Counter(row["basis"] for row in predictions)
    return [
        {"basis": basis} | _summary([row for row in predictions if row["basis"] == basis])
        for basis, _ in sorted(bases.items(), key=lambda item: (-item[1], item[0]))
    ]


def _summary(rows: Sequence[tables.Row]) -> dict[str, Any]:
    compared = [row for row in rows if row["error_percent"] is not None]
    inside = [row["within_interval"] for row in rows if row["within_interval"] is not None]
    off = [abs(row["error_percent"]) for row in compared]
    epochs = [abs(row["epoch_error_percent"]) for row in rows if row["epoch_error_percent"] is not None]
    return {
        "predictions": len(rows),
        "compared": len(compared),
        "mean_error_percent": fmean(off) if off else None,
        "largest_error_percent": max(off, default=None),
        "within_interval_percent": 100 * fmean(inside) if inside else None,
        "too_low": sum(row["error_percent"] < 0 for row in compared),
        "above_interval": sum(
            row["predicted_high_bytes"] is not None and row["peak_device_bytes"] > row["predicted_high_bytes"]
            for row in compared
        ),
        "out_of_memory": sum(row["outcome"] in _OUT_OF_MEMORY for row in rows),
        "mean_epoch_error_percent": fmean(epochs) if epochs else None,
    }


def _read(store: ProfileStore, view: str, since: datetime, title: str) -> list[dict[str, Any]]:
    rows = tables.records(store.frame(view, limit=MOST_ROWS, since=since))
    if len(rows) == MOST_ROWS:
        print(f"{title}: only the newest {MOST_ROWS:,} rows of {view} were looked at; narrow --since", file=sys.stderr)
    return rows


def _by_name(failures: Counter[str]) -> dict[str, int]:
    return {outcome: failures[outcome] for outcome in _OUT_OF_MEMORY}


def _nothing(since: datetime) -> str:
    return f"no prediction since {tables.moment_text(since)} UTC was followed by a measurement"
