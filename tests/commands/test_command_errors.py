from __future__ import annotations

import json

import pytest
from command_rows import GIB, ask, decision, measurement, run

from yolo_airflow_provider.profiles.store import ProfileStore


@pytest.fixture
def filled(store: ProfileStore) -> ProfileStore:
    """Of what the line predicted one run took less, one more, one more than the interval, and one did not fit."""
    taken = {"less": int(2.5 * GIB), "more": int(3.75 * GIB), "beyond": 5 * GIB}
    store.record(
        [
            *(measurement(key=run(run_id=name), peak_device_bytes=peak) for name, peak in taken.items()),
            measurement(key=run(run_id="failed"), outcome="gpu_oom", peak_device_bytes=None),
            measurement(key=run(run_id="measured")),
            measurement(key=run(run_id="unplanned"), outcome="host_oom"),
            measurement(key=run(run_id="long ago"), outcome="gpu_oom", hours_ago=24 * 40),
        ]
    )
    for name in (*taken, "failed"):
        store.decide(decision(key=run(run_id=name), predicted_epoch_seconds=15.0 if name == "less" else None))
    store.decide(decision(key=run(run_id="measured"), basis="measured", predicted_bytes=int(3.3 * GIB)))
    store.decide(decision(key=run(run_id="long ago"), basis="fallback", hours_ago=24 * 40))
    return store


def test_errors_are_summarised_by_basis(filled: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(filled, "errors", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    line, measured = report["predictions"]
    assert line == {
        "basis": "line",
        "predictions": 4,
        "compared": 3,
        # 3 predicted against 2.5, 3.75 and 5.
        "mean_error_percent": pytest.approx((20 + 20 + 40) / 3),
        "largest_error_percent": pytest.approx(40),
        "within_interval_percent": pytest.approx(100 * 2 / 3),
        "too_low": 2,
        "above_interval": 1,
        "out_of_memory": 1,
        "mean_epoch_error_percent": pytest.approx(25),
    }
    assert (measured["basis"], measured["too_low"]) == ("measured", 0)
    assert measured["mean_error_percent"] == pytest.approx(10)
    assert report["out_of_memory"] == {"gpu_oom": 1, "host_oom": 1}


def test_the_window_is_thirty_days_unless_said(filled: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(filled, "errors", "--since", "60d", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["basis"] for row in report["predictions"]} == {"line", "measured", "fallback"}
    assert report["out_of_memory"] == {"gpu_oom": 2, "host_oom": 1}


def test_people_get_the_summary_and_what_ran_out_of_memory(
    filled: ProfileStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(filled, "errors") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["line", "4", "3", "26.7", "40.0", "66.7", "2", "1", "1", "25.0"]
    assert lines[-1].endswith("included: 1 gpu_oom, 1 host_oom")


def test_rows_are_the_predictions(filled: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(filled, "errors", "--rows", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 5
    assert {row["run_id"]: row["error_percent"] for row in rows}["less"] == pytest.approx(20)
    assert ask(filled, "errors", "--rows") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 5
