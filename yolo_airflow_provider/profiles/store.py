"""Reading and writing the profile store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from yolo_airflow_provider.profiles import migrate, rows, tables
from yolo_airflow_provider.profiles.errors import StoreError
from yolo_airflow_provider.profiles.records import (
    DecisionRow,
    EpochRow,
    MeasurementRow,
    ModelRow,
    ProfileKey,
    Stored,
)

if TYPE_CHECKING:
    import pandas as pd

# What `frame` reads: each table or view with the columns that put its newest rows first.
_FRAME_ORDER: dict[str, tuple[str, ...]] = {
    "model": ("id",),
    "measurement": ("id",),
    "epoch": (*tables.RUN_KEY, "epoch"),
    "decision": ("decided_at",),
    "prediction_error": ("decided_at",),
    "oom_history": ("finished_at", "id"),
    "usage_by_dag": ("day",),
    "resource_card": ("finished_at", "measurement_id"),
    "model_spectrum": ("last_at",),
}
_TIME_COLUMNS = ("finished_at", "logical_date", "decided_at", "first_at", "last_at", "day")
# Columns that only the views have; those of the tables have their types there.
_VIEW_DTYPES = {
    "disk_space_required": "Int64",
    "dataloader_workers": "Int64",
    "epoch_error_percent": "Float64",
    "error_percent": "Float64",
    "estimated_gpu_memory": "Int64",
    "expected_duration_per_epoch": "Float64",
    "host_memory": "Int64",
    "measurement_id": "Int64",
    "measurements": "Int64",
    "out_of_memory": "Int64",
    "peak_bytes_per_image": "Float64",
    "succeeded": "Int64",
    "training_seconds": "Float64",
    "within_interval": "Int64",
    "compute_bound_by": "string",
    "model_type": "string",
    "source": "string",
    "input_size": "Int64",
}
FRAME_NAMES = tuple(_FRAME_ORDER)
"""Names that `ProfileStore.frame` takes."""


class ProfileStore:
    """The facts that runs left behind and the decisions that stand on them.

    Made by `engine.open_store`. It keeps no connection open between calls and may be used from several
    threads. Every method raises `StoreError` when the database cannot be reached.
    """

    def __init__(self, engine: sa.Engine):
        self.engine = engine

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
        measurement refers to the one model in `models` with its name, task and number of classes. Numbers
        that are not finite are stored as "not measured".

        Raises:
            RowError: a field has a value that the store cannot hold; nothing is written.
            StoreError: the database cannot be written to; nothing is written.
        """
        model_values = [rows.model_values(row) for row in models]
        measurement_values = [rows.measurement_values(row) for row in measurements]
        epoch_values = [rows.epoch_values(row) for row in epochs]
        if not (model_values or measurement_values or epoch_values):
            return
        with self._connected(write=True) as connection:
            self._append(connection, tables.model, model_values, ("name", "task", "classes", "parameters"))
            model_ids = _model_ids(connection, model_values)
            for values in measurement_values:
                values["model_id"] = model_ids.get((values["model"], values["model_task"], values["classes"]))
            self._append(connection, tables.measurement, measurement_values, (*tables.RUN_KEY, "part"))
            self._append(connection, tables.epoch, epoch_values, (*tables.RUN_KEY, "epoch"))

    def decide(self, row: DecisionRow) -> None:
        """Write a decision.

        A task that died before its pod ran plans again under the same try; the decision that it acts on is
        the newest, so that one replaces what was there.

        Raises:
            RowError: a field has a value that the store cannot hold; nothing is written.
            StoreError: the database cannot be written to; nothing is written.
        """
        values = rows.decision_values(row)
        with self._connected(write=True) as connection:
            statement = _insert(connection, tables.decision).values(values)
            changed = {name: statement.excluded[name] for name in values if name not in tables.RUN_KEY}
            connection.execute(statement.on_conflict_do_update(index_elements=tables.RUN_KEY, set_=changed))

    def evidence(self, key: ProfileKey, limit: int = 50) -> list[Stored]:
        """What is known about the memory of one profile: the newest rows, then older failures.

        Trainings and probe points of that model, input size, precision and product that succeeded with a peak, and
        those that failed for memory. Of these the smallest batches are always among the rows: what ran out of
        memory must not be forgotten because much went well since. Two indexes hold just these rows in these
        orders: the time does not grow with history.

        Args:
            key: the profile; `classes` None means any number of classes, an empty product means none.
            limit: most rows of the newest, and most failures beside them.
        """
        table = tables.measurement
        newest = self._of_profile(key, tables.EVIDENCE, (table.c.finished_at.desc(), table.c.id.desc()), limit)
        smallest = self._of_profile(key, tables.MEMORY_FAILURE, (table.c.batch, table.c.id), limit)
        known = {row.id for row in newest}
        return [*newest, *(row for row in smallest if row.id not in known)]

    def _of_profile(
        self, key: ProfileKey, condition: str, order: tuple[sa.ColumnElement[Any], ...], limit: int
    ) -> list[Stored]:
        table = tables.measurement
        statement = (
            sa.select(table)
            .where(sa.text(condition))
            .where(
                table.c.model == key.model,
                table.c.imgsz == key.imgsz,
                table.c.precision == key.precision,
                table.c.accelerator_kind == key.accelerator_kind,
                table.c.product == key.product if key.product else table.c.product.is_(None),
            )
            .order_by(*order)
            .limit(limit)
        )
        if key.classes is not None:
            statement = statement.where(table.c.classes == key.classes)
        return [rows.stored_measurement(columns) for columns in self._read(statement)]

    def measurements(self, dag_id: str, run_id: str) -> list[Stored]:
        """All measurements of a DAG run, in the order in which they were finished."""
        table = tables.measurement
        statement = (
            sa.select(table)
            .where(table.c.dag_id == dag_id, table.c.run_id == run_id)
            .order_by(table.c.finished_at, table.c.id)
        )
        return [rows.stored_measurement(columns) for columns in self._read(statement)]

    def decisions(self, dag_id: str, run_id: str) -> list[DecisionRow]:
        """All decisions of a DAG run, in the order in which they were made."""
        table = tables.decision
        statement = (
            sa.select(table)
            .where(table.c.dag_id == dag_id, table.c.run_id == run_id)
            .order_by(table.c.decided_at, table.c.task_id, table.c.map_index, table.c.try_number)
        )
        return [rows.stored_decision(columns) for columns in self._read(statement)]

    def frame(self, table_or_view: str, limit: int = 10_000) -> pd.DataFrame:
        """A table or view as a pandas frame, newest rows first.

        A column has one type whatever is in it: `Int64`, `Float64`, `string` or an aware time. What was not
        measured is a missing value.

        Args:
            table_or_view: one of `FRAME_NAMES`.
            limit: most rows that are returned.

        Raises:
            ValueError: the name is not one of them.
        """
        order = _FRAME_ORDER.get(table_or_view)
        if order is None:
            raise ValueError(f"there is no table or view {table_or_view!r}; expected one of {', '.join(FRAME_NAMES)}")
        import pandas as pd

        source = tables.metadata.tables.get(table_or_view)
        everything: sa.Select[Any]
        json_names = []
        if source is None:
            everything = sa.select(sa.literal_column("*")).select_from(sa.table(table_or_view))
        else:
            # pandas would make texts of the values, in Python's spelling.
            json_names = [column.name for column in source.c if isinstance(column.type, sa.JSON)]
            everything = sa.select(
                *(sa.cast(c, sa.Text()).label(c.name) if c.name in json_names else c for c in source.c)
            )
        statement = everything.order_by(*(sa.column(name).desc() for name in order)).limit(limit)
        with self._connected() as connection:
            frame = pd.read_sql_query(statement, connection, dtype_backend="numpy_nullable")
        for name in json_names:
            frame[name] = pd.Series([json.loads(text) for text in frame[name]], dtype=object)
        # A column without a single value says nothing about its type.
        dtypes = _dtypes()
        frame = frame.astype({name: dtypes[name] for name in frame.columns if name in dtypes})
        for name in _TIME_COLUMNS:
            if name in frame.columns:
                # A view on SQLite gives times as texts, some with a fraction of a second and some without.
                frame[name] = pd.to_datetime(frame[name], utc=True, format="ISO8601").dt.as_unit("us")
        return frame

    @contextlib.contextmanager
    def _connected(self, *, write: bool = False) -> Iterator[sa.Connection]:
        """One transaction, with the driver's errors told as the store's own."""
        try:
            with self.engine.connect().execution_options(yolo_write=write) as connection, connection.begin():
                yield connection
        except sa.exc.DBAPIError as error:
            doing = "write to" if write else "read"
            raise StoreError(
                f"cannot {doing} the profile store {migrate.describe(self.engine)}: {str(error.orig).strip()}"
            ) from error

    def _read(self, statement: sa.Select[Any]) -> list[sa.RowMapping]:
        with self._connected() as connection:
            return list(connection.execute(statement).mappings())

    def _append(
        self, connection: sa.Connection, table: sa.Table, values: list[dict[str, Any]], key: Sequence[str]
    ) -> None:
        if values:
            connection.execute(_insert(connection, table).on_conflict_do_nothing(index_elements=key), values)


def _dtypes() -> dict[str, str]:
    kinds = {sa.String: "string", sa.Integer: "Int64", sa.BigInteger: "Int64", sa.Double: "Float64"}
    found = {
        column.name: kinds[type(column.type)]
        for table in tables.metadata.tables.values()
        for column in table.columns
        if type(column.type) in kinds
    }
    return found | _VIEW_DTYPES


def _insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """The dialect's INSERT, the one that knows ON CONFLICT."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def _model_ids(connection: sa.Connection, models: list[dict[str, Any]]) -> dict[tuple[str, str, int], int | None]:
    """Id of each model by name, task and classes; None where several differ only in their parameters."""
    table = tables.model
    ids: dict[tuple[str, str, int], int | None] = {}
    for values in models:
        unique = ("name", "task", "classes", "parameters")
        found = connection.execute(
            sa.select(table.c.id).where(*(table.c[name] == values[name] for name in unique))
        ).scalar_one()
        short = (values["name"], values["task"], values["classes"])
        ids[short] = found if ids.get(short, found) == found else None
    return ids
