"""Rows out of a store, and profiles that were measured elsewhere into it: a bounded number of them at a time."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from yolo_airflow_provider.profiles import frames, outage, rows, tables, views
from yolo_airflow_provider.profiles.errors import RowError
from yolo_airflow_provider.profiles.records import MeasurementRow
from yolo_airflow_provider.profiles.store import ProfileStore

T = TypeVar("T")

READ_ROWS = 5000
"""Rows that are in memory while they are read."""
WRITTEN_ROWS = 500
"""Rows that are written in one transaction."""

EXPORTS = {
    "measurements": "run_history",
    "epochs": "epoch_history",
    "decisions": "decision_history",
    "cards": "resource_card",
    "spectrum": "model_spectrum",
    "models": "model_facts",
    "usage": "usage_by_dag",
    "errors": "prediction_error",
    "oom": "oom_history",
}
"""What can be exported, and the view that it is."""

PROFILE_KINDS = ("train", "probe")
"""Only these say what a training needs."""

_ROW = TypeAdapter(MeasurementRow)
_KEY = (*tables.RUN_KEY, "part")
_FIELDS = (*tables.RUN_KEY, *(field.name for field in fields(MeasurementRow) if field.name != "key"))
_REQUIRED = (*_KEY, "kind", "outcome", "finished_at")
_TIMES = ("finished_at", "logical_date")
# The store gives each of these itself.
_NOT_IMPORTED = ("id", "origin", "trained_seconds")


@dataclass(frozen=True)
class Imported:
    """What became of rows that were imported.

    Attributes:
        new: written.
        known: left as they were, as their keys were there already.
    """

    new: int
    known: int


def statement(what: str, since: datetime | None = None) -> sa.Select[Any]:
    """What an export selects, newest first; JSON values as texts.

    Args:
        what: one of `EXPORTS`.
        since: only what happened then or later; epochs by the end of their run.
    """
    view = EXPORTS[what]
    if view != "epoch_history" or since is None:
        return frames.select(view, since=since)
    epochs, runs = views.VIEWS["epoch_history"].c, views.VIEWS["run_history"].c
    is_recent = sa.exists().where(*(runs[name] == epochs[name] for name in tables.RUN_KEY), runs.finished_at >= since)
    return frames.select(view).where(is_recent)


def stream(store: ProfileStore, selected: sa.Select[Any]) -> Iterator[Sequence[sa.RowMapping]]:
    """The rows of one SELECT in chunks, however many they are; the database sees to it that they are of one moment.

    An outage while rows are coming in ends it: what follows would be of another moment.

    Raises:
        StoreError: the store cannot be read.
    """

    def begin() -> tuple[sa.Connection, sa.MappingResult]:
        connection = store.engine.connect()
        try:
            if connection.dialect.name == "postgresql":
                # Whoever takes the rows may pause, and there may be many of them.
                connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
                connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
            return connection, connection.execution_options(yield_per=READ_ROWS).execute(selected).mappings()
        except BaseException:
            connection.close()
            raise

    connection, result = _reading(store, begin, store.patience_seconds)
    with connection:
        chunks = result.partitions()
        while (chunk := _reading(store, lambda: next(chunks, None), 0.0)) is not None:
            yield chunk


def _reading(store: ProfileStore, attempt: Callable[[], T], patience_seconds: float) -> T:
    return outage.patiently(store.engine, attempt, doing="read", patience_seconds=patience_seconds)


def check_columns(names: Sequence[str]) -> None:
    """Refuse columns that are no measurement's.

    Raises:
        RowError: one is unknown or there twice, or one that every row needs is missing.
    """
    if missing := [name for name in _REQUIRED if name not in names]:
        raise RowError(f"the columns {', '.join(missing)} are missing, and every measurement has them")
    for name in names:
        if name not in _FIELDS and name not in _NOT_IMPORTED:
            near = difflib.get_close_matches(name, _FIELDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RowError(f"the column {name!r} is no column of a measurement{hint}")
        if names.count(name) > 1:
            raise RowError(f"the column {name} is there more than once")


def foreign_row(values: Mapping[str, Any], origin: str) -> MeasurementRow:
    """A measurement that was made elsewhere, under a DAG of its own.

    Args:
        values: by column, as texts or as they are; None is "not measured".
        origin: whom it is from.

    Raises:
        RowError: a field has a value that a measurement cannot have; names the field.
    """
    given = {name: value for name, value in values.items() if name in _FIELDS and value is not None}
    for name in _TIMES:
        if isinstance(given.get(name), str):
            try:
                given[name] = datetime.fromisoformat(given[name])
            except ValueError:
                raise RowError(
                    f"{name} is {given[name]!r}: expected a time such as 2026-05-04T12:30:00+00:00"
                ) from None
    key = {name: given.pop(name) for name in tables.RUN_KEY if name in given}
    try:
        row = _ROW.validate_python(given | {"key": key})
    except ValidationError as error:
        raise RowError("; ".join(_problem(details) for details in error.errors(include_url=False))) from error
    row = replace(row, origin=origin, key=replace(row.key, dag_id=f"{origin}:{row.key.dag_id}"))
    rows.measurement_values(row)
    return row


def import_rows(store: ProfileStore, foreign: Iterable[MeasurementRow]) -> Imported:
    """Append measurements that were made elsewhere, each chunk in a transaction.

    Rows whose keys are there already stay as they are: to import again what was interrupted completes it.

    Raises:
        StoreError: the store cannot be written to; the chunks before are in it.
    """
    remaining, new, known = iter(foreign), 0, 0
    while chunk := list(islice(remaining, WRITTEN_ROWS)):
        keys = {(*(getattr(row.key, name) for name in tables.RUN_KEY), row.part) for row in chunk}
        there = _count(store, keys)
        store.record(chunk)
        new += len(keys) - there
        known += len(chunk) - len(keys) + there
    return Imported(new=new, known=known)


def _count(store: ProfileStore, keys: set[tuple[Any, ...]]) -> int:
    """How many of the keys are in the store."""
    columns = sa.tuple_(*(tables.measurement.c[name] for name in _KEY))
    counted = sa.select(sa.func.count()).where(columns.in_(sorted(keys)))
    return store.transaction(lambda connection: connection.execute(counted).scalar_one())


def _problem(details: Any) -> str:
    *_, field = details["loc"]
    if details["type"] == "missing":
        return f"{field} is missing"
    return f"{field} is {details['input']!r}: {details['msg']}"
