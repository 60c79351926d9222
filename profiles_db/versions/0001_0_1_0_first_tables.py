"""The first tables and views, of yolo-airflow-provider 0.1.0.

Nothing is imported from the package: a migration stays what it was when the package moves on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

RUN_KEY = ("dag_id", "run_id", "task_id", "map_index", "try_number")
EVIDENCE = (
    "kind IN ('train', 'probe') AND"
    " (outcome IN ('gpu_oom', 'host_oom') OR (outcome = 'succeeded' AND peak_device_bytes IS NOT NULL))"
)  # fmt: skip
MEMORY_FAILURE = "kind IN ('train', 'probe') AND outcome IN ('gpu_oom', 'host_oom')"
OUTCOMES = (
    "'succeeded', 'gpu_oom', 'host_oom', 'shm', 'disk_full', 'gpu_lost', 'preempted', 'unschedulable',"
    " 'image', 'data', 'code', 'lost'"
)

IDENTIFIER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

PREDICTION_ERROR = """
CREATE VIEW prediction_error AS
SELECT
    d.dag_id, d.run_id, d.task_id, d.map_index, d.try_number, d.decided_at, m.finished_at, m.outcome,
    d.model, d.imgsz, d.precision, d.batch, d.accelerator_kind, d.product, d.mig_profile, d.basis,
    d.predicted_bytes, d.predicted_low_bytes, d.predicted_high_bytes, m.peak_device_bytes,
    -- How far the prediction was off, above zero when too high. What ran out of memory has no true peak.
    CASE WHEN m.outcome = 'succeeded' AND m.peak_device_bytes > 0 THEN
        100 * CAST(d.predicted_bytes - m.peak_device_bytes AS DOUBLE PRECISION) / m.peak_device_bytes
    END AS error_percent,
    CASE WHEN m.outcome = 'succeeded' AND m.peak_device_bytes IS NOT NULL
            AND d.predicted_low_bytes IS NOT NULL AND d.predicted_high_bytes IS NOT NULL THEN
        CASE WHEN m.peak_device_bytes BETWEEN d.predicted_low_bytes AND d.predicted_high_bytes THEN 1
        ELSE 0 END
    END AS within_interval,
    d.predicted_epoch_seconds, m.epoch_seconds,
    CASE WHEN m.outcome = 'succeeded' AND m.epoch_seconds > 0 THEN
        100 * (d.predicted_epoch_seconds - m.epoch_seconds) / m.epoch_seconds
    END AS epoch_error_percent
FROM decision d
JOIN measurement m
    ON m.dag_id = d.dag_id AND m.run_id = d.run_id AND m.task_id = d.task_id
    AND m.map_index = d.map_index AND m.try_number = d.try_number
    -- A try that took over an older pod ran with that pod's batch, which this decision did not predict.
    AND m.batch = d.batch
"""

OOM_HISTORY = """
CREATE VIEW oom_history AS
SELECT
    id, finished_at, outcome, dag_id, run_id, task_id, map_index, try_number, part, kind,
    model, model_task, classes, imgsz, batch, precision, accelerator_kind, product, mig_profile,
    budget_bytes, peak_device_bytes, peak_rss_bytes, message
FROM measurement
WHERE outcome IN ('gpu_oom', 'host_oom')
"""

# {day} is the UTC date of a time, which the two databases write differently.
USAGE_BY_DAG = """
CREATE VIEW usage_by_dag AS
SELECT
    m.dag_id, {day} AS day, m.accelerator_kind, m.product, m.mig_profile,
    COUNT(*) AS measurements,
    CAST(SUM(CASE WHEN m.outcome = 'succeeded' THEN 1 ELSE 0 END) AS BIGINT) AS succeeded,
    CAST(SUM(CASE WHEN m.outcome IN ('gpu_oom', 'host_oom') THEN 1 ELSE 0 END) AS BIGINT) AS out_of_memory,
    -- The epochs that were recorded; without any, the median epoch times those that this try ran itself.
    CAST(SUM(CASE WHEN m.kind = 'train' THEN COALESCE(
        e.seconds, m.epoch_seconds * (m.epochs_done - COALESCE(m.resumed_epochs, 0))
    ) END) AS DOUBLE PRECISION) AS training_seconds,
    MAX(m.peak_device_bytes) AS peak_device_bytes,
    CAST(SUM(m.read_bytes) AS BIGINT) AS read_bytes,
    CAST(SUM(m.written_bytes) AS BIGINT) AS written_bytes,
    MIN(m.finished_at) AS first_at,
    MAX(m.finished_at) AS last_at
FROM measurement m
LEFT JOIN (
    SELECT dag_id, run_id, task_id, map_index, try_number, SUM(seconds) AS seconds
    FROM epoch
    GROUP BY dag_id, run_id, task_id, map_index, try_number
) e
    ON e.dag_id = m.dag_id AND e.run_id = m.run_id AND e.task_id = m.task_id
    AND e.map_index = m.map_index AND e.try_number = m.try_number
GROUP BY m.dag_id, {day}, m.accelerator_kind, m.product, m.mig_profile
"""

RESOURCE_CARD = """
CREATE VIEW resource_card AS
SELECT
    id AS measurement_id, finished_at, kind,
    model AS model_type, model_task, classes, imgsz AS input_size, precision, batch,
    dataset, dataset_fingerprint, accelerator_kind, product, mig_profile, budget_bytes,
    peak_device_bytes AS estimated_gpu_memory,
    cpu_cores, workers AS dataloader_workers, peak_rss_bytes AS host_memory,
    dataset_bytes AS disk_space_required,
    epoch_seconds AS expected_duration_per_epoch, epoch_seconds_spread, images_per_second,
    data_wait_percent, iowait_percent, bound_by AS compute_bound_by,
    'measured' AS source
FROM (
    SELECT m.*, ROW_NUMBER() OVER (
        PARTITION BY model, model_task, classes, imgsz, precision, accelerator_kind, product, mig_profile,
            dataset_fingerprint
        ORDER BY finished_at DESC, id DESC
    ) AS place
    FROM measurement m
    WHERE outcome = 'succeeded' AND kind IN ('train', 'probe')
) newest
WHERE place = 1
"""

MODEL_SPECTRUM = """
CREATE VIEW model_spectrum AS
SELECT
    m.model, m.model_task, m.classes, m.imgsz, m.precision, m.accelerator_kind, m.product, m.mig_profile,
    COUNT(*) AS measurements,
    f.parameters,
    -- Operations of one image, known for the input size at which the model was looked at.
    CASE WHEN f.gflops_imgsz = m.imgsz THEN f.gflops END AS gflops,
    MAX(m.peak_device_bytes) AS peak_device_bytes,
    CAST(AVG(CAST(m.peak_device_bytes AS DOUBLE PRECISION) / m.batch) AS DOUBLE PRECISION)
        AS peak_bytes_per_image,
    CAST(AVG(m.images_per_second) AS DOUBLE PRECISION) AS images_per_second,
    CAST(AVG(m.data_wait_percent) AS DOUBLE PRECISION) AS data_wait_percent,
    CAST(AVG(m.iowait_percent) AS DOUBLE PRECISION) AS iowait_percent,
    CAST(AVG(m.device_busy_percent) AS DOUBLE PRECISION) AS device_busy_percent,
    MAX(m.finished_at) AS last_at
FROM measurement m
LEFT JOIN model f ON f.id = m.model_id
WHERE m.outcome = 'succeeded' AND m.kind IN ('train', 'probe')
GROUP BY m.model, m.model_task, m.classes, m.imgsz, m.precision, m.accelerator_kind, m.product, m.mig_profile,
    f.parameters, f.gflops_imgsz, f.gflops
"""

VIEWS = ("prediction_error", "oom_history", "usage_by_dag", "resource_card", "model_spectrum")


def text(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.String(), nullable=nullable)


def integer(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), nullable=nullable)


def long(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def number(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def instant(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def run_key() -> list[sa.Column[Any]]:
    return [
        *(text(n, nullable=False) for n in RUN_KEY[:3]),
        *(integer(n, nullable=False) for n in RUN_KEY[3:]),
    ]


def check(table: str, column: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} {condition}", name=op.f(f"ck_{table}_{column}"))


def checks(table: str, columns: Sequence[str], condition: str) -> list[sa.CheckConstraint]:
    return [check(table, column, condition) for column in columns]


def upgrade() -> None:
    op.create_table(
        "model",
        sa.Column("id", IDENTIFIER, nullable=False),
        text("name", nullable=False),
        text("task", nullable=False),
        integer("classes", nullable=False),
        long("parameters", nullable=False),
        integer("stride", nullable=False),
        number("gflops"),
        integer("gflops_imgsz"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model")),
        sa.UniqueConstraint("name", "task", "classes", "parameters", name=op.f("uq_model_facts")),
    )
    create_measurement()
    op.create_table(
        "epoch",
        *run_key(),
        integer("epoch", nullable=False),
        number("seconds", nullable=False),
        number("images_per_second"),
        long("peak_device_bytes"),
        long("validation_peak_bytes"),
        number("data_wait_percent"),
        number("iowait_percent"),
        sa.Column("losses", JSON, nullable=False),
        sa.Column("metrics", JSON, nullable=False),
        sa.PrimaryKeyConstraint(*RUN_KEY, "epoch", name=op.f("pk_epoch")),
        *checks("epoch", ("peak_device_bytes", "validation_peak_bytes"), ">= 0"),
        *checks("epoch", ("data_wait_percent", "iowait_percent"), "BETWEEN 0 AND 100"),
    )
    op.create_table(
        "decision",
        *run_key(),
        instant("decided_at", nullable=False),
        text("model", nullable=False),
        integer("imgsz", nullable=False),
        text("precision", nullable=False),
        text("accelerator_kind", nullable=False),
        text("product", nullable=False),
        text("mig_profile", nullable=False),
        text("basis", nullable=False),
        text("sentence", nullable=False),
        number("predicted_epoch_seconds"),
        long("budget_bytes"),
        long("predicted_bytes"),
        long("predicted_low_bytes"),
        long("predicted_high_bytes"),
        integer("batch", nullable=False),
        number("margin_percent", nullable=False),
        sa.Column("candidates", JSON, nullable=False),
        sa.Column("evidence", JSON, nullable=False),
        sa.PrimaryKeyConstraint(*RUN_KEY, name=op.f("pk_decision")),
        *checks(
            "decision",
            (
                "budget_bytes",
                "predicted_bytes",
                "predicted_low_bytes",
                "predicted_high_bytes",
                "margin_percent",
            ),
            ">= 0",
        ),
        check("decision", "batch", ">= 1"),
        check("decision", "basis", "IN ('measured', 'line', 'scaled', 'fallback', 'given')"),
    )
    op.create_index(op.f("ix_decision_decided_at"), "decision", ["decided_at"])
    is_postgres = op.get_bind().dialect.name == "postgresql"
    day = "CAST(m.finished_at AT TIME ZONE 'UTC' AS DATE)" if is_postgres else "date(m.finished_at)"
    for view in (PREDICTION_ERROR, OOM_HISTORY, USAGE_BY_DAG.format(day=day), RESOURCE_CARD, MODEL_SPECTRUM):
        op.execute(view)


def create_measurement() -> None:
    op.create_table(
        "measurement",
        sa.Column("id", IDENTIFIER, nullable=False),
        *run_key(),
        text("part", nullable=False),
        text("kind", nullable=False),
        text("outcome", nullable=False),
        instant("finished_at", nullable=False),
        instant("logical_date"),
        text("message"),
        long("model_id"),
        text("model"),
        text("model_task"),
        integer("classes"),
        integer("imgsz"),
        text("precision"),
        text("optimizer"),
        integer("epochs"),
        integer("epochs_done"),
        integer("resumed_epochs"),
        text("dataset"),
        text("dataset_fingerprint"),
        integer("train_images"),
        number("objects_mean"),
        number("objects_p95"),
        integer("objects_max"),
        integer("workers"),
        text("cache"),
        text("torch_version"),
        text("ultralytics_version"),
        text("accelerator_kind"),
        text("product"),
        text("device_name"),
        text("mig_profile"),
        integer("multiprocessors"),
        number("cpu_cores"),
        text("node"),
        long("budget_bytes"),
        long("dataset_bytes"),
        long("peak_allocated_bytes"),
        long("peak_reserved_bytes"),
        long("peak_device_bytes"),
        long("validation_peak_bytes"),
        long("peak_rss_bytes"),
        long("read_bytes"),
        long("written_bytes"),
        number("data_wait_percent"),
        number("iowait_percent"),
        number("io_pressure_percent"),
        number("memory_pressure_percent"),
        number("cpu_percent"),
        number("device_busy_percent"),
        integer("batch"),
        number("step_seconds"),
        number("epoch_seconds"),
        number("epoch_seconds_spread"),
        number("images_per_second"),
        text("bound_by"),
        number("map50"),
        number("map50_95"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
        sa.ForeignKeyConstraint(["model_id"], ["model.id"], name=op.f("fk_measurement_model_id")),
        sa.UniqueConstraint(*RUN_KEY, "part", name=op.f("uq_measurement_key")),
        *checks(
            "measurement",
            (
                "budget_bytes",
                "dataset_bytes",
                "peak_allocated_bytes",
                "peak_reserved_bytes",
                "peak_device_bytes",
                "validation_peak_bytes",
                "peak_rss_bytes",
                "read_bytes",
                "written_bytes",
                "cpu_percent",
            ),
            ">= 0",
        ),
        *checks(
            "measurement",
            (
                "data_wait_percent",
                "iowait_percent",
                "io_pressure_percent",
                "memory_pressure_percent",
                "device_busy_percent",
            ),
            "BETWEEN 0 AND 100",
        ),
        check("measurement", "batch", ">= 1"),
        check("measurement", "kind", "IN ('train', 'probe', 'preprocess', 'export')"),
        check("measurement", "outcome", f"IN ({OUTCOMES})"),
    )
    profile = ["model", "imgsz", "precision", "accelerator_kind", "product"]
    for name, columns in (("evidence", profile), ("evidence_classes", [*profile, "classes"])):
        op.create_index(
            op.f(f"ix_measurement_{name}"),
            "measurement",
            [*columns, "finished_at", "id"],
            sqlite_where=sa.text(EVIDENCE),
            postgresql_where=sa.text(EVIDENCE),
        )
    op.create_index(
        op.f("ix_measurement_memory_failure"),
        "measurement",
        [*profile, "batch", "id"],
        sqlite_where=sa.text(MEMORY_FAILURE),
        postgresql_where=sa.text(MEMORY_FAILURE),
    )
    op.create_index(op.f("ix_measurement_finished_at"), "measurement", ["finished_at"])


def downgrade() -> None:
    for view in VIEWS:
        op.execute(f"DROP VIEW {view}")
    for table in ("decision", "epoch", "measurement", "model"):
        op.drop_table(table)
