"""The summary tables: what would otherwise be added up from the whole history at every look, kept by the writer.

`profile` points to the newest training of each profile (to the newest probe point while there is none), `usage_day`
adds up a day of a DAG on one kind of accelerator. Both change in the transaction that appends the measurement, and only
when it was appended, so that they are what a recount would give.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from yolo_airflow_provider.profiles import tables

_LARGEST_INTEGER = 2**63 - 1


def insert(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """The dialect's INSERT, the one that knows ON CONFLICT."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def add(connection: sa.Connection, appended: Sequence[dict[str, Any]]) -> None:
    """Take measurements into the summaries.

    Args:
        connection: in the transaction that appended them.
        appended: their columns, `id` among them; only those that were not there before.
    """
    # In one order everywhere: two writers that want each other's rows would otherwise wait for each other.
    profiles = sorted((row for values in appended if (row := _profile(values))), key=_order(tables.PROFILE_KEY))
    usages = sorted((row for values in appended if (row := _usage(values))), key=_order(tables.USAGE_KEY))
    for table, rows in ((tables.profile, profiles), (tables.usage_day, usages)):
        if rows:
            connection.execute(_upsert(connection.dialect.name, table), rows)


@functools.cache
def _upsert(dialect: str, table: sa.Table) -> sa.Executable:
    statement = insert(dialect, table)
    changes = _profile_changes if table is tables.profile else _usage_changes
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key), set_=changes(table, statement.excluded)
    )


def _order(names: tuple[str, ...]) -> Any:
    return lambda row: tuple(row[name] for name in names)


def _profile(values: dict[str, Any]) -> dict[str, Any] | None:
    if values["outcome"] != "succeeded" or values["kind"] not in ("train", "probe"):
        return None
    columns = tables.profile.c
    key = {name: _known(values[name], columns[name]) for name in tables.PROFILE_KEY}
    newest = {"newest_id": values["id"], "newest_kind": values["kind"], "newest_at": values["finished_at"]}
    return key | newest | {"measurements": 1}


def _usage(values: dict[str, Any]) -> dict[str, Any] | None:
    if values["origin"] is not None:
        return None  # what others measured was used elsewhere
    finished_at = values["finished_at"].astimezone(UTC)
    keyed = values | {"day": finished_at.date()}
    columns = tables.usage_day.c
    return {name: _known(keyed[name], columns[name]) for name in tables.USAGE_KEY} | {
        "measurements": 1,
        "succeeded": int(values["outcome"] == "succeeded"),
        "out_of_memory": int(values["outcome"] in tables.MEMORY_FAILURES),
        "training_seconds": values["trained_seconds"],
        "peak_device_bytes": values["peak_device_bytes"],
        "read_bytes": values["read_bytes"],
        "written_bytes": values["written_bytes"],
        "first_at": finished_at,
        "last_at": finished_at,
    }


def _known(value: Any, column: sa.Column[Any]) -> Any:
    if value is not None:
        return value
    return "" if isinstance(column.type, sa.String) else tables.UNKNOWN_NUMBER


def _profile_changes(table: sa.Table, new: Any) -> dict[str, Any]:
    old = table.c
    is_training = (new.newest_kind == "train") & (old.newest_kind != "train")
    is_newer = (new.newest_at > old.newest_at) | ((new.newest_at == old.newest_at) & (new.newest_id > old.newest_id))
    is_better = is_training | ((new.newest_kind == old.newest_kind) & is_newer)
    newest = ("newest_id", "newest_kind", "newest_at")
    return {name: sa.case((is_better, new[name]), else_=old[name]) for name in newest} | {
        "measurements": old.measurements + new.measurements
    }


def _usage_changes(table: sa.Table, new: Any) -> dict[str, Any]:
    old = table.c
    return {
        **{name: old[name] + new[name] for name in ("measurements", "succeeded", "out_of_memory")},
        "training_seconds": _sum(old.training_seconds, new.training_seconds, tables.LARGEST_NUMBER),
        "peak_device_bytes": _larger(old.peak_device_bytes, new.peak_device_bytes),
        "read_bytes": _sum(old.read_bytes, new.read_bytes, _LARGEST_INTEGER),
        "written_bytes": _sum(old.written_bytes, new.written_bytes, _LARGEST_INTEGER),
        "first_at": sa.case((new.first_at < old.first_at, new.first_at), else_=old.first_at),
        "last_at": _larger(old.last_at, new.last_at),
    }


def _larger(old: sa.ColumnElement[Any], new: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.case((old.is_(None) | (new > old), new), else_=old)


def _sum(old: sa.ColumnElement[Any], new: sa.ColumnElement[Any], most: float) -> sa.ColumnElement[Any]:
    """The sum of what is known; at its limit it stays there: a measurement is not refused for what others add up to."""
    return sa.case((new.is_(None), old), (old.is_(None), new), (old > most - new, most), else_=old + new)
