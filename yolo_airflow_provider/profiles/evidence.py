"""The planner's reads: what is known of a profile, its relatives and its model, in statements whose time does not grow.

Indexes hold just these rows in just these orders. The statement is put together once a process: SQLAlchemy takes
longer to do that than the server to answer.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, fields
from typing import Any

import sqlalchemy as sa

from yolo_airflow_provider.profiles import tables
from yolo_airflow_provider.profiles.records import EvidenceRow, ModelRow, ProfileKey, RelativeRow

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
    # PostgreSQL knows of what is equal to something that it is all alike, and not of what is NULL: it would sort.
    alike = () if "product" in given else (columns.product,)
    newest = _part(given, tables.EVIDENCE, *(column.desc() for column in (*alike, columns.finished_at, columns.id)))
    failures = _part(given, tables.MEMORY_FAILURE, *alike, columns.batch, columns.id)
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


def relatives(connection: sa.Connection, accelerator_kind: str, product: str, limit: int) -> list[RelativeRow]:
    """The newest trainings of any model on a kind of device, newest first.

    Args:
        connection: in a transaction, or for this statement alone.
        accelerator_kind: `cpu`, `gpu` or `mig`.
        product: of the card, empty for none.
        limit: most of them.
    """
    values = {"accelerator_kind": accelerator_kind, _MOST: limit} | ({"product": product} if product else {})
    return [RelativeRow._make(row) for row in connection.execute(_relatives(bool(product)), values)]


@functools.cache
def _relatives(has_product: bool) -> sa.Select[Any]:
    columns = tables.measurement.c
    alike = () if has_product else (columns.product,)
    return (
        sa.select(*(columns[name] for name in RelativeRow._fields))
        .where(sa.text(tables.RELATIVE))
        .where(columns.accelerator_kind == sa.bindparam("accelerator_kind"))
        .where(columns.product == sa.bindparam("product") if has_product else columns.product.is_(None))
        .order_by(*(column.desc() for column in (*alike, columns.finished_at, columns.id)))
        .limit(sa.bindparam(_MOST, type_=sa.Integer()))
    )


def analysed_model(connection: sa.Connection, name: str, task: str) -> ModelRow | None:
    """The newest analysis of a model, None where it was never analysed.

    Args:
        connection: in a transaction, or for this statement alone.
        name: as the store calls it.
        task: Ultralytics' task.
    """
    row = connection.execute(_analysed_model(), {"name": name, "task": task}).mappings().one_or_none()
    return None if row is None else ModelRow(**row)


@functools.cache
def _analysed_model() -> sa.Select[Any]:
    columns = tables.model.c
    return (
        sa.select(*(columns[field.name] for field in fields(ModelRow)))
        .where(columns.name == sa.bindparam("name"), columns.task == sa.bindparam("task"))
        .where(columns.kernels.is_not(None))
        .order_by(columns.id.desc())
        .limit(1)
    )
