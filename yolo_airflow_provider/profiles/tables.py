"""The tables of the profile store, for SQLite and PostgreSQL alike.

Memory is bytes in BIGINT, percentages are 0 to 100, times are aware. The migrations in `profiles_db` make
these tables; a test holds the two together. Views are only in the migrations.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

KINDS = ("train", "probe", "preprocess", "export")
MEMORY_FAILURES = ("gpu_oom", "host_oom")
OUTCOMES = (
    "succeeded",
    *MEMORY_FAILURES,
    "shm",
    "disk_full",
    "gpu_lost",
    "preempted",
    "unschedulable",
    "image",
    "data",
    "code",
    "lost",
)
BASES = ("measured", "line", "scaled", "fallback", "given")

RUN_KEY = ("dag_id", "run_id", "task_id", "map_index", "try_number")
"""Columns of a `RunKey`."""

VIEWS = ("prediction_error", "oom_history", "usage_by_dag", "resource_card", "model_spectrum")

# A partial index serves a query only if the query repeats its condition with the same literals, never with
# bound parameters, so that both take this text.
EVIDENCE = (
    "kind IN ('train', 'probe') AND"
    " (outcome IN ('gpu_oom', 'host_oom') OR (outcome = 'succeeded' AND peak_device_bytes IS NOT NULL))"
)  # fmt: skip


MEMORY_FAILURE = "kind IN ('train', 'probe') AND outcome IN ('gpu_oom', 'host_oom')"


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: takes aware times only, returns aware UTC, also on SQLite, which has no time zones."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Turn a time into UTC.

        Raises:
            ValueError: the time is naive, so that nobody knows which instant it means.
        """
        if value is None:
            return None
        if value.utcoffset() is None:
            raise ValueError(f"naive time {value.isoformat()}: give it a time zone, datetime.now(UTC) for instance")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return the time as aware UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(constraint_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(constraint_name)s",
    }
)

# On SQLite only a column declared INTEGER is an alias of the row id and counts by itself.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# JSONB has operators that JSON lacks. none_as_null: "not measured" is SQL's NULL, not JSON's.
_JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def _text(name: str, *, required: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=not required)


def _integer(name: str, *, required: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=not required)


def _bytes(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=True)


def _number(name: str, *, required: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=not required)


def _run_key(*, primary: bool) -> list[sa.Column[Any]]:
    columns: list[sa.Column[Any]] = []
    for name in RUN_KEY:
        is_number = name in ("map_index", "try_number")
        kind: sa.types.TypeEngine[Any] = sa.Integer() if is_number else sa.String()
        # autoincrement would otherwise make a SERIAL of the numbers on PostgreSQL.
        columns.append(sa.Column(name, kind, nullable=False, primary_key=primary, autoincrement=False))
    return columns


def _checks(table: str, columns: list[sa.Column[int] | sa.Column[float]]) -> list[sa.CheckConstraint]:
    """One named CHECK a column, by its unit; `value_limits` says the same to Python."""
    checks = []
    for column in columns:
        low, high = value_limits(table, column.name)
        if low is not None:
            text = f"{column.name} >= {low:g}" if high is None else f"{column.name} BETWEEN {low:g} AND {high:g}"
            checks.append(sa.CheckConstraint(text, name=column.name))
    return checks


def value_limits(table: str, column: str) -> tuple[float | None, float | None]:
    """Lowest and highest value that a column takes, both included; None where there is no limit.

    Args:
        table: name of the table.
        column: name of the column; its suffix is its unit.
    """
    if column == "batch":
        return 1, None
    if column.endswith("_bytes"):
        return 0, None
    if column.endswith("_percent"):
        # 200 % of CPU is two cores busy; a margin may exceed what it is a margin of.
        return 0, None if column in ("cpu_percent", "margin_percent") else 100
    return None, None


def _is_one_of(column: str, values: tuple[str, ...]) -> sa.CheckConstraint:
    quoted = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({quoted})", name=column)


model = sa.Table(
    "model",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    _text("name", required=True),
    _text("task", required=True),
    _integer("classes", required=True),
    sa.Column("parameters", sa.BigInteger(), nullable=False),
    _integer("stride", required=True),
    _number("gflops"),
    _integer("gflops_imgsz"),
    sa.UniqueConstraint("name", "task", "classes", "parameters", name="facts"),
)

_measured: list[sa.Column[int] | sa.Column[float]] = [
    _bytes("budget_bytes"),
    _bytes("dataset_bytes"),
    _bytes("peak_allocated_bytes"),
    _bytes("peak_reserved_bytes"),
    _bytes("peak_device_bytes"),
    _bytes("validation_peak_bytes"),
    _bytes("peak_rss_bytes"),
    _bytes("peak_container_bytes"),
    _bytes("container_limit_bytes"),
    _bytes("rss_growth_bytes"),
    _bytes("read_bytes"),
    _bytes("written_bytes"),
    _number("data_wait_percent"),
    _number("iowait_percent"),
    _number("io_pressure_percent"),
    _number("memory_pressure_percent"),
    _number("cpu_percent"),
    _number("throttled_percent"),
    _number("device_busy_percent"),
    _integer("batch"),
]

measurement = sa.Table(
    "measurement",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    *_run_key(primary=False),
    _text("part", required=True),
    _text("kind", required=True),
    _text("outcome", required=True),
    sa.Column("finished_at", UtcDateTime(), nullable=False),
    sa.Column("logical_date", UtcDateTime(), nullable=True),
    _text("message"),
    # What ran. The names stand here too, beside the reference: the planner reads by them without a join,
    # and a failure before the model was built has no facts to refer to.
    sa.Column("model_id", sa.BigInteger(), sa.ForeignKey("model.id", name="model_id"), nullable=True),
    _text("model"),
    _text("model_task"),
    _integer("classes"),
    _integer("imgsz"),
    _text("precision"),
    _text("optimizer"),
    _integer("epochs"),
    _integer("epochs_done"),
    _integer("resumed_epochs"),
    _text("dataset"),
    _text("dataset_fingerprint"),
    _integer("train_images"),
    _number("objects_mean"),
    _number("objects_p95"),
    _integer("objects_max"),
    _integer("workers"),
    _text("cache"),
    _text("torch_version"),
    _text("ultralytics_version"),
    # Where.
    _text("accelerator_kind"),
    _text("product"),
    _text("device_name"),
    _text("mig_profile"),
    _integer("multiprocessors"),
    _number("cpu_cores"),
    _text("node"),
    # What came out.
    *_measured,
    _number("step_seconds"),
    _number("epoch_seconds"),
    _number("epoch_seconds_spread"),
    _number("images_per_second"),
    _text("bound_by"),
    _number("map50"),
    _number("map50_95"),
    sa.UniqueConstraint(*RUN_KEY, "part", name="key"),
    *_checks("measurement", _measured),
    _is_one_of("kind", KINDS),
    _is_one_of("outcome", OUTCOMES),
)

# The planner's reads: the newest few rows of one profile, with and without the number of classes. Both end
# in the order asked for, so that a read stops after its LIMIT however long the history is.
_PROFILE = ("model", "imgsz", "precision", "accelerator_kind", "product")
for _name, _middle in (("evidence", ()), ("evidence_classes", ("classes",))):
    sa.Index(
        _name,
        *(measurement.c[column] for column in (*_PROFILE, *_middle, "finished_at", "id")),
        sqlite_where=sa.text(EVIDENCE),
        postgresql_where=sa.text(EVIDENCE),
    )

sa.Index(
    "memory_failure",
    *(measurement.c[column] for column in (*_PROFILE, "batch", "id")),
    sqlite_where=sa.text(MEMORY_FAILURE),
    postgresql_where=sa.text(MEMORY_FAILURE),
)

_epoch_measured: list[sa.Column[int] | sa.Column[float]] = [
    _bytes("peak_device_bytes"),
    _bytes("validation_peak_bytes"),
    _number("data_wait_percent"),
    _number("iowait_percent"),
]

# Joined to `measurement` by the run's key; no reference, because a try that was killed leaves epochs
# without one.
epoch = sa.Table(
    "epoch",
    metadata,
    *_run_key(primary=True),
    sa.Column("epoch", sa.Integer(), primary_key=True, autoincrement=False),
    _number("seconds", required=True),
    _number("images_per_second"),
    *_epoch_measured,
    sa.Column("losses", _JSON, nullable=False),
    sa.Column("metrics", _JSON, nullable=False),
    *_checks("epoch", _epoch_measured),
)

_decided: list[sa.Column[int] | sa.Column[float]] = [
    _bytes("budget_bytes"),
    _bytes("predicted_bytes"),
    _bytes("predicted_low_bytes"),
    _bytes("predicted_high_bytes"),
    _integer("batch", required=True),
    _number("margin_percent", required=True),
]

decision = sa.Table(
    "decision",
    metadata,
    *_run_key(primary=True),
    sa.Column("decided_at", UtcDateTime(), nullable=False),
    _text("model", required=True),
    _integer("imgsz", required=True),
    _text("precision", required=True),
    _text("accelerator_kind", required=True),
    _text("product", required=True),
    _text("mig_profile", required=True),
    _text("basis", required=True),
    _text("sentence", required=True),
    _number("predicted_epoch_seconds"),
    *_decided,
    sa.Column("candidates", _JSON, nullable=False),
    sa.Column("evidence", _JSON, nullable=False),
    *_checks("decision", _decided),
    _is_one_of("basis", BASES),
)
sa.Index("decided_at", decision.c.decided_at)
sa.Index("finished_at", measurement.c.finished_at)
