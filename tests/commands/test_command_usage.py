from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from command_rows import GIB, ask, epoch, measurement, run

from yolo_airflow_provider.commands.usage import add_up
from yolo_airflow_provider.profiles.store import ProfileStore

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
DAY = {
    "dag_id": "cells",
    "day": date(2026, 5, 4),
    "accelerator_kind": "cpu",
    "product": None,
    "mig_profile": None,
    "measurements": 2,
    "succeeded": 1,
    "out_of_memory": 1,
    "training_seconds": 10.0,
    "peak_device_bytes": 5,
    "read_bytes": None,
    "written_bytes": 7,
    "first_at": NOON,
    "last_at": NOON,
}


def used(store: ProfileStore, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert ask(store, "usage", "--json", *options) == 0
    return json.loads(capsys.readouterr().out)


def test_days_are_added_up() -> None:
    later = datetime(2026, 5, 5, 1, tzinfo=UTC)
    days = [
        DAY,
        DAY | {"day": date(2026, 5, 5), "training_seconds": None, "peak_device_bytes": 9, "last_at": later},
        DAY | {"dag_id": "cars", "training_seconds": 30.0},
    ]
    cars, cells = add_up(days, ("dag_id",))
    assert cars == {name: value for name, value in days[2].items() if name in cars}
    assert cells["dag_id"] == "cells"
    assert (cells["measurements"], cells["out_of_memory"], cells["written_bytes"]) == (4, 2, 14)
    assert (cells["training_seconds"], cells["peak_device_bytes"], cells["read_bytes"]) == (10.0, 9, None)
    assert (cells["first_at"], cells["last_at"]) == (NOON, later)


def test_usage_is_by_dag_and_device(store: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [run(run_id="a"), run(run_id="b"), run(run_id="c", dag_id="cars")]
    store.record(
        [
            measurement(key=keys[0], hours_ago=72),
            measurement(key=keys[1], outcome="gpu_oom", epochs_done=0, peak_device_bytes=4 * GIB),
            measurement(key=keys[2], accelerator_kind="cpu", product=None, mig_profile=None, epoch_seconds=900.0),
        ],
        [epoch(1, key=keys[0]), epoch(2, key=keys[0])],
    )
    cars, cells = used(store, capsys)
    assert (cars["dag_id"], cars["accelerator_kind"], cars["training_seconds"]) == ("cars", "cpu", 2700.0)
    assert (cells["dag_id"], cells["mig_profile"], cells["training_seconds"]) == ("cells", "1g.5gb", 25.0)
    assert (cells["measurements"], cells["succeeded"], cells["out_of_memory"]) == (2, 1, 1)
    assert cells["peak_device_bytes"] == 4 * GIB

    assert [row["measurements"] for row in used(store, capsys, "--since", "1d", "--by", "device")] == [1, 1]
    days = used(store, capsys, "--by", "day")
    assert [row["measurements"] for row in days] == [2, 1]
    assert days[0]["day"] > days[1]["day"]

    assert ask(store, "usage") == 0
    _, _, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("cars")
    assert "45.0 min" in first
    assert "1x 1g.5gb of NVIDIA-A100-SXM4-40GB" in second
