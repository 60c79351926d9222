"""From an answer to rows: under which try a measurement is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from yolo_airflow_provider.contract import JobResult, JobSpec, Measurement
from yolo_airflow_provider.operators.record import measurement_rows


def point(batch: int, try_number: int | None) -> Measurement:
    return Measurement(
        part=f"batch-{batch}",
        try_number=try_number,
        batch=batch,
        precision="fp32",
        optimizer="SGD",
        workers=0,
        peak_device_bytes=2**30,
    )


def rows(make_job: Callable[..., dict[str, Any]], *points: Measurement) -> list[tuple[int, str]]:
    raw = make_job("probe", try_number=2, model="yolov8n", data="d.yaml", imgsz=64, batches=[2, 8])
    result = JobResult(kind="probe", try_number=2, measurements=points)
    found = measurement_rows(JobSpec.from_json(json.dumps(raw)), result, None)
    return [(row.key.try_number, row.part) for row in found]


def test_a_point_is_recorded_under_the_try_that_measured_it(make_job: Callable[..., dict[str, Any]]) -> None:
    assert rows(make_job, point(2, 1), point(8, None)) == [(1, "batch-2"), (2, "batch-8")]


def test_a_try_that_measured_nothing_itself_has_a_row_of_its_end(make_job: Callable[..., dict[str, Any]]) -> None:
    assert rows(make_job, point(2, 1), point(8, 1)) == [(1, "batch-2"), (1, "batch-8"), (2, "end")]
