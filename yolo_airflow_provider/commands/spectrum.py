"""`yolo-airflow profiles spectrum`: the measured models by memory, compute intensity and sensitivity to I/O."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from yolo_airflow_provider.commands import tables
from yolo_airflow_provider.commands.arguments import Subparsers, add_command, add_json, add_since
from yolo_airflow_provider.commands.opening import open_existing

MOST_ROWS = 10_000

_COLUMNS: tables.Columns = {
    "model": tables.text("model"),
    "task": tables.text("model_task"),
    "classes": tables.count("classes"),
    "imgsz": tables.count("imgsz"),
    "precision": tables.text("precision"),
    "on": tables.Cell(tables.device_text),
    "measurements": tables.count("measurements"),
    "parameters": tables.Cell(
        lambda row: "" if row["parameters"] is None else f"{row['parameters'] / 1e6:.2f} M", is_number=True
    ),
    "GFLOPs": tables.number("gflops"),
    "peak memory": tables.memory("peak_device_bytes"),
    "per image": tables.memory("peak_bytes_per_image"),
    "FLOPs/byte": tables.number("flops_per_byte"),
    "I/O sensitivity %": tables.number("io_sensitivity_percent"),
    "images/s": tables.number("images_per_second"),
    "device busy %": tables.number("device_busy_percent"),
    "last (UTC)": tables.moment("last_at"),
}


def add_parser(commands: Subparsers) -> None:
    """Add `spectrum`."""
    parser = add_command(
        commands,
        "spectrum",
        spectrum,
        text="Compare models by memory, compute intensity and sensitivity to I/O. A model has a row for each input size"
        " and device on which it was measured.",
    )
    add_since(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it instead, to FILE.png or FILE.svg")
    add_json(parser)


def spectrum(options: argparse.Namespace) -> int:
    """Print the spectrum, or draw it."""
    if options.plot:
        from yolo_airflow_provider.commands.plot import require_plot

        require_plot(options.plot)
    store = open_existing(options.url)
    rows = tables.records(store.frame("model_spectrum", limit=MOST_ROWS, since=options.since))
    if options.plot:
        from yolo_airflow_provider.commands.plot import draw

        drawn = draw(rows, options.plot)
        left_out = f"; {len(rows) - drawn} have no memory or no FLOPs measured" if drawn < len(rows) else ""
        print(f"drew {drawn} of {len(rows)} rows to {options.plot}{left_out}", file=sys.stderr)
    if options.json:
        tables.print_json(rows)
    elif not options.plot:
        tables.print_table(_COLUMNS, rows, empty="nothing was measured that matches")
    return 0
