"""Reading and writing the profile store."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa

from yolo_airflow_provider.profiles import append, evidence, frames, migrate, outage, rows, tables
from yolo_airflow_provider.profiles.records import (
    DecisionRow,
    EpochRow,
    EvidenceRow,
    MeasurementRow,
    ModelRow,
    ProfileKey,
    RelativeRow,
    Stored,
)
from yolo_airflow_provider.profiles.summaries import insert

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


class ProfileStore:
    """The facts that runs left behind and the decisions that stand on them.

    Made by `engine.open_store`. It may be used from several threads. On PostgreSQL it holds a connection until
    `release`, or until nobody holds the store. An outage of the database is waited for, up to `patience_seconds`; then
    every method raises `StoreUnavailable`.
    """

    def __init__(self, engine: sa.Engine, *, patience_seconds: float = outage.PATIENCE_SECONDS):
        self.engine = engine
        self.patience_seconds = patience_seconds
        self._process = os.getpid()
        # A store that nobody holds any more gives its connections back at once. The engine has reference cycles, and
        # would keep them until those are collected.
        weakref.finalize(self, _release, engine, self._process).atexit = False

    def __repr__(self) -> str:
        return f"ProfileStore({migrate.describe(self.engine)})"

    def record(
        self,
        measurements: Sequence[MeasurementRow],
        epochs: Sequence[EpochRow] = (),
        models: Sequence[ModelRow] = (),
    ) -> None:
        """Append what a run measured, in one transaction.

        A row whose key is there already is left as it is, so that recording twice is recording once. A
        measurement refers to the one model in `models` with its name, task and number of classes.

        Raises:
            RowError: a field has a value that the store cannot hold; nothing is written.
            StoreError: the database cannot be written to; nothing is written.
        """
        model_values = [rows.model_values(row) for row in models]
        measurement_values = [rows.measurement_values(row) for row in measurements]
        epoch_values = [rows.epoch_values(row) for row in epochs]
        if not (model_values or measurement_values or epoch_values):
            return
        self.transaction(
            lambda connection: append.rows(connection, model_values, measurement_values, epoch_values), write=True
        )

    def decide(self, row: DecisionRow) -> None:
        """Write a decision.

        A task that died before its pod ran plans again under the same try; the decision that it acts on is
        the newest, so that one replaces what was there. An older one, which waited somewhere, does not.

        Raises:
            RowError: a field has a value that the store cannot hold; nothing is written.
            StoreError: the database cannot be written to; nothing is written.
        """
        values = rows.decision_values(row)

        def write(connection: sa.Connection) -> None:
            statement = insert(connection.dialect.name, tables.decision).values(values)
            changed = {name: statement.excluded[name] for name in values if name not in tables.RUN_KEY}
            is_newer = statement.excluded.decided_at >= tables.decision.c.decided_at
            connection.execute(
                statement.on_conflict_do_update(index_elements=tables.RUN_KEY, set_=changed, where=is_newer)
            )

        self.transaction(write, write=True)

    def evidence(self, key: ProfileKey, limit: int = 50) -> list[EvidenceRow]:
        """What is known about the memory of one profile, newest first.

        Trainings and probe points of that model, input size, precision and product that succeeded with a peak, and
        those that failed for memory. Of these the smallest batches are always among the rows: what ran out of
        memory must not be forgotten because much went well since. Two indexes hold just these rows in these
        orders: the time does not grow with history.

        Args:
            key: the profile; `classes` None means any number of classes, an empty product means none.
            limit: most rows of the newest, and most failures beside them.
        """
        return self.transaction(lambda connection: evidence.read(connection, key, limit))

    def relatives(self, accelerator_kind: str, product: str, limit: int = 100) -> list[RelativeRow]:
        """The newest trainings of any model on a kind of device that went well, newest first.

        Args:
            accelerator_kind: `cpu`, `gpu` or `mig`.
            product: of the card, empty for none.
            limit: most rows.
        """
        return self.transaction(lambda connection: evidence.relatives(connection, accelerator_kind, product, limit))

    def analysed_model(self, name: str, task: str) -> ModelRow | None:
        """What an analysis found of a model, the newest; None where it was never analysed.

        Args:
            name: as the store calls it.
            task: Ultralytics' task.
        """
        return self.transaction(lambda connection: evidence.analysed_model(connection, name, task))

    def measurements(self, dag_id: str, run_id: str) -> list[Stored]:
        """All measurements of a DAG run, in the order in which they were finished."""
        return self._measured(dag_id=dag_id, run_id=run_id)

    def tries(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> list[Stored]:
        """All measurements of all tries of one task instance, in the order in which they were finished.

        Read by the key's index: a DAG run with thousands of mapped tasks costs no more than one with a single task.
        """
        return self._measured(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)

    def _measured(self, **key: object) -> list[Stored]:
        columns = tables.measurement.c
        statement = (
            rows.select_measurements()
            .where(*(columns[name] == value for name, value in key.items()))
            .order_by(columns.finished_at, columns.id)
        )
        return self.transaction(
            lambda connection: [rows.stored_measurement(row) for row in connection.execute(statement)]
        )

    def decisions(self, dag_id: str, run_id: str) -> list[DecisionRow]:
        """All decisions of a DAG run, in the order in which they were made."""
        table = tables.decision
        statement = (
            sa.select(table)
            .where(table.c.dag_id == dag_id, table.c.run_id == run_id)
            .order_by(table.c.decided_at, table.c.task_id, table.c.map_index, table.c.try_number)
        )
        return self.transaction(
            lambda connection: [rows.stored_decision(columns) for columns in connection.execute(statement).mappings()]
        )

    def frame(
        self,
        table_or_view: str,
        limit: int | None = 10_000,
        *,
        where: Mapping[str, object] | None = None,
        since: datetime | None = None,
    ) -> pd.DataFrame:
        """A table or view as a pandas frame, newest rows first.

        A column has one type whatever is in it: `Int64`, `Float64`, `string` or an aware time. What was not
        measured is a missing value.

        Args:
            table_or_view: one of `frames.NAMES`.
            limit: most rows that are returned; None for all of them.
            where: values that columns must have; None asks for what was not measured.
            since: only rows of this time or later, by the time that they are ordered by.

        Raises:
            ValueError: the name is not one of them, or has no such column or no time.
        """
        statement = frames.select(table_or_view, limit=limit, where=where, since=since)
        return self.transaction(lambda connection: frames.read(connection, table_or_view, statement))

    def release(self) -> None:
        """Give the database its connections back. The store stays usable: the next call connects anew."""
        _release(self.engine, self._process)

    def transaction(self, work: Callable[[sa.Connection], T], *, write: bool = False) -> T:
        """Do `work` in one short transaction, again from its start when an outage interrupts it.

        Whether a commit whose answer was lost took place cannot be known, so `work` may run again after it was
        done: what it writes has to be the same when it is written twice.

        Args:
            work: gets the connection; it must neither keep it nor commit.
            write: whether it writes; SQLite then takes its write lock at once.

        Raises:
            StoreUnavailable: the outage lasted longer than `patience_seconds`.
            StoreDenied: this role may not do it.
            StoreError: the database refuses it for another reason.
        """

        def attempt() -> T:
            with self.engine.connect().execution_options(yolo_write=write) as connection, connection.begin():
                return work(connection)

        doing = "write to" if write else "read"
        return outage.patiently(self.engine, attempt, doing=doing, patience_seconds=self.patience_seconds)


def _release(engine: sa.Engine, process: int) -> None:
    # A forked process leaves its parent's connections alone: closing one would end it for both.
    engine.dispose(close=os.getpid() == process)
