"""What the container was given and reached, of yolo-airflow-provider 0.2.0.

New columns of `measurement`, each with its check. ALTER TABLE ADD COLUMN keeps rows, indexes and views where they are
on both databases; Alembic's way for SQLite would copy the table. No view reads the columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS: dict[str, tuple[sa.types.TypeEngine[int] | sa.types.TypeEngine[float], str]] = {
    "peak_container_bytes": (sa.BigInteger(), ">= 0"),
    "container_limit_bytes": (sa.BigInteger(), ">= 0"),
    "rss_growth_bytes": (sa.BigInteger(), ">= 0"),
    "throttled_percent": (sa.Double(), "BETWEEN 0 AND 100"),
}


def upgrade() -> None:
    dialect = op.get_context().dialect
    for name, (kind, condition) in COLUMNS.items():
        op.execute(
            f"ALTER TABLE measurement ADD COLUMN {name} {kind.compile(dialect=dialect)}"
            f" CONSTRAINT ck_measurement_{name} CHECK ({name} {condition})"
        )


def downgrade() -> None:
    for name in COLUMNS:
        op.execute(f"ALTER TABLE measurement DROP COLUMN {name}")
