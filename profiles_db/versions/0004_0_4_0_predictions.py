"""Predictions made before anything ran, of yolo-airflow-provider 0.4.0.

`decision.basis` may be `predicted` (from the architecture alone). New columns of `decision`: reserved memory, which is
what Ultralytics prints, beside what is used of the device; the interval of an epoch's seconds; what was optimised for.
An index of the trainings on a kind of device, which tell how predictions for another model will fare there.

SQLite changes no constraint in place, so there the table is made again from its own text, with its rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BEFORE = "basis IN ('measured', 'line', 'scaled', 'fallback', 'given')"
AFTER = "basis IN ('measured', 'line', 'scaled', 'predicted', 'fallback', 'given')"
RELATIVE = "kind = 'train' AND outcome = 'succeeded' AND peak_device_bytes IS NOT NULL"
DURATION = "BETWEEN 0 AND 1e+300"
COLUMNS: dict[str, tuple[sa.types.TypeEngine[int] | sa.types.TypeEngine[float] | sa.types.TypeEngine[str], str]] = {
    "predicted_reserved_bytes": (sa.BigInteger(), ">= 0"),
    "predicted_epoch_low_seconds": (sa.Double(), DURATION),
    "predicted_epoch_high_seconds": (sa.Double(), DURATION),
    "objective": (sa.String(), ""),
}

DECISION_HISTORY = """
CREATE VIEW decision_history AS
SELECT
    dag_id, run_id, task_id, map_index, try_number, decided_at, model, imgsz, precision, accelerator_kind, product,
    mig_profile, budget_bytes, batch, basis, objective, sentence, margin_percent, predicted_bytes, predicted_low_bytes,
    predicted_high_bytes, predicted_reserved_bytes, predicted_epoch_seconds, predicted_epoch_low_seconds,
    predicted_epoch_high_seconds, candidates, evidence
FROM decision
"""


def upgrade() -> None:
    third = context.script.get_revision("0003").module
    kept = _views_that_follow()
    third.drop_views(["decision_history", *kept])
    for name, (kind, condition) in COLUMNS.items():
        check = f" CONSTRAINT ck_decision_{name} CHECK ({name} {condition})" if condition else ""
        op.execute(f"ALTER TABLE decision ADD COLUMN {name} {kind.compile(dialect=op.get_bind().dialect)}{check}")
    _replace_basis(BEFORE, AFTER)
    relative = sa.text(RELATIVE)
    op.create_index(
        op.f("ix_measurement_relative"),
        "measurement",
        ["accelerator_kind", "product", "finished_at", "id"],
        sqlite_where=relative,
        postgresql_where=relative,
    )
    for created in (DECISION_HISTORY, *kept.values()):
        op.execute(created)


def downgrade() -> None:
    third = context.script.get_revision("0003").module
    kept = _views_that_follow()
    third.drop_views(["decision_history", *kept])
    op.drop_index(op.f("ix_measurement_relative"), "measurement")
    op.execute("UPDATE decision SET basis = 'fallback' WHERE basis = 'predicted'")
    _replace_basis(AFTER, BEFORE)
    for name in COLUMNS:
        op.execute(f"ALTER TABLE decision DROP COLUMN {name}")
    for created in (third.DECISION_HISTORY, *kept.values()):
        op.execute(created)


def _views_that_follow() -> dict[str, str]:
    """On SQLite a view would follow its table under another name; it is made again as it was."""
    third = context.script.get_revision("0003").module
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    return {"prediction_error": third.sqlite_text("prediction_error")} if is_sqlite else {}


def _replace_basis(before: str, after: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        third = context.script.get_revision("0003").module
        third.remake_sqlite({"decision": third.sqlite_text("decision").replace(before, after)})
        return
    op.execute("ALTER TABLE decision DROP CONSTRAINT ck_decision_basis")
    op.execute(f"ALTER TABLE decision ADD CONSTRAINT ck_decision_basis CHECK ({after})")
