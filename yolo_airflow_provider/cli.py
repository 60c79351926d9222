"""`yolo-airflow`: the command line of the provider.

Nothing of Airflow is imported before a command has set up its environment.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from yolo_airflow_provider import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "demo":
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
            print(f"yolo-airflow demo: {error}", file=sys.stderr)
            return 1
    return _db(options)


def _db(options: argparse.Namespace) -> int:
    from yolo_airflow_provider.profiles.engine import open_store
    from yolo_airflow_provider.profiles.errors import StoreError

    try:
        if options.url:
            url = options.url
        else:
            from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook

            url = ProfileStoreHook().get_url()
        store = open_store(url)
    except StoreError as error:
        print(f"yolo-airflow db: {error}", file=sys.stderr)
        return 1
    print(f"{store} is up to date")
    return 0


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
    database = commands.add_parser("db", help="create or upgrade a profile store")
    database.add_argument("action", choices=["upgrade"])
    database.add_argument(
        "--url", help="SQLAlchemy URL, such as sqlite:////var/lib/profiles.db (default: the store that tasks use)"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
