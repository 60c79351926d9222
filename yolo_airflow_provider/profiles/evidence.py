"""The planner's read: what is known about the memory of one profile, in one statement whose time does not grow.

Two indexes hold just these rows in just these orders. The statement is put together once a process: SQLAlchemy takes
longer to do that than the server to answer.
"""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from yolo_airflow_provider.profiles import tables
from yolo_airflow_provider.profiles.records import EvidenceRow, ProfileKey

_MOST = "most"


def read(connection: sa.Connection, key: ProfileKey, limit: int) -> list[EvidenceRow]:
    """Rows of a profile, newest first.

    Args:
        connection: in a transaction, or for this statement alone.
        key: the profile; `classes` None means any number of classes, an empty product means none.
        limit: most of the newest, and most of the failures of the smallest batches beside them.
    """
    values = {name: value for name, value in asdict(key).items() if value not in (None, "")}
    found = connection.execute(_statement(frozenset(values)), values | {_MOST: limit}).all()
    known = {row.id: row for row in map(EvidenceRow._make, found)}
    return sorted(known.values(), key=lambda row: (row.finished_at, row.id), reverse=True)


@functools.cache
def _statement(given: frozenset[str]) -> sa.CompoundSelect[Any]:
    columns = tables.measurement.c
    newest = _part(given, tables.EVIDENCE, columns.finished_at.desc(), columns.id.desc())
    failures = _part(given, tables.MEMORY_FAILURE, columns.batch, columns.id)
    return newest.union_all(failures)


def _part(given: frozenset[str], condition: str, *order: sa.ColumnElement[Any]) -> sa.Select[Any]:
    columns = tables.measurement.c
    # As a subquery, because SQLite lets no member of a UNION have an order and a limit.
    return sa.select(
        sa.select(*(columns[name] for name in EvidenceRow._fields))
        .where(sa.text(condition))
        .where(*(columns[name] == sa.bindparam(name) for name in tables.EVIDENCE_KEY if name in given))
        .where(*(columns[name].is_(None) for name in ("product",) if name not in given))
        .order_by(*order)
        .limit(sa.bindparam(_MOST, type_=sa.Integer()))
        .subquery()
    )
