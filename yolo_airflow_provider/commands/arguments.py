"""The arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from yolo_airflow_provider.commands.moments import parse_moment

URL_VARIABLE = "YOLO_PROFILES_URL"

Run = Callable[[argparse.Namespace], int]
"""A command: takes what was asked for, returns the exit code."""


class Subparsers(Protocol):
    """What `ArgumentParser.add_subparsers` returns, as far as it is used."""

    def add_parser(self, name: str, *, help: str, description: str) -> argparse.ArgumentParser:
        """Make the parser of one command."""


def add_command(commands: Subparsers, name: str, run: Run, *, text: str) -> argparse.ArgumentParser:
    """Add one command on a profile store.

    Args:
        commands: what it is added to.
        name: as it is typed.
        run: what it does.
        text: what it does, for people; the first sentence is its line in the list.
    """
    parser = commands.add_parser(name, help=text.partition(". ")[0].rstrip("."), description=text)
    parser.set_defaults(run=run, title=parser.prog)
    parser.add_argument(
        "--url",
        help=f"SQLAlchemy URL such as sqlite:////var/lib/profiles.db (default: the environment variable {URL_VARIABLE},"
        " which keeps a password out of the list of processes; else the store that tasks use)",
    )
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument(
        "--json", action="store_true", help="JSON for programs: bytes, seconds, ISO times; null is not measured"
    )


def add_since(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add `--since`; its value is an aware time, or None."""
    said = f" (default: {default})" if default else ""
    parser.add_argument(
        "--since", type=moment, default=default, metavar="7d|DATE", help=f"only what happened after it{said}"
    )


def moment(text: str) -> datetime:
    """`parse_moment` with the error that argparse shows."""
    try:
        return parse_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive(text: str) -> int:
    """A whole number above zero, as argparse takes a type."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)
