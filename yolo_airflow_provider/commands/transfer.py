"""`yolo-airflow profiles export` and `import`: rows to a file, and profiles measured elsewhere into the store."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yolo_airflow_provider.commands.arguments import Subparsers, add_command, add_since
from yolo_airflow_provider.commands.errors import CommandError
from yolo_airflow_provider.commands.opening import open_existing

if TYPE_CHECKING:
    import sqlalchemy as sa

    from yolo_airflow_provider.commands.files import Table, Writer
    from yolo_airflow_provider.profiles.records import MeasurementRow
    from yolo_airflow_provider.profiles.store import ProfileStore

STDOUT = "-"
# Not imported for it: the parser is built for every command.
_EXPORTS = ("measurements", "epochs", "decisions", "cards", "spectrum", "models", "usage", "errors", "oom")
_ORIGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
_REPORTED = 20
"""Refused rows that are named one by one."""


def add_parser(commands: Subparsers) -> None:
    """Add `export` and `import`."""
    parser = add_command(
        commands, "export", export, text="Write rows to a CSV or Parquet file. It is there whole, or not at all."
    )
    parser.add_argument("file", help="FILE.csv, FILE.parquet, or - for CSV on standard output")
    parser.add_argument("--what", choices=_EXPORTS, default="measurements", help="which rows (default: %(default)s)")
    add_since(parser)
    parser = add_command(
        commands,
        "import",
        import_,
        text="Add trainings and probe points that were measured elsewhere. Plans use them like our own; they stand"
        " under the DAG NAME:dag and with NAME as their origin. Rows that are there already stay as they are.",
    )
    parser.add_argument("file", help="FILE.csv or FILE.parquet with the columns of an export of measurements")
    parser.add_argument("--origin", required=True, metavar="NAME", help="whom the rows are from, such as site-b")
    parser.add_argument(
        "--skip-invalid", action="store_true", help="import what is valid; otherwise one refused row refuses all"
    )


def export(options: argparse.Namespace) -> int:
    """Write rows to a file."""
    from yolo_airflow_provider.commands.files import CsvWriter, ParquetWriter, new_file, require_suffix
    from yolo_airflow_provider.profiles.transfer import EXPORTS, statement

    if options.file != STDOUT:
        require_suffix(Path(options.file))
    store = open_existing(options.url)
    selected = statement(options.what, options.since)
    if options.file == STDOUT:
        written = _copy(store, selected, CsvWriter(sys.stdout, selected.selected_columns.keys()))
    else:
        path = Path(options.file)
        with new_file(path) as part:
            if path.suffix == ".parquet":
                parquet = ParquetWriter(part, {column.name: column.type for column in selected.selected_columns})
                try:
                    written = _copy(store, selected, parquet)
                finally:
                    parquet.close()
            else:
                with part.open("x", encoding="utf-8", newline="") as file:
                    written = _copy(store, selected, CsvWriter(file, selected.selected_columns.keys()))
    print(f"wrote {written:,} rows of {EXPORTS[options.what]} to {options.file}", file=sys.stderr)
    return 0


def _copy(store: ProfileStore, selected: sa.Select[Any], writer: Writer) -> int:
    from yolo_airflow_provider.profiles.transfer import stream

    written = 0
    for chunk in stream(store, selected):
        writer.write(chunk)
        written += len(chunk)
    return written


def import_(options: argparse.Namespace) -> int:
    """Read a file and add what it holds."""
    from yolo_airflow_provider.commands.files import open_table
    from yolo_airflow_provider.profiles.errors import RowError
    from yolo_airflow_provider.profiles.transfer import check_columns, import_rows

    if not _ORIGIN.fullmatch(options.origin):
        raise CommandError(
            f"the origin {options.origin!r} is no name; take at most 50 letters, digits, dots, dashes and underscores"
        )
    table = open_table(Path(options.file))
    try:
        check_columns(table.columns)
    except RowError as error:
        raise CommandError(f"{options.file}: {error}; nothing was imported") from error
    store = open_existing(options.url)
    # Twice through the file rather than all of it in memory: before anything is written, every row is known.
    first = _Reading(table, options.origin)
    for _ in first.valid():
        pass
    if first.refused:
        listed = "\n".join(f"  {line}" for line in first.reports)
        more = f"\n  and {first.refused - len(first.reports):,} more" if first.refused > len(first.reports) else ""
        said = f"{options.file}: {first.refused:,} rows are refused:\n{listed}{more}"
        if not options.skip_invalid:
            raise CommandError(f"{said}\nNothing was imported; correct them, or leave them out with --skip-invalid")
        print(f"{options.title}: {said}", file=sys.stderr)
    imported = import_rows(store, _Reading(table, options.origin).valid())
    print(f"imported {imported.new:,} rows of {options.origin}; {imported.known:,} were there already")
    if first.left_out:
        print(f"left out {first.left_out:,} rows of preprocess and export, which say nothing about a training")
    return 0


class _Reading:
    """One way through a file.

    Attributes:
        refused: rows that the store would not take.
        reports: the first of them, each with its place and what is wrong with it.
        left_out: rows that are no profiles.
    """

    def __init__(self, table: Table, origin: str) -> None:
        self._table = table
        self._origin = origin
        self.refused = 0
        self.left_out = 0
        self.reports: list[str] = []

    def valid(self) -> Iterator[MeasurementRow]:
        """The rows that the store takes."""
        from yolo_airflow_provider.profiles.errors import RowError
        from yolo_airflow_provider.profiles.tables import KINDS
        from yolo_airflow_provider.profiles.transfer import PROFILE_KINDS, foreign_row

        for read in self._table.rows():
            kind = read.values["kind"]
            if kind in KINDS and kind not in PROFILE_KINDS:
                self.left_out += 1
                continue
            try:
                yield foreign_row(read.values, self._origin)
            except RowError as error:
                self.refused += 1
                if len(self.reports) < _REPORTED:
                    self.reports.append(f"{read.place}: {error}")
