"""History that stays fast and can be trusted, of yolo-airflow-provider 0.3.0.

- `measurement.trained_seconds` and `measurement.origin`.
- Two summaries, kept by the writer from now on and filled here from what is there: `profile` (the newest training of
  each profile) and `usage_day`. The views of what used to add up the whole history read these.
- Views for people without a right to the tables: `run_history`, `epoch_history`, `decision_history`.
- Named constraints: numbers are finite, seconds are not negative, texts in an index are short enough for one.
- Indexes for histories of one model and of memory failures.

SQLite adds no constraint to a table, so there each table is made again from its own text with the constraints at its
end, and its rows are copied; PostgreSQL adds them in place.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MEMORY_FAILURE = "kind IN ('train', 'probe') AND outcome IN ('gpu_oom', 'host_oom')"
TABLES = ("model", "measurement", "epoch", "decision")
RUN_TEXTS = {"dag_id": 250, "run_id": 250, "task_id": 250}
MOST_CHARACTERS = {
    "model": {"name": 150, "task": 50},
    "measurement": RUN_TEXTS
    | {
        "part": 100,
        "model": 150,
        "model_task": 50,
        "precision": 50,
        "accelerator_kind": 50,
        "product": 100,
        "mig_profile": 50,
        "dataset_fingerprint": 100,
    },
    "epoch": RUN_TEXTS,
    "decision": RUN_TEXTS,
}
FINITE = "BETWEEN -1e+300 AND 1e+300"
DURATION = "BETWEEN 0 AND 1e+300"
NUMBERS = {
    "model": {"gflops": FINITE},
    "measurement": {
        "objects_mean": FINITE,
        "objects_p95": FINITE,
        "cpu_cores": FINITE,
        "step_seconds": DURATION,
        "epoch_seconds": DURATION,
        "epoch_seconds_spread": FINITE,
        "images_per_second": FINITE,
        "map50": FINITE,
        "map50_95": FINITE,
    },
    "epoch": {"seconds": DURATION, "images_per_second": FINITE},
    "decision": {"predicted_epoch_seconds": DURATION},
}
# Had a lower limit only, under the same name.
WIDENED = {"measurement": "cpu_percent", "decision": "margin_percent"}

# What stands for NULL in the key of a summary.
PROFILE = {
    "model": "''",
    "model_task": "''",
    "classes": "-1",
    "imgsz": "-1",
    "precision": "''",
    "accelerator_kind": "''",
    "product": "''",
    "mig_profile": "''",
    "dataset_fingerprint": "''",
}

TRAINED_SECONDS = """
UPDATE measurement SET trained_seconds = COALESCE(
    CASE WHEN NOT EXISTS (
        SELECT 1 FROM measurement o
        WHERE o.dag_id = measurement.dag_id AND o.run_id = measurement.run_id AND o.task_id = measurement.task_id
            AND o.map_index = measurement.map_index AND o.try_number = measurement.try_number
            AND o.kind = 'train' AND o.id < measurement.id
    ) THEN (
        SELECT SUM(e.seconds) FROM epoch e
        WHERE e.dag_id = measurement.dag_id AND e.run_id = measurement.run_id AND e.task_id = measurement.task_id
            AND e.map_index = measurement.map_index AND e.try_number = measurement.try_number
    ) END,
    CASE WHEN epochs_done > COALESCE(resumed_epochs, 0)
        THEN epoch_seconds * (epochs_done - COALESCE(resumed_epochs, 0)) END
)
WHERE kind = 'train'
"""

FILL_PROFILE = f"""
INSERT INTO profile ({", ".join(PROFILE)}, newest_id, newest_kind, newest_at, measurements)
SELECT {", ".join(PROFILE)}, id, kind, finished_at, measurements
FROM (
    SELECT k.*,
        ROW_NUMBER() OVER (PARTITION BY {", ".join(PROFILE)}
            ORDER BY CASE kind WHEN 'train' THEN 0 ELSE 1 END, finished_at DESC, id DESC) AS place,
        COUNT(*) OVER (PARTITION BY {", ".join(PROFILE)}) AS measurements
    FROM (
        SELECT {", ".join(f"COALESCE({name}, {none}) AS {name}" for name, none in PROFILE.items())},
            id, kind, finished_at
        FROM measurement
        WHERE outcome = 'succeeded' AND kind IN ('train', 'probe')
    ) k
) ordered
WHERE place = 1
"""  # noqa: S608

# {day} is the UTC date of a time, which the two databases write differently.
FILL_USAGE = """
INSERT INTO usage_day (
    dag_id, day, accelerator_kind, product, mig_profile, measurements, succeeded, out_of_memory, training_seconds,
    peak_device_bytes, read_bytes, written_bytes, first_at, last_at
)
SELECT
    dag_id, {day}, COALESCE(accelerator_kind, ''), COALESCE(product, ''), COALESCE(mig_profile, ''),
    COUNT(*),
    SUM(CASE WHEN outcome = 'succeeded' THEN 1 ELSE 0 END),
    SUM(CASE WHEN outcome IN ('gpu_oom', 'host_oom') THEN 1 ELSE 0 END),
    SUM(trained_seconds), MAX(peak_device_bytes), SUM(read_bytes), SUM(written_bytes),
    MIN(finished_at), MAX(finished_at)
FROM measurement
GROUP BY dag_id, {day}, COALESCE(accelerator_kind, ''), COALESCE(product, ''), COALESCE(mig_profile, '')
"""

RUN_HISTORY = """
CREATE VIEW run_history AS
SELECT
    id, dag_id, run_id, task_id, map_index, try_number, part, kind, outcome, finished_at, logical_date, message,
    model, model_task, classes, imgsz, batch, precision, optimizer, epochs, epochs_done, resumed_epochs,
    dataset, dataset_fingerprint, dataset_bytes, train_images, objects_mean, objects_p95, objects_max, workers, cache,
    torch_version, ultralytics_version,
    accelerator_kind, product, device_name, mig_profile, budget_bytes, container_limit_bytes, multiprocessors,
    cpu_cores, node,
    peak_allocated_bytes, peak_reserved_bytes, peak_device_bytes, validation_peak_bytes, peak_rss_bytes,
    peak_container_bytes, rss_growth_bytes, read_bytes, written_bytes,
    step_seconds, epoch_seconds, epoch_seconds_spread, trained_seconds, images_per_second,
    data_wait_percent, iowait_percent, io_pressure_percent, memory_pressure_percent, cpu_percent, throttled_percent,
    device_busy_percent, bound_by, map50, map50_95, origin
FROM measurement
"""

EPOCH_HISTORY = """
CREATE VIEW epoch_history AS
SELECT
    dag_id, run_id, task_id, map_index, try_number, epoch, seconds, images_per_second, peak_device_bytes,
    validation_peak_bytes, data_wait_percent, iowait_percent, losses, metrics
FROM epoch
"""

DECISION_HISTORY = """
CREATE VIEW decision_history AS
SELECT
    dag_id, run_id, task_id, map_index, try_number, decided_at, model, imgsz, precision, accelerator_kind, product,
    mig_profile, budget_bytes, batch, basis, sentence, margin_percent, predicted_bytes, predicted_low_bytes,
    predicted_high_bytes, predicted_epoch_seconds, candidates, evidence
FROM decision
"""

USAGE_BY_DAG = """
CREATE VIEW usage_by_dag AS
SELECT
    dag_id, day, NULLIF(accelerator_kind, '') AS accelerator_kind, NULLIF(product, '') AS product,
    NULLIF(mig_profile, '') AS mig_profile, measurements, succeeded, out_of_memory, training_seconds,
    peak_device_bytes, read_bytes, written_bytes, first_at, last_at
FROM usage_day
"""

RESOURCE_CARD = """
CREATE VIEW resource_card AS
SELECT
    m.id AS measurement_id, m.finished_at, m.kind,
    m.model AS model_type, m.model_task, m.classes, m.imgsz AS input_size, m.precision, m.batch,
    m.dataset, m.dataset_fingerprint, m.accelerator_kind, m.product, m.mig_profile, m.budget_bytes,
    m.peak_device_bytes AS estimated_gpu_memory,
    CASE WHEN m.accelerator_kind = 'cpu' THEN 0 ELSE 1 END AS min_gpu_count,
    m.product AS recommended_gpu, m.mig_profile AS recommended_slice,
    -- A core for each loader process and one for the training itself; what a pod asks for.
    m.workers + 1 AS cpu_cores,
    m.workers AS dataloader_workers,
    -- What a pod is given as /dev/shm (planner/host.py): images of three bytes a pixel, the batches that are ready.
    CASE WHEN m.workers = 0 THEN 0
        WHEN CAST(m.batch AS BIGINT) * m.imgsz * m.imgsz * 3 * (m.workers * 4 + 2) < 268435456 THEN 268435456
        ELSE CAST(m.batch AS BIGINT) * m.imgsz * m.imgsz * 3 * (m.workers * 4 + 2)
    END AS shared_memory,
    COALESCE(m.peak_container_bytes, m.peak_rss_bytes) AS host_memory,
    m.dataset_bytes AS disk_space_required,
    m.epoch_seconds AS expected_duration_per_epoch, m.epoch_seconds_spread, m.images_per_second,
    m.data_wait_percent, m.iowait_percent, m.throttled_percent,
    CASE WHEN m.data_wait_percent >= 20 OR m.iowait_percent >= 20 THEN 1
        WHEN m.data_wait_percent IS NOT NULL OR m.iowait_percent IS NOT NULL THEN 0
    END AS io_intensive,
    m.bound_by AS compute_bound_by,
    1 AS supports_checkpoint_resume,
    p.measurements, m.origin,
    'measured' AS source
FROM profile p
JOIN measurement m ON m.id = p.newest_id
"""

# Training takes about three times the operations of the forward pass that `gflops` counts (the backward pass takes two
# of them), and those of a convolutional network grow with the pixels.
MODEL_SPECTRUM = """
CREATE VIEW model_spectrum AS
SELECT
    m.model, m.model_task, m.classes, m.imgsz, m.precision, m.accelerator_kind, m.product, m.mig_profile,
    CAST(SUM(p.measurements) AS BIGINT) AS measurements,
    f.parameters,
    -- Operations of one image, known for the input size at which the model was looked at.
    CASE WHEN f.gflops_imgsz = m.imgsz THEN f.gflops END AS gflops,
    MAX(m.peak_device_bytes) AS peak_device_bytes,
    CAST(AVG(CAST(m.peak_device_bytes AS DOUBLE PRECISION) / m.batch) AS DOUBLE PRECISION) AS peak_bytes_per_image,
    CASE WHEN f.gflops_imgsz > 0 THEN
        CAST(AVG(
            3e9 * f.gflops * m.imgsz * m.imgsz / (CAST(f.gflops_imgsz AS DOUBLE PRECISION) * f.gflops_imgsz)
            * m.batch / NULLIF(m.peak_device_bytes, 0)
        ) AS DOUBLE PRECISION)
    END AS flops_per_byte,
    -- The loader's wait where it was measured: what the processor waited for disks is a part of it.
    CAST(AVG(COALESCE(m.data_wait_percent, m.iowait_percent)) AS DOUBLE PRECISION) AS io_sensitivity_percent,
    CAST(AVG(m.images_per_second) AS DOUBLE PRECISION) AS images_per_second,
    CAST(AVG(m.data_wait_percent) AS DOUBLE PRECISION) AS data_wait_percent,
    CAST(AVG(m.iowait_percent) AS DOUBLE PRECISION) AS iowait_percent,
    CAST(AVG(m.device_busy_percent) AS DOUBLE PRECISION) AS device_busy_percent,
    MAX(m.finished_at) AS last_at
FROM profile p
JOIN measurement m ON m.id = p.newest_id
LEFT JOIN model f ON f.id = m.model_id
GROUP BY m.model, m.model_task, m.classes, m.imgsz, m.precision, m.accelerator_kind, m.product, m.mig_profile,
    f.parameters, f.gflops_imgsz, f.gflops
"""

# In place of PREDICTION_ERROR's join on PostgreSQL. Its planner takes the five columns of the key for independent,
# expects next to no row of the join, and so reads both tables whole for the newest few. OFFSET 0 keeps this a look-up
# for each decision.
MEASUREMENT_OF_DECISION = """JOIN LATERAL (
    SELECT finished_at, outcome, peak_device_bytes, epoch_seconds
    FROM measurement
    WHERE dag_id = d.dag_id AND run_id = d.run_id AND task_id = d.task_id
        AND map_index = d.map_index AND try_number = d.try_number
        -- A try that took over an older pod ran with that pod's batch, which this decision did not predict.
        AND batch = d.batch
    OFFSET 0
) m ON true
"""

NEW_VIEWS = {"run_history": RUN_HISTORY, "epoch_history": EPOCH_HISTORY, "decision_history": DECISION_HISTORY}
CHANGED_VIEWS = {"usage_by_dag": USAGE_BY_DAG, "resource_card": RESOURCE_CARD, "model_spectrum": MODEL_SPECTRUM}


def new_checks(table: str) -> dict[str, str]:
    """Conditions of the constraints that are new, by column."""
    lengths = {name: f"length({name}) <= {most}" for name, most in MOST_CHARACTERS[table].items()}
    return lengths | {name: f"{name} {condition}" for name, condition in NUMBERS[table].items()}


def summaries() -> list[sa.Table]:
    """The new tables."""
    metadata = sa.MetaData()
    sa.Table("measurement", metadata, sa.Column("id", sa.BigInteger()))  # for the reference to it

    def key(name: str, kind: type[sa.types.TypeEngine[Any]]) -> sa.Column[Any]:
        return sa.Column(name, kind(), primary_key=True, nullable=False, autoincrement=False)

    def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
        return sa.CheckConstraint(f"{name} {condition}", name=op.f(f"ck_{table}_{name}"))

    def lengths(table: str, names: list[str]) -> list[sa.CheckConstraint]:
        most = MOST_CHARACTERS["measurement"]
        return [
            sa.CheckConstraint(f"length({name}) <= {most[name]}", name=op.f(f"ck_{table}_{name}"))
            for name in names
            if name in most
        ]

    usage = ["dag_id", "day", "accelerator_kind", "product", "mig_profile"]
    return [
        sa.Table(
            "profile",
            metadata,
            *(key(name, sa.Integer if name in ("classes", "imgsz") else sa.String) for name in PROFILE),
            sa.Column("newest_id", sa.BigInteger(), nullable=False),
            sa.Column("newest_kind", sa.String(), nullable=False),
            sa.Column("newest_at", sa.DateTime(timezone=True), nullable=False),
            sa.Column("measurements", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint(*PROFILE, name=op.f("pk_profile")),
            sa.ForeignKeyConstraint(["newest_id"], ["measurement.id"], name=op.f("fk_profile_newest_id")),
            *lengths("profile", list(PROFILE)),
        ),
        sa.Table(
            "usage_day",
            metadata,
            *(key(name, sa.Date if name == "day" else sa.String) for name in usage),
            sa.Column("measurements", sa.BigInteger(), nullable=False),
            sa.Column("succeeded", sa.BigInteger(), nullable=False),
            sa.Column("out_of_memory", sa.BigInteger(), nullable=False),
            sa.Column("training_seconds", sa.Double()),
            sa.Column("peak_device_bytes", sa.BigInteger()),
            sa.Column("read_bytes", sa.BigInteger()),
            sa.Column("written_bytes", sa.BigInteger()),
            sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
            sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
            sa.PrimaryKeyConstraint(*usage, name=op.f("pk_usage_day")),
            *lengths("usage_day", usage),
            check("usage_day", "training_seconds", DURATION),
            *(check("usage_day", name, ">= 0") for name in ("peak_device_bytes", "read_bytes", "written_bytes")),
        ),
    ]


def upgrade() -> None:
    bind = op.get_bind()
    is_sqlite = bind.dialect.name == "sqlite"
    # On SQLite a view would follow its table under another name; the others stay as they are.
    kept = {name: sqlite_text(name) for name in ("prediction_error", "oom_history")} if is_sqlite else {}
    first = context.script.get_revision("0001").module
    changed = dict(CHANGED_VIEWS)
    if not is_sqlite:
        start = first.PREDICTION_ERROR.index("JOIN measurement m")
        changed["prediction_error"] = first.PREDICTION_ERROR[:start] + MEASUREMENT_OF_DECISION
    drop_views([*changed, *kept])
    double = sa.Double().compile(dialect=bind.dialect)
    op.execute(
        f"ALTER TABLE measurement ADD COLUMN trained_seconds {double}"
        f" CONSTRAINT ck_measurement_trained_seconds CHECK (trained_seconds {DURATION})"
    )
    op.execute(f"ALTER TABLE measurement ADD COLUMN origin {sa.String().compile(dialect=bind.dialect)}")
    if is_sqlite:
        remake_sqlite({table: constrained(sqlite_text(table), table) for table in TABLES})
    else:
        constrain_postgres()
    out_of_memory = sa.text("outcome IN ('gpu_oom', 'host_oom')")
    op.create_index(op.f("ix_measurement_model"), "measurement", ["model", "finished_at", "id"])
    op.create_index(
        op.f("ix_measurement_out_of_memory"),
        "measurement",
        ["finished_at", "id"],
        sqlite_where=out_of_memory,
        postgresql_where=out_of_memory,
    )
    failure = sa.text(MEMORY_FAILURE)
    op.create_index(
        op.f("ix_measurement_memory_failure_classes"),
        "measurement",
        ["model", "imgsz", "precision", "accelerator_kind", "product", "classes", "batch", "id"],
        sqlite_where=failure,
        postgresql_where=failure,
    )
    for table in summaries():
        table.create(bind)
    op.create_index(op.f("ix_usage_day_day"), "usage_day", ["day"])
    op.execute(TRAINED_SECONDS)
    op.execute(FILL_PROFILE)
    op.execute(
        FILL_USAGE.format(day="date(finished_at)" if is_sqlite else "CAST(finished_at AT TIME ZONE 'UTC' AS DATE)")
    )
    for created in (*kept.values(), *NEW_VIEWS.values(), *changed.values()):
        op.execute(created)


def downgrade() -> None:
    bind = op.get_bind()
    is_sqlite = bind.dialect.name == "sqlite"
    kept = {name: sqlite_text(name) for name in ("prediction_error", "oom_history")} if is_sqlite else {}
    drop_views([*NEW_VIEWS, *CHANGED_VIEWS, *(kept or ["prediction_error"])])
    op.drop_table("usage_day")
    op.drop_table("profile")
    op.drop_index(op.f("ix_measurement_model"), "measurement")
    op.drop_index(op.f("ix_measurement_out_of_memory"), "measurement")
    op.drop_index(op.f("ix_measurement_memory_failure_classes"), "measurement")
    if is_sqlite:
        remake_sqlite({table: unconstrained(sqlite_text(table), table) for table in TABLES})
    else:
        unconstrain_postgres()
    for column in ("origin", "trained_seconds"):
        op.execute(f"ALTER TABLE measurement DROP COLUMN {column}")
    first, second = (context.script.get_revision(revision).module for revision in ("0001", "0002"))
    card = first.RESOURCE_CARD
    if not is_sqlite:
        # PostgreSQL makes columns of the star, and 0002 could not drop its own that a view reads.
        names = [str(column["name"]) for column in sa.inspect(bind).get_columns("measurement")]
        of_first = ", ".join(f"m.{name}" for name in names if name not in second.COLUMNS)
        card = card.replace("m.*", of_first)
    day = "date(m.finished_at)" if is_sqlite else "CAST(m.finished_at AT TIME ZONE 'UTC' AS DATE)"
    if not is_sqlite:
        kept = {"prediction_error": first.PREDICTION_ERROR}
    for created in (first.USAGE_BY_DAG.format(day=day), card, first.MODEL_SPECTRUM, *kept.values()):
        op.execute(created)


def drop_views(names: list[str]) -> None:
    for name in names:
        op.execute(f"DROP VIEW {name}")


def added(table: str) -> str:
    """The new constraints at the end of a table's text."""
    return "".join(f", CONSTRAINT ck_{table}_{name} CHECK ({text})" for name, text in new_checks(table).items())


def widened(table: str) -> tuple[str, str]:
    """The text of the constraint that changes, before and after."""
    name = WIDENED.get(table)
    start = f"CONSTRAINT ck_{table}_{name} CHECK ({name} "
    return (f"{start}>= 0)", f"{start}{DURATION})") if name else ("", "")


def constrained(text: str, table: str) -> str:
    before, after = widened(table)
    return f"{text[: text.rindex(')')]}{added(table)})".replace(before, after)


def unconstrained(text: str, table: str) -> str:
    before, after = widened(table)
    return text.replace(added(table), "").replace(after, before)


def sqlite_text(name: str) -> str:
    """The statement that made a table or a view."""
    found = op.get_bind().execute(sa.text("SELECT sql FROM sqlite_master WHERE name = :name"), {"name": name})
    return str(found.scalar_one())


def remake_sqlite(texts: dict[str, str]) -> None:
    """Make the tables again from these texts, with their rows and indexes.

    Renaming takes along what refers to a table, so that no row is ever without what it refers to.
    """
    bind = op.get_bind()
    named = sa.text("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = :name")
    indexes = [sql for table in texts for sql in bind.execute(named, {"name": table}).scalars()]
    for table in texts:
        op.execute(f"ALTER TABLE {table} RENAME TO _old_{table}")
    for table, text in texts.items():
        # As it stands: a colon in it is no parameter.
        bind.exec_driver_sql(text)
        op.execute(f"INSERT INTO {table} SELECT * FROM _old_{table}")  # noqa: S608
    for table in reversed(texts):
        op.execute(f"DROP TABLE _old_{table}")
    for index in indexes:
        bind.exec_driver_sql(index)


def constrain_postgres() -> None:
    for table in TABLES:
        if (name := WIDENED.get(table)) is not None:
            op.execute(f"ALTER TABLE {table} DROP CONSTRAINT ck_{table}_{name}")
            op.execute(f"ALTER TABLE {table} ADD CONSTRAINT ck_{table}_{name} CHECK ({name} {DURATION})")
        clauses = [f"ADD CONSTRAINT ck_{table}_{name} CHECK ({text})" for name, text in new_checks(table).items()]
        op.execute(f"ALTER TABLE {table} {', '.join(clauses)}")


def unconstrain_postgres() -> None:
    for table in TABLES:
        if (name := WIDENED.get(table)) is not None:
            op.execute(f"ALTER TABLE {table} DROP CONSTRAINT ck_{table}_{name}")
            op.execute(f"ALTER TABLE {table} ADD CONSTRAINT ck_{table}_{name} CHECK ({name} >= 0)")
        op.execute(
            f"ALTER TABLE {table} {', '.join(f'DROP CONSTRAINT ck_{table}_{name}' for name in new_checks(table))}"
        )
