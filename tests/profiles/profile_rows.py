from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from yolo_airflow_provider.profiles.records import (
    DecisionRow,
    EpochRow,
    MeasurementRow,
    ModelRow,
    ProfileKey,
    RunKey,
)

NOON = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
GIB = 2**30


def run_key(**changes: Any) -> RunKey:
    return replace(RunKey(dag_id="yolo", run_id="manual__1", task_id="train", map_index=-1, try_number=1), **changes)


def measurement(*, part: str = "train", minute: int = 0, key: RunKey | None = None, **changes: Any) -> MeasurementRow:
    row = MeasurementRow(
        key=key or run_key(),
        part=part,
        kind="train",
        outcome="succeeded",
        finished_at=NOON + timedelta(minutes=minute),
        model="yolo11n",
        model_task="detect",
        classes=3,
        imgsz=640,
        batch=16,
        precision="amp",
        accelerator_kind="mig",
        product="NVIDIA A100-SXM4-40GB",
        mig_profile="1g.5gb",
        peak_device_bytes=3 * GIB,
    )
    return replace(row, **changes)


def epoch(number: int, *, key: RunKey | None = None, **changes: Any) -> EpochRow:
    return replace(EpochRow(key=key or run_key(), epoch=number, seconds=10.5), **changes)


def decision(*, key: RunKey | None = None, **changes: Any) -> DecisionRow:
    row = DecisionRow(
        key=key or run_key(),
        decided_at=NOON - timedelta(minutes=30),
        model="yolo11n",
        imgsz=640,
        precision="amp",
        accelerator_kind="mig",
        product="NVIDIA A100-SXM4-40GB",
        mig_profile="1g.5gb",
        budget_bytes=5 * GIB,
        batch=16,
        basis="line",
        sentence="batch 16 on 1g.5gb",
        margin_percent=10.0,
        predicted_bytes=3 * GIB + 300 * 2**20,
    )
    return replace(row, **changes)


MODEL = ModelRow(
    name="yolo11n", task="detect", classes=3, parameters=2_590_425, stride=32, gflops=6.4, gflops_imgsz=640
)
PROFILE = ProfileKey(
    model="yolo11n", imgsz=640, precision="amp", accelerator_kind="mig", product="NVIDIA A100-SXM4-40GB"
)
