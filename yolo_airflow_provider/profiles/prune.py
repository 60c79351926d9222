"""Deleting the epochs of runs that ended long ago; what they came to stays in the measurements.

A run is a task instance with all its tries, and ended when the last of them did. They are gone through once in the
order of their key, a bounded number in each transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from yolo_airflow_provider.profiles import tables
from yolo_airflow_provider.profiles.store import ProfileStore

RUNS_AT_ONCE = 100
"""Runs whose epochs are deleted in one transaction."""


@dataclass(frozen=True)
class Old:
    """What can be deleted.

    Attributes:
        runs: that ended before.
        epochs: rows of theirs.
    """

    runs: int
    epochs: int


def count_old(store: ProfileStore, before: datetime) -> Old:
    """Count the epochs of runs that ended before a time.

    Raises:
        StoreError: the store cannot be read.
    """
    runs = _runs(before).subquery()
    epochs = sa.select(sa.func.count()).join_from(
        runs, tables.epoch, sa.and_(*(runs.c[name] == tables.epoch.c[name] for name in tables.INSTANCE_KEY))
    )

    def count(connection: sa.Connection) -> Old:
        _take_time(connection)
        return Old(
            runs=connection.execute(sa.select(sa.func.count()).select_from(runs)).scalar_one(),
            epochs=connection.execute(epochs).scalar_one(),
        )

    return store.transaction(count)


def delete_old(store: ProfileStore, before: datetime) -> Iterator[Old]:
    """Delete the epochs of runs that ended before a time; yields what each transaction deleted.

    Raises:
        StoreDenied: this role may not delete; the tables' owner may.
        StoreError: the store cannot be written to; what was yielded is deleted.
    """
    after: tuple[Any, ...] | None = None
    while True:
        deleted, after = store.transaction(_Batch(before, after), write=True)
        if after is None:
            return
        yield deleted


@dataclass(frozen=True)
class _Batch:
    """One transaction: deletes the epochs of the next few runs, and returns the last of them to go on from."""

    before: datetime
    after: tuple[Any, ...] | None

    def __call__(self, connection: sa.Connection) -> tuple[Old, tuple[Any, ...] | None]:
        _take_time(connection)
        columns = [tables.measurement.c[name] for name in tables.INSTANCE_KEY]
        selected = _runs(self.before).order_by(*columns).limit(RUNS_AT_ONCE)
        if self.after is not None:
            selected = selected.where(sa.tuple_(*columns) > sa.tuple_(*self.after))
        runs = [tuple(row) for row in connection.execute(selected)]
        if not runs:
            return Old(0, 0), None
        instance = sa.tuple_(*(tables.epoch.c[name] for name in tables.INSTANCE_KEY))
        deleted = connection.execute(sa.delete(tables.epoch).where(instance.in_(runs)))
        return Old(runs=len(runs), epochs=deleted.rowcount), runs[-1]


def _runs(before: datetime) -> sa.Select[Any]:
    """Runs with epochs that were measured before that time and not since.

    Read from the measurements: of those there are far fewer than of epochs.
    """
    measured, later, epoch = tables.measurement, tables.measurement.alias(), tables.epoch.c
    columns = [measured.c[name] for name in tables.INSTANCE_KEY]
    return (
        sa.select(*columns)
        .distinct()
        .where(
            measured.c.finished_at < before,
            sa.exists().where(*(epoch[name] == measured.c[name] for name in tables.INSTANCE_KEY)),
            ~sa.exists().where(
                *(later.c[name] == measured.c[name] for name in tables.INSTANCE_KEY), later.c.finished_at >= before
            ),
        )
    )


def _take_time(connection: sa.Connection) -> None:
    # The limit on statements protects tasks; here a person waits and can stop it.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
