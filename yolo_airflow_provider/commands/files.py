"""Rows in CSV (RFC 4180) and Parquet files, read and written a chunk at a time.

A CSV cell is empty where there is no value. A text that is empty, or begins with a backslash, has one more backslash
before it, so that every text comes back as it was.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from yolo_airflow_provider.commands.errors import CommandError

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa

SUFFIXES = (".csv", ".parquet")


class Writer(Protocol):
    """Takes rows, each a value by column name."""

    def write(self, rows: Sequence[Mapping[Any, Any]]) -> None:
        """Append rows."""


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A file to write beside the one that is meant, which becomes that one at the end and only when all went well."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


class CsvWriter:
    """Writes CSV.

    Args:
        file: a text file that was opened with newline="".
        columns: of the header.
    """

    def __init__(self, file: TextIO, columns: Sequence[str]) -> None:
        self._columns = columns
        self._writer = csv.writer(file)
        self._writer.writerow(columns)

    def write(self, rows: Sequence[Mapping[Any, Any]]) -> None:
        """Append rows."""
        self._writer.writerows([_cell(row[name]) for name in self._columns] for row in rows)


class ParquetWriter:
    """Writes Parquet; closed by `close`.

    Args:
        path: of the file.
        columns: types by name.

    Raises:
        CommandError: pyarrow is not installed.
    """

    def __init__(self, path: Path, columns: Mapping[str, sa.types.TypeEngine[Any]]) -> None:
        pa, parquet = _pyarrow()
        self._pa = pa
        self._schema = pa.schema([(name, _arrow_type(pa, kind)) for name, kind in columns.items()])
        self._writer = parquet.ParquetWriter(path, self._schema)

    def write(self, rows: Sequence[Mapping[Any, Any]]) -> None:
        """Append rows as one group."""
        self._writer.write_table(self._pa.Table.from_pylist([dict(row) for row in rows], schema=self._schema))

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()


@dataclass(frozen=True)
class Read:
    """One row of a file.

    Attributes:
        place: of the row in its file, for people.
        values: by column; None where there is no value.
    """

    place: str
    values: dict[str, Any]


class Table(Protocol):
    """A file of rows that can be read more than once."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""

    def rows(self) -> Iterator[Read]:
        """Every row, from the first."""


def open_table(path: Path) -> Table:
    """A CSV or Parquet file, by its name.

    Raises:
        CommandError: it cannot be read, or its name says neither.
    """
    require_suffix(path)
    if not path.is_file():
        raise CommandError(f"there is no file {path}")
    return ParquetTable(path) if path.suffix == ".parquet" else CsvTable(path)


def require_suffix(path: Path) -> None:
    """Refuse a file whose name does not say what it is.

    Raises:
        CommandError: it ends neither in .csv nor in .parquet.
    """
    if path.suffix not in SUFFIXES:
        raise CommandError(f"{path} is neither CSV nor Parquet by its name; let it end in {' or '.join(SUFFIXES)}")


class CsvTable:
    """A CSV file with a header.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        with self._opened() as file:
            header = next(csv.reader(file), None)
        if not header:
            raise CommandError(f"{self._path} is empty; its first line has to name the columns")
        return header

    def rows(self) -> Iterator[Read]:
        """Every row, from the first; lines are counted from 1, the header's."""
        with self._opened() as file:
            reader = csv.reader(file, strict=True)
            header = next(reader)
            line = reader.line_num
            for cells in reader:
                # A text with line breaks takes several lines; the row is named by its first.
                line, first = reader.line_num, line + 1
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise CommandError(
                        f"{self._path}: line {first} has {len(cells)} cells, and the header {len(header)}"
                    )
                yield Read(f"line {first}", dict(zip(header, map(_value, cells), strict=True)))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[TextIO]:
        try:
            with self._path.open(encoding="utf-8-sig", newline="") as file:
                yield file
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise CommandError(f"cannot read {self._path} as CSV in UTF-8: {error}") from error


class ParquetTable:
    """A Parquet file.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        with self._opened() as file:
            return list(file.schema_arrow.names)

    def rows(self) -> Iterator[Read]:
        """Every row, from the first, which is 1."""
        number = 0
        with self._opened() as file:
            for batch in file.iter_batches(batch_size=1000):
                for values in batch.to_pylist():
                    number += 1
                    yield Read(f"row {number}", {name: _from_arrow(value) for name, value in values.items()})

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        pa, parquet = _pyarrow()
        try:
            with parquet.ParquetFile(self._path) as file:
                yield file
        except (OSError, pa.ArrowException) as error:
            raise CommandError(f"cannot read {self._path} as Parquet: {error}") from error


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    return f"\\{text}" if isinstance(value, str) and (not text or text.startswith("\\")) else text


def _value(cell: str) -> str | None:
    if not cell:
        return None
    return cell[1:] if cell.startswith("\\") else cell


def _from_arrow(value: Any) -> Any:
    # pandas' own type of times where pandas is installed.
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


def _arrow_type(pa: Any, kind: sa.types.TypeEngine[Any]) -> pa.DataType:
    import sqlalchemy as sa

    from yolo_airflow_provider.profiles.tables import UtcDateTime

    # An Integer is a BigInteger's base, and a Text's is String.
    types: tuple[tuple[type[Any], Any], ...] = (
        (UtcDateTime, pa.timestamp("us", tz="UTC")),
        (sa.Date, pa.date32()),
        (sa.Integer, pa.int64()),
        (sa.Double, pa.float64()),
        (sa.String, pa.string()),
    )
    return next(arrow for known, arrow in types if isinstance(kind, known))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise CommandError(
            "Parquet needs pyarrow: pip install 'yolo-airflow-provider[parquet]'; or let the file end in .csv"
        ) from error
    return pa, parquet
