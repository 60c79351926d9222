"""Rows as a few days of trainings leave them, and the command line on a store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from yolo_airflow_provider.cli import main
from yolo_airflow_provider.profiles.records import DecisionRow, EpochRow, MeasurementRow, ModelRow, RunKey
from yolo_airflow_provider.profiles.store import ProfileStore

GIB = 2**30
# Within the last days, as `--since` counts from now; to the second, as nothing here depends on less.
LATELY = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)

MODEL = ModelRow(
    name="yolov8n", task="detect", classes=3, parameters=3_011_433, stride=32, gflops=8.2, gflops_imgsz=640
)


def run(**changes: Any) -> RunKey:
    return replace(RunKey(dag_id="cells", run_id="manual__1", task_id="train", map_index=-1, try_number=1), **changes)


def measurement(*, key: RunKey | None = None, hours_ago: float = 0, **changes: Any) -> MeasurementRow:
    row = MeasurementRow(
        key=key or run(),
        part="train",
        kind="train",
        outcome="succeeded",
        finished_at=LATELY - timedelta(hours=hours_ago),
        model="yolov8n",
        model_task="detect",
        classes=3,
        imgsz=640,
        batch=16,
        precision="amp",
        workers=4,
        dataset="blood",
        dataset_fingerprint="ab12",
        dataset_bytes=3 * 2**20,
        train_images=200,
        accelerator_kind="mig",
        product="NVIDIA-A100-SXM4-40GB",
        mig_profile="1g.5gb",
        budget_bytes=4864 * 2**20,
        peak_device_bytes=3 * GIB,
        peak_rss_bytes=2 * GIB,
        epoch_seconds=12.0,
        epoch_seconds_spread=0.5,
        epochs=3,
        epochs_done=3,
        images_per_second=50.0,
        data_wait_percent=4.0,
        bound_by="compute",
    )
    return replace(row, **changes)


def epoch(number: int, *, key: RunKey | None = None, **changes: Any) -> EpochRow:
    return replace(EpochRow(key=key or run(), epoch=number, seconds=12.5), **changes)


def decision(*, key: RunKey | None = None, hours_ago: float = 0, **changes: Any) -> DecisionRow:
    row = DecisionRow(
        key=key or run(),
        decided_at=LATELY - timedelta(hours=hours_ago, minutes=30),
        model="yolov8n",
        imgsz=640,
        precision="amp",
        accelerator_kind="mig",
        product="NVIDIA-A100-SXM4-40GB",
        mig_profile="1g.5gb",
        budget_bytes=4864 * 2**20,
        batch=16,
        basis="line",
        sentence="batch 16 on 1g.5gb",
        margin_percent=10.0,
        predicted_bytes=3 * GIB,
        predicted_low_bytes=2 * GIB,
        predicted_high_bytes=4 * GIB,
    )
    return replace(row, **changes)


def url_of(store: ProfileStore) -> str:
    return store.engine.url.render_as_string(hide_password=False)


def ask(store: ProfileStore | str, *command: str) -> int:
    """`yolo-airflow profiles ...` on a store; returns the exit code."""
    return main(["profiles", *command, "--url", store if isinstance(store, str) else url_of(store)])
