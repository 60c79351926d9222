"""What an architecture takes, found without running it, and how the times came out, of yolo-airflow-provider 0.5.0.

New columns of `model`: the analysis on fake tensors, from which memory and time are predicted before a first run; the
view `model_facts` reads them. `prediction_error` also compares an epoch's seconds with the interval that was told.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

NUMBER = "BETWEEN -1e+300 AND 1e+300"
COLUMNS: dict[str, tuple[sa.types.TypeEngine[int] | sa.types.TypeEngine[float], str]] = {
    "buffer_bytes": (sa.BigInteger(), ">= 0"),
    "fixed_bytes": (sa.BigInteger(), ">= 0"),
    "parameters_per_class": (sa.Double(), NUMBER),
    "amp_bytes_per_pixel": (sa.Double(), NUMBER),
    "fp32_bytes_per_pixel": (sa.Double(), NUMBER),
    "amp_bytes_per_pixel_per_class": (sa.Double(), NUMBER),
    "validation_bytes_per_pixel": (sa.Double(), NUMBER),
    "anchors_per_pixel": (sa.Double(), NUMBER),
    "step_flops_per_pixel": (sa.Double(), NUMBER),
    "step_moved_bytes_per_pixel": (sa.Double(), NUMBER),
    "kernels": (sa.Integer(), ""),
}

MODEL_FACTS = """
CREATE VIEW model_facts AS
SELECT
    id, name, task, classes, parameters, stride, gflops, gflops_imgsz, buffer_bytes, fixed_bytes, parameters_per_class,
    amp_bytes_per_pixel, fp32_bytes_per_pixel, amp_bytes_per_pixel_per_class, validation_bytes_per_pixel,
    anchors_per_pixel, step_flops_per_pixel, step_moved_bytes_per_pixel, kernels,
    -- Alive at the peak of a training step in mixed precision, of one image of 640 x 640.
    amp_bytes_per_pixel * 409600 AS activation_bytes_per_image,
    step_flops_per_pixel / NULLIF(step_moved_bytes_per_pixel, 0) AS flops_per_byte
FROM model
"""

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
    d.predicted_epoch_seconds, d.predicted_epoch_low_seconds, d.predicted_epoch_high_seconds, m.epoch_seconds,
    CASE WHEN m.outcome = 'succeeded' AND m.epoch_seconds > 0 THEN
        100 * (d.predicted_epoch_seconds - m.epoch_seconds) / m.epoch_seconds
    END AS epoch_error_percent,
    CASE WHEN m.outcome = 'succeeded' AND m.epoch_seconds IS NOT NULL
            AND d.predicted_epoch_low_seconds IS NOT NULL AND d.predicted_epoch_high_seconds IS NOT NULL THEN
        CASE WHEN m.epoch_seconds BETWEEN d.predicted_epoch_low_seconds AND d.predicted_epoch_high_seconds THEN 1
        ELSE 0 END
    END AS within_epoch_interval
FROM decision d
"""


def upgrade() -> None:
    op.execute("DROP VIEW prediction_error")
    for name, (kind, condition) in COLUMNS.items():
        check = f" CONSTRAINT ck_model_{name} CHECK ({name} {condition})" if condition else ""
        op.execute(f"ALTER TABLE model ADD COLUMN {name} {kind.compile(dialect=op.get_bind().dialect)}{check}")
    op.execute(MODEL_FACTS)
    op.execute(PREDICTION_ERROR + _measurement_of_decision())


def downgrade() -> None:
    op.execute("DROP VIEW prediction_error")
    op.execute("DROP VIEW model_facts")
    for name in COLUMNS:
        op.execute(f"ALTER TABLE model DROP COLUMN {name}")
    before: str = context.script.get_revision("0001").module.PREDICTION_ERROR
    op.execute(before[: before.index("JOIN measurement m")] + _measurement_of_decision())


def _measurement_of_decision() -> str:
    """The join of the view: 0003 says why PostgreSQL's is another."""
    if op.get_bind().dialect.name == "postgresql":
        return str(context.script.get_revision("0003").module.MEASUREMENT_OF_DECISION)
    before: str = context.script.get_revision("0001").module.PREDICTION_ERROR
    return before[before.index("JOIN measurement m") :]
