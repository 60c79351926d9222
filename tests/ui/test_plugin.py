"""The plugin's page, on the application that Airflow's web server would mount."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.records import DecisionRow, MeasurementRow, RunKey


def test_the_plugin_loads_no_web_server() -> None:
    """Workers import it for every task."""
    program = (
        "import sys; from airflow.plugins_manager import AirflowPlugin; before = set(sys.modules);"
        "import yolo_airflow_provider.ui.plugin; print(*sorted(set(sys.modules) - before))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {name.split(".")[0] for name in ended.stdout.splitlines()[-1].split()} == {"yolo_airflow_provider"}


@pytest.fixture
def store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'profiles.db'}"
    monkeypatch.setenv("AIRFLOW__YOLO__PROFILE_STORE", url)
    return url


def fill(url: str, model: str) -> None:
    key = RunKey(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1)
    now = datetime(2026, 12, 1, 12, tzinfo=UTC)
    store = open_store(url)
    store.decide(
        DecisionRow(
            key=key,
            decided_at=now,
            model=model,
            imgsz=640,
            precision="amp",
            accelerator_kind="mig",
            product="NVIDIA A100",
            mig_profile="1g.5gb",
            budget_bytes=5 * 2**30,
            batch=16,
            basis="line",
            sentence="s",
            margin_percent=10,
            predicted_bytes=3 * 2**30,
        )
    )
    store.record(
        [
            MeasurementRow(
                key=key,
                part="train",
                kind="train",
                outcome="succeeded",
                finished_at=now,
                model=model,
                batch=16,
                peak_device_bytes=2 * 2**30,
            )
        ]
    )


def test_the_page_shows_what_came_out_and_escapes_what_users_named(store_url: str) -> None:
    from yolo_airflow_provider.ui.decisions import decisions

    fill(store_url, model="<script>alert(1)</script>")
    page = bytes(decisions().body).decode()
    assert "3.00 GiB" in page
    assert "2.00 GiB" in page
    assert "50.0" in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_an_empty_store_says_so(store_url: str) -> None:
    from yolo_airflow_provider.ui.decisions import decisions

    assert "No training was planned" in bytes(decisions().body).decode()


_ANYBODY = """
from fastapi.testclient import TestClient
from airflow.api_fastapi.app import create_app
with TestClient(create_app(apps="core")) as client:
    print([client.get(f"/yolo-profiles/{path}").status_code for path in ("decisions", "openapi.json")])
"""


@pytest.mark.slow
def test_without_a_login_there_is_nothing_to_see(airflow_database: Path) -> None:
    """On Airflow's own web application, in a process of its own."""
    ended = subprocess.run([sys.executable, "-c", _ANYBODY], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "[401, 404]"
