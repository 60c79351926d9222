"""`yolo-airflow`: the command line of the provider.

Nothing of Airflow, SQLAlchemy or pandas is imported before a command needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from yolo_airflow_provider import __version__
from yolo_airflow_provider.commands import database, plan, profiles
from yolo_airflow_provider.commands.errors import CommandError
from yolo_airflow_provider.profiles.errors import RowError, StoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0, or 1 after saying on standard error what went wrong."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except (CommandError, StoreError, RowError) as error:
        print(f"{options.title}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read the output, `head` say, has seen enough. Python would complain again while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _demo(options: argparse.Namespace) -> int:
    from yolo_airflow_provider.demo.run import DemoError, DemoOptions, demo

    try:
        return demo(
            DemoOptions(
                home=Path(options.home).absolute(),
                data=Path(options.data).absolute() if options.data else None,
                model=options.model,
                imgsz=options.imgsz,
                epochs=options.epochs,
                memory_budget=options.memory_budget,
                export_format=options.format,
                runs=options.runs,
                batch=options.batch,
            )
        )
    except DemoError as error:
        raise CommandError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="yolo-airflow", description="Measured YOLO trainings in Airflow.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="run the example DAG twice on this machine",
        description="Check, probe, train and export YOLO through Airflow, twice: the second run's batch is chosen"
        " from what the first one measured. Uses SQLite and child processes, no cluster, no server, no network.",
    )
    demo.set_defaults(run=_demo, title=demo.prog)
    demo.add_argument("--data", help="a data.yaml; by default a small set of labelled shapes is drawn")
    demo.add_argument("--model", default="yolov8n", help="architecture (default: %(default)s)")
    demo.add_argument("--imgsz", type=int, default=320, help="input size in pixels (default: %(default)s)")
    demo.add_argument("--epochs", type=int, default=3, help="epochs of each training (default: %(default)s)")
    demo.add_argument(
        "--memory-budget",
        default="3Gi",
        help="memory that a run may use, so that there is a choice (default: %(default)s)",
    )
    demo.add_argument("--batch", default="auto", help="batch size, or auto (default: %(default)s)")
    demo.add_argument("--format", default="onnx", help="export format (default: %(default)s)")
    demo.add_argument("--runs", type=int, default=2, help="how many times to run the DAG (default: %(default)s)")
    demo.add_argument("--home", default=".demo", help="AIRFLOW_HOME of the demo (default: %(default)s)")
    plan.add_parser(commands)
    database.add_parser(commands)
    profiles.add_parser(commands)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
