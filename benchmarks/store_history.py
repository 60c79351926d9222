"""A long history for a profile store on PostgreSQL, made on the server: what 200 DAGs leave behind in two years.

Ten epochs a measurement; how often a model or a slice occurs is skewed as it is in life.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic.script import ScriptDirectory

from benchmarks.output import progress
from yolo_airflow_provider.profiles import migrate

# A run has ten measurements: five probe points, four trainings of 25 epochs, and a preprocessing or an export.
PER_RUN = 10
_EPOCHS = 25
_CHUNK_RUNS = 10_000
_START = datetime(2024, 1, 1, tzinfo=UTC)
_YEARS = timedelta(days=730)
_GIB = 2**30
_FAMILIES = (("yolo11", ""), ("yolov8", ""), ("yolo11", "-seg"), ("yolov8", "-seg"))
_SIZES = {"n": 2.6, "s": 9.4, "m": 20.1, "l": 25.3, "x": 56.9}
_MODELS = [(f"{family}{size}{task}", "segment" if task else "detect", _SIZES[size]) for family, task in _FAMILIES
           for size in _SIZES]  # fmt: skip
_ACCELERATORS = [
    ("mig", "NVIDIA A100-SXM4-40GB", "1g.5gb", 5),
    ("mig", "NVIDIA A100-SXM4-40GB", "2g.10gb", 10),
    ("mig", "NVIDIA A100-SXM4-40GB", "3g.20gb", 20),
    ("mig", "NVIDIA H100 80GB HBM3", "1g.10gb", 10),
    ("gpu", "NVIDIA A100-SXM4-40GB", None, 40),
    ("gpu", "NVIDIA H100 80GB HBM3", None, 80),
    ("gpu", "Tesla T4", None, 15),
    ("cpu", None, None, 16),
]
_CLASSES = [80, 1, 3, 20]

FILL_MODELS = """
INSERT INTO model (name, task, classes, parameters, stride, gflops, gflops_imgsz)
SELECT name, task, classes, CAST(millions * 1e6 AS BIGINT) + classes * 1000, 32, millions * 2.5, 640
FROM unnest(CAST(:models AS TEXT[]), CAST(:tasks AS TEXT[]), CAST(:millions AS FLOAT8[])) AS m (name, task, millions)
CROSS JOIN unnest(CAST(:classes AS INTEGER[])) AS c (classes)
"""

# What is the run's is drawn once a run, the rest once a row; materialized, so that nothing is drawn again.
FILL_MEASUREMENTS = """
WITH runs AS MATERIALIZED (
    SELECT
        run,
        1 + CAST(floor(power(random(), 2) * cardinality(CAST(:models AS TEXT[]))) AS INTEGER) AS m,
        1 + CAST(floor(power(random(), 2) * cardinality(CAST(:products AS TEXT[]))) AS INTEGER) AS a,
        CASE WHEN random() < 0.6 THEN 640 WHEN random() < 0.5 THEN 320 ELSE 1280 END AS imgsz,
        CASE WHEN random() < 0.85 THEN 'amp' ELSE 'fp32' END AS precision
    FROM generate_series(CAST(:first AS BIGINT), CAST(:last AS BIGINT)) AS run
), drawn AS MATERIALIZED (
    SELECT
        runs.*, slot, run % 200 AS dag, run % 20 AS dataset,
        (CAST(:classes AS INTEGER[]))[1 + run % cardinality(CAST(:classes AS INTEGER[]))] AS classes,
        CASE WHEN slot < 5 THEN 'probe' WHEN slot < 9 THEN 'train' WHEN run % 2 = 0 THEN 'preprocess' ELSE 'export' END
            AS kind,
        random() AS luck, 0.98 + 0.04 * random() AS noise,
        CASE WHEN slot < 5 THEN CAST(power(2, slot + 1) AS INTEGER) ELSE 8 + 4 * CAST(floor(6 * random()) AS INTEGER)
            END AS batch
    FROM runs CROSS JOIN generate_series(0, :per_run - 1) AS slot
    WHERE run * :per_run + slot < :measurements
), ended AS (
    SELECT
        *, (CAST(:millions AS FLOAT8[]))[m] AS size,
        CASE WHEN luck < 0.92 THEN 'succeeded' WHEN luck < 0.97 THEN 'gpu_oom' WHEN luck < 0.98 THEN 'host_oom'
            WHEN luck < 0.99 THEN 'preempted' ELSE 'data' END AS outcome,
        CAST(:start AS TIMESTAMPTZ) + run * CAST(:between AS INTERVAL) + slot * INTERVAL '10 minutes' AS finished_at
    FROM drawn
)
INSERT INTO measurement (
    dag_id, run_id, task_id, map_index, try_number, part, kind, outcome, finished_at, logical_date, message,
    model_id, model, model_task, classes, imgsz, precision, optimizer, epochs, epochs_done, resumed_epochs,
    dataset, dataset_fingerprint, train_images, dataset_bytes, workers, torch_version, ultralytics_version,
    accelerator_kind, product, device_name, mig_profile, budget_bytes, cpu_cores, node,
    batch, peak_device_bytes, peak_reserved_bytes, peak_rss_bytes, read_bytes, written_bytes,
    epoch_seconds, trained_seconds, images_per_second, data_wait_percent, iowait_percent, bound_by, map50, map50_95
)
SELECT
    'training_' || dag, 'scheduled__' || run, kind, CASE kind WHEN 'train' THEN slot - 5 ELSE -1 END, 1,
    CASE kind WHEN 'probe' THEN 'batch-' || batch ELSE kind END, kind, outcome, finished_at, finished_at,
    CASE WHEN outcome <> 'succeeded' THEN 'the ' || kind || ' ended with ' || outcome || ' at batch ' || batch END,
    model.id, model.name, model.task, drawn.classes, imgsz, precision, 'SGD',
    CASE kind WHEN 'train' THEN :epochs END, CASE kind WHEN 'train' THEN :epochs END, 0,
    'dataset_' || dataset, md5(CAST(dataset AS TEXT)), 5000, 2e9, 8, '2.7.0', '8.3.0',
    (CAST(:kinds AS TEXT[]))[a], (CAST(:products AS TEXT[]))[a], (CAST(:products AS TEXT[]))[a],
    (CAST(:profiles AS TEXT[]))[a], (CAST(:budgets AS BIGINT[]))[a], 8, 'node-' || run % 16,
    batch, CASE outcome WHEN 'succeeded' THEN peak END, CASE outcome WHEN 'succeeded' THEN peak * 0.9 END, 4e9 * noise,
    2e9, 1e8, CASE kind WHEN 'train' THEN 60 * noise END, CASE kind WHEN 'train' THEN :epochs * 60 * noise END,
    83 * noise, 30 * luck, 10 * luck, CASE WHEN luck < 0.8 THEN 'gpu' ELSE 'data' END, 0.7 * noise, 0.5 * noise
FROM (
    SELECT *, 1e9 + batch * 4e6 * (10 + size) * power(imgsz / 640.0, 2) * noise
        * CASE precision WHEN 'amp' THEN 0.6 ELSE 1 END AS peak
    FROM ended
) AS drawn
JOIN model ON model.name = (CAST(:models AS TEXT[]))[m] AND model.classes = drawn.classes
ORDER BY run, slot
"""

FILL_EPOCHS = """
INSERT INTO epoch (
    dag_id, run_id, task_id, map_index, try_number, epoch, seconds, images_per_second, peak_device_bytes,
    validation_peak_bytes, data_wait_percent, iowait_percent, losses, metrics
)
SELECT
    dag_id, run_id, task_id, map_index, try_number, number, epoch_seconds, images_per_second, peak_device_bytes,
    peak_device_bytes / 2, data_wait_percent, iowait_percent,
    jsonb_build_object('box', 3.0 / number, 'cls', 2.0 / number, 'dfl', 1.5 / number),
    jsonb_build_object('map50', 0.7 - 0.5 / number, 'map50_95', 0.5 - 0.4 / number)
FROM measurement CROSS JOIN generate_series(1, :epochs) AS number
WHERE kind = 'train' AND id > :above AND id <= :up_to
ORDER BY id, number
"""

FILL_DECISIONS = """
INSERT INTO decision (
    dag_id, run_id, task_id, map_index, try_number, decided_at, model, imgsz, precision, accelerator_kind, product,
    mig_profile, budget_bytes, batch, basis, sentence, margin_percent, predicted_bytes, predicted_low_bytes,
    predicted_high_bytes, predicted_epoch_seconds, candidates, evidence
)
SELECT
    dag_id, run_id, task_id, map_index, try_number, finished_at - INTERVAL '30 minutes', model, imgsz, precision,
    accelerator_kind, COALESCE(product, ''), COALESCE(mig_profile, ''), budget_bytes, batch,
    (ARRAY['measured', 'line', 'scaled', 'fallback'])[1 + id % 4],
    'batch ' || batch || ' of ' || model || ' is the largest that fits with the margin', 10,
    peak_device_bytes * 1.03, peak_device_bytes * 0.97, peak_device_bytes * 1.1, 62,
    jsonb_build_array(jsonb_build_object('batch', batch), jsonb_build_object('batch', batch * 2)),
    jsonb_build_array(id - 1, id - 2, id - 3)
FROM measurement
WHERE kind = 'train' AND id > :above AND id <= :up_to
ORDER BY id
"""


def fill(engine: sa.Engine, measurements: int) -> None:
    """Make the history on the server, oldest first, as it comes about.

    Ids start at 1. The primary keys of epochs and decisions are made when these are there: keeping them sorted
    meanwhile takes most of the time.
    """
    script = ScriptDirectory(str(migrate.scripts_folder())).get_revision("0003").module
    runs = -(-measurements // PER_RUN)
    key = "(dag_id, run_id, task_id, map_index, try_number"
    _execute(engine, ("SELECT setseed(0.5)", {}), (FILL_MODELS, _lists()))
    for primary in ("ALTER TABLE epoch DROP CONSTRAINT pk_epoch", "ALTER TABLE decision DROP CONSTRAINT pk_decision"):
        _execute(engine, (primary, {}))
    for first in range(0, runs, _CHUNK_RUNS):
        last = min(first + _CHUNK_RUNS, runs) - 1
        numbers = {"first": first, "last": last, "measurements": measurements, "between": _YEARS / runs}
        chunk = {"above": first * PER_RUN, "up_to": (last + 1) * PER_RUN}
        _execute(
            engine,
            # In each transaction anew: the pool may have given another connection.
            ("SELECT setseed(CAST(:seed AS FLOAT8))", {"seed": 1 / (first + 2)}),
            (FILL_MEASUREMENTS, _lists() | numbers | {"start": _START, "per_run": PER_RUN, "epochs": _EPOCHS}),
            (FILL_EPOCHS, chunk | {"epochs": _EPOCHS}),
            (FILL_DECISIONS, chunk),
        )
        progress(f"filled {min((last + 1) * PER_RUN, measurements):,} of {measurements:,} measurements")
    _execute(
        engine,
        ("SET LOCAL maintenance_work_mem = '512MB'", {}),
        (f"ALTER TABLE epoch ADD CONSTRAINT pk_epoch PRIMARY KEY {key}, epoch)", {}),
        (f"ALTER TABLE decision ADD CONSTRAINT pk_decision PRIMARY KEY {key})", {}),
        (script.FILL_PROFILE, {}),
        (script.FILL_USAGE.format(day="CAST(finished_at AT TIME ZONE 'UTC' AS DATE)"), {}),
    )
    progress("made the keys and the summaries")


def _execute(engine: sa.Engine, *statements: tuple[str, dict[str, Any]]) -> None:
    with engine.begin() as connection:
        # A task's statements end after seconds; these take minutes.
        connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
        for statement, parameters in statements:
            connection.execute(sa.text(statement), parameters)


def _lists() -> dict[str, list[Any]]:
    models, tasks, millions = map(list, zip(*_MODELS, strict=True))
    kinds, products, profiles, gib = map(list, zip(*_ACCELERATORS, strict=True))
    places = {"kinds": kinds, "products": products, "profiles": profiles, "budgets": [size * _GIB for size in gib]}
    return places | {"models": models, "tasks": tasks, "millions": millions, "classes": _CLASSES}
