"""`yolo-airflow profiles history`: the runs that were measured, newest first."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from yolo_airflow_provider.commands import tables
from yolo_airflow_provider.commands.arguments import Subparsers, add_command, add_json, add_since, positive
from yolo_airflow_provider.commands.opening import open_existing

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.store import ProfileStore

_COLUMNS: tables.Columns = {
    "finished (UTC)": tables.moment("finished_at"),
    "dag": tables.text("dag_id"),
    "run": tables.text("run_id"),
    "task": tables.Cell(
        lambda row: f"{row['task_id']}[{row['map_index']}]" if row["map_index"] >= 0 else row["task_id"]
    ),
    "try": tables.count("try_number"),
    "part": tables.text("part"),
    "model": tables.text("model"),
    "imgsz": tables.count("imgsz"),
    "batch": tables.count("batch"),
    "on": tables.Cell(tables.device_text),
    "outcome": tables.text("outcome"),
    "memory": tables.memory("peak_device_bytes"),
    "epoch": tables.seconds("epoch_seconds"),
    "images/s": tables.number("images_per_second"),
    "waited %": tables.number("data_wait_percent"),
}


def add_parser(commands: Subparsers) -> None:
    """Add `history`."""
    parser = add_command(commands, "history", history, text="List runs, probe points and failures, newest first.")
    parser.add_argument("--model", help="only of this model, such as yolov8n")
    parser.add_argument("--dag", help="only of this DAG")
    add_since(parser)
    parser.add_argument("--failed", action="store_true", help="only what did not succeed")
    parser.add_argument("--limit", type=positive, default=50, help="most rows (default: %(default)s)")
    add_json(parser)


def history(options: argparse.Namespace) -> int:
    """Print the newest runs."""
    rows = _read(open_existing(options.url), options)
    if options.json:
        tables.print_json(rows)
    else:
        message = {"message": tables.text("message")} if options.failed else {}
        tables.print_table({**_COLUMNS, **message}, rows, empty="no run was recorded that matches")
    return 0


def _read(store: ProfileStore, options: argparse.Namespace) -> list[dict[str, Any]]:
    from yolo_airflow_provider.profiles import frames, views
    from yolo_airflow_provider.profiles.transfer import stream

    wanted = {"model": options.model, "dag_id": options.dag}
    where = {name: value for name, value in wanted.items() if value is not None}
    selected = frames.select("run_history", limit=options.limit, where=where, since=options.since)
    if options.failed:
        selected = selected.where(views.VIEWS["run_history"].c.outcome != "succeeded")
    return [dict(row) for chunk in stream(store, selected) for row in chunk]
