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
BASES = ("measured", "line", "scaled", "predicted", "fallback", "given")

RUN_KEY = ("dag_id", "run_id", "task_id", "map_index", "try_number")
"""Columns of a `RunKey`."""
INSTANCE_KEY = RUN_KEY[:-1]
"""Columns of a task instance, with all its tries."""
MODEL_KEY = ("name", "task", "classes", "parameters")
"""Columns by which two models are the same."""

ANALYSED_NUMBERS = (
    "parameters_per_class",
    "amp_bytes_per_pixel",
    "fp32_bytes_per_pixel",
    "amp_bytes_per_pixel_per_class",
    "validation_bytes_per_pixel",
    "anchors_per_pixel",
    "step_flops_per_pixel",
    "step_moved_bytes_per_pixel",
)
"""Columns of `model` that an analysis finds, beside bytes and counts."""

PROFILE_KEY = (
    "model",
    "model_task",
    "classes",
    "imgsz",
    "precision",
    "accelerator_kind",
    "product",
    "mig_profile",
    "dataset_fingerprint",
)
"""Columns of a profile in `profile`: what one resource card speaks of."""
USAGE_KEY = ("dag_id", "day", "accelerator_kind", "product", "mig_profile")
"""Columns of a row in `usage_day`."""
EVIDENCE_KEY = ("model", "imgsz", "precision", "accelerator_kind", "product", "classes")
"""Columns of a `ProfileKey`: what two runs must share for the memory of one to tell that of the other."""
UNKNOWN_NUMBER = -1
"""In the key of a summary, where NULL would make two rows of one: the number of classes that nobody knows."""

MOST_KEY_BYTES = 2600
"""Of the texts of one index entry in UTF-8: PostgreSQL refuses entries over 2,704 bytes."""
LARGEST_NUMBER = 1e300
"""Beyond it a number is taken for infinite. NaN is above every number on PostgreSQL, and NULL on SQLite."""

# A partial index serves a query only if the query repeats its condition with the same literals, never with
# bound parameters, so that both take this text.
EVIDENCE = (
    "kind IN ('train', 'probe') AND"
    " (outcome IN ('gpu_oom', 'host_oom') OR (outcome = 'succeeded' AND peak_device_bytes IS NOT NULL))"
)  # fmt: skip
RELATIVE = "kind = 'train' AND outcome = 'succeeded' AND peak_device_bytes IS NOT NULL"
MEMORY_FAILURE = "kind IN ('train', 'probe') AND outcome IN ('gpu_oom', 'host_oom')"
OUT_OF_MEMORY = "outcome IN ('gpu_oom', 'host_oom')"


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


def _checks(table: sa.Table) -> list[sa.CheckConstraint]:
    """One named CHECK a column, by unit or length; `value_limits` and `most_characters` tell Python the same."""
    checks = []
    for column in table.columns:
        low, high = value_limits(column.name)
        if (most := most_characters(table.name, column.name)) is not None:
            text = f"length({column.name}) <= {most}"
        elif low is None:
            continue
        else:
            text = f"{column.name} >= {low:g}" if high is None else f"{column.name} BETWEEN {low:g} AND {high:g}"
        checks.append(sa.CheckConstraint(text, name=column.name))
    return checks


def value_limits(column: str) -> tuple[float | None, float | None]:
    """Lowest and highest value that a column takes, both included; None where there is no limit.

    Args:
        column: name of the column; its suffix is its unit.
    """
    if column == "batch":
        return 1, None
    if column.endswith("_bytes"):
        return 0, None
    if column.endswith("_percent"):
        # 200 % of CPU is two cores busy; a margin may exceed what it is a margin of.
        return 0, LARGEST_NUMBER if column in ("cpu_percent", "margin_percent") else 100
    if column == "seconds" or column.endswith("_seconds"):
        return 0, LARGEST_NUMBER
    if column in _NUMBERS:
        return -LARGEST_NUMBER, LARGEST_NUMBER
    return None, None


def most_characters(table: str, column: str) -> int | None:
    """The longest text that a column takes; None where there is no limit, which is where no index holds it.

    Args:
        table: name of the table.
        column: name of the column.
    """
    return None if table == "decision" and column not in RUN_KEY else _MOST_CHARACTERS.get(column)


_NUMBERS = (
    *ANALYSED_NUMBERS,
    "cpu_cores",
    "epoch_seconds_spread",
    "gflops",
    "images_per_second",
    "map50",
    "map50_95",
    "objects_mean",
    "objects_p95",
)
# Airflow's ids end at 250 characters.
_MOST_CHARACTERS = {
    "dag_id": 250,
    "run_id": 250,
    "task_id": 250,
    "part": 100,
    "model": 150,
    "name": 150,
    "model_task": 50,
    "task": 50,
    "precision": 50,
    "accelerator_kind": 50,
    "product": 100,
    "mig_profile": 50,
    "dataset_fingerprint": 100,
}


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
    # The analysis on fake tensors; what the columns mean is in planner/catalogue.py.
    _bytes("buffer_bytes"),
    _bytes("fixed_bytes"),
    *(_number(name) for name in ANALYSED_NUMBERS),
    _integer("kernels"),
    sa.UniqueConstraint(*MODEL_KEY, name="facts"),
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
    # Derived by the writer: what this try spent in epochs.
    _number("trained_seconds"),
    # NULL: measured here; else whom it was imported from.
    _text("origin"),
    sa.UniqueConstraint(*RUN_KEY, "part", name="key"),
    _is_one_of("kind", KINDS),
    _is_one_of("outcome", OUTCOMES),
)

# The planner's reads: the newest few rows of one profile, with and without the number of classes. Both end
# in the order asked for, so that a read stops after its LIMIT however long the history is.
_PROFILE, _CLASSES = EVIDENCE_KEY[:-1], EVIDENCE_KEY[-1:]
for _name, _middle in (("evidence", ()), ("evidence_classes", _CLASSES)):
    sa.Index(
        _name,
        *(measurement.c[column] for column in (*_PROFILE, *_middle, "finished_at", "id")),
        sqlite_where=sa.text(EVIDENCE),
        postgresql_where=sa.text(EVIDENCE),
    )

for _name, _middle in (("memory_failure", ()), ("memory_failure_classes", _CLASSES)):
    sa.Index(
        _name,
        *(measurement.c[column] for column in (*_PROFILE, *_middle, "batch", "id")),
        sqlite_where=sa.text(MEMORY_FAILURE),
        postgresql_where=sa.text(MEMORY_FAILURE),
    )

# How predictions fare on a kind of device: its newest trainings, of whatever model.
sa.Index(
    "relative",
    *(measurement.c[column] for column in ("accelerator_kind", "product", "finished_at", "id")),
    sqlite_where=sa.text(RELATIVE),
    postgresql_where=sa.text(RELATIVE),
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
)

_decided: list[sa.Column[int] | sa.Column[float]] = [
    _bytes("budget_bytes"),
    _bytes("predicted_bytes"),
    _bytes("predicted_low_bytes"),
    _bytes("predicted_high_bytes"),
    _bytes("predicted_reserved_bytes"),
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
    _number("predicted_epoch_low_seconds"),
    _number("predicted_epoch_high_seconds"),
    _text("objective"),
    *_decided,
    sa.Column("candidates", _JSON, nullable=False),
    sa.Column("evidence", _JSON, nullable=False),
    _is_one_of("basis", BASES),
)
sa.Index("decided_at", decision.c.decided_at)
sa.Index("finished_at", measurement.c.finished_at)

sa.Index(
    "out_of_memory",
    measurement.c.finished_at,
    measurement.c.id,
    sqlite_where=sa.text(OUT_OF_MEMORY),
    postgresql_where=sa.text(OUT_OF_MEMORY),
)
sa.Index("model", measurement.c.model, measurement.c.finished_at, measurement.c.id)


def _key(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, nullable=False, autoincrement=False)


# What can be derived from the measurements but not in the time of a query, kept by whoever writes one of them.
# '' and UNKNOWN_NUMBER stand for NULL in their keys.
profile = sa.Table(
    "profile",
    metadata,
    *(_key(name, sa.Integer() if name in ("classes", "imgsz") else sa.String()) for name in PROFILE_KEY),
    sa.Column("newest_id", sa.BigInteger(), sa.ForeignKey("measurement.id", name="newest_id"), nullable=False),
    _text("newest_kind", required=True),
    sa.Column("newest_at", UtcDateTime(), nullable=False),
    sa.Column("measurements", sa.BigInteger(), nullable=False),
)

usage_day = sa.Table(
    "usage_day",
    metadata,
    *(_key(name, sa.Date() if name == "day" else sa.String()) for name in USAGE_KEY),
    sa.Column("measurements", sa.BigInteger(), nullable=False),
    sa.Column("succeeded", sa.BigInteger(), nullable=False),
    sa.Column("out_of_memory", sa.BigInteger(), nullable=False),
    _number("training_seconds"),
    _bytes("peak_device_bytes"),
    _bytes("read_bytes"),
    _bytes("written_bytes"),
    sa.Column("first_at", UtcDateTime(), nullable=False),
    sa.Column("last_at", UtcDateTime(), nullable=False),
)
sa.Index("day", usage_day.c.day)

SUMMARIES = ("profile", "usage_day")
"""Tables that are kept from others and hold no fact of their own."""

for _table in metadata.tables.values():
    for _check in _checks(_table):
        _table.append_constraint(_check)
