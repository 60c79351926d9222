"""`yolo-airflow profiles prune`: delete the epochs of old runs."""

from __future__ import annotations

import argparse
from datetime import datetime

from yolo_airflow_provider.commands import tables
from yolo_airflow_provider.commands.arguments import Subparsers, add_command, moment
from yolo_airflow_provider.commands.errors import CommandError
from yolo_airflow_provider.commands.opening import as_owner, open_existing


def add_parser(commands: Subparsers) -> None:
    """Add `prune`."""
    parser = add_command(
        commands,
        "prune",
        prune,
        text="Delete the epochs of runs that ended long ago. Measurements, decisions and summaries stay, so that plans"
        " and cards do not change. Needs the role that owns the tables.",
    )
    parser.add_argument(
        "--older-than", type=moment, required=True, metavar="180d|DATE", help="of runs that ended before it"
    )
    sure = parser.add_mutually_exclusive_group()
    sure.add_argument("--yes", action="store_true", help="delete; without, nothing is")
    sure.add_argument("--dry-run", action="store_true", help="only count")


def prune(options: argparse.Namespace) -> int:
    """Delete old epochs, or say how many there are."""
    from yolo_airflow_provider.profiles.errors import StoreDenied
    from yolo_airflow_provider.profiles.prune import count_old, delete_old

    store = open_existing(options.url)
    try:
        if options.yes:
            runs = epochs = 0
            for deleted in delete_old(store, options.older_than):
                runs, epochs = runs + deleted.runs, epochs + deleted.epochs
            print(f"deleted {_said(epochs, runs, options.older_than)}")
            return 0
        old = count_old(store, options.older_than)
    except StoreDenied as error:
        raise as_owner(store.engine, error, "prune") from error
    said = _said(old.epochs, old.runs, options.older_than)
    if options.dry_run:
        print(f"would delete {said}")
        return 0
    raise CommandError(f"nothing was deleted; --yes deletes {said}")


def _said(epochs: int, runs: int, before: datetime) -> str:
    return f"{epochs:,} epochs of {runs:,} runs that ended before {tables.moment_text(before)} UTC"
