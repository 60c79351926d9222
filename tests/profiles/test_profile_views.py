from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from profile_rows import GIB, MODEL, NOON, decision, epoch, measurement, run_key

from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.migrate import scripts_folder
from yolo_airflow_provider.profiles.store import ProfileStore


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return open_store(f"sqlite:///{tmp_path / 'profiles.db'}")


def test_prediction_error_is_that_of_the_run_that_followed(store: ProfileStore):
    store.decide(decision(predicted_bytes=4 * GIB, predicted_low_bytes=2 * GIB, predicted_high_bytes=6 * GIB))
    store.decide(decision(key=run_key(try_number=2), predicted_bytes=2 * GIB))
    store.decide(decision(key=run_key(try_number=3), batch=8))
    store.decide(decision(key=run_key(try_number=4)))
    store.record(
        [
            measurement(peak_device_bytes=5 * GIB),
            measurement(key=run_key(try_number=2), outcome="gpu_oom", peak_device_bytes=3 * GIB),
            # Took over a pod that ran with batch 16.
            measurement(key=run_key(try_number=3)),
        ]
    )
    frame = store.frame("prediction_error").sort_values("try_number")
    assert list(frame["try_number"]) == [1, 2]
    assert list(frame["error_percent"].fillna(999)) == [pytest.approx(-20.0), 999]
    assert list(frame["within_interval"].fillna(-1)) == [1, -1]


def test_oom_history_holds_memory_failures_only(store: ProfileStore):
    store.record([measurement(part=outcome, outcome=outcome) for outcome in ("gpu_oom", "host_oom", "data", "lost")])
    assert set(store.frame("oom_history")["outcome"]) == {"gpu_oom", "host_oom"}


def test_usage_counts_recorded_epochs_or_estimates(store: ProfileStore):
    other = run_key(run_id="manual__2")
    store.record(
        [
            measurement(read_bytes=5),
            measurement(key=other, epoch_seconds=4.0, epochs_done=10, resumed_epochs=7, outcome="gpu_oom", minute=9),
            measurement(key=run_key(task_id="probe"), kind="probe", epoch_seconds=1.0, epochs_done=5, read_bytes=6),
            measurement(key=run_key(run_id="next day"), finished_at=NOON + timedelta(days=1)),
        ],
        [epoch(1), epoch(2)],
    )
    frame = store.frame("usage_by_dag")
    assert [str(day.date()) for day in frame["day"]] == ["2026-05-05", "2026-05-04"]
    row = frame.iloc[1]
    assert row["training_seconds"] == pytest.approx(2 * 10.5 + 3 * 4.0)
    assert (row["measurements"], row["succeeded"], row["out_of_memory"], row["read_bytes"]) == (3, 2, 1, 11)
    assert row["last_at"] - row["first_at"] == timedelta(minutes=9)


def test_resource_card_is_the_newest_success(store: ProfileStore):
    store.record(
        [
            measurement(part="a", batch=8),
            measurement(part="b", batch=32, minute=1, workers=4, epoch_seconds=7.5),
            measurement(part="c", minute=2, outcome="gpu_oom"),
            measurement(part="d", imgsz=320, minute=3),
        ]
    )
    cards = store.frame("resource_card").set_index("input_size")
    assert set(cards.index) == {320, 640}
    assert (cards.loc[640, "batch"], cards.loc[640, "dataloader_workers"]) == (32, 4)
    assert cards.loc[640, "expected_duration_per_epoch"] == 7.5
    assert cards.loc[640, "estimated_gpu_memory"] == 3 * GIB


def test_model_spectrum_knows_operations_only_at_their_size(store: ProfileStore):
    store.record(
        [
            measurement(part="a", data_wait_percent=10.0, peak_device_bytes=GIB),
            measurement(part="b", data_wait_percent=30.0),
            measurement(part="c", imgsz=320),
        ],
        models=[MODEL],
    )
    spectrum = store.frame("model_spectrum").set_index("imgsz")
    assert spectrum.loc[640, "data_wait_percent"] == 20.0
    assert spectrum.loc[640, "peak_device_bytes"] == 3 * GIB
    assert spectrum.loc[640, "gflops"] == 6.4
    assert spectrum["gflops"].isna()[320]
    assert spectrum.loc[320, "parameters"] == MODEL.parameters


QUERIES = sorted((scripts_folder() / "queries").glob("*.sql"))


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_example_queries_say_what_they_answer_and_run(store: ProfileStore, query: Path):
    store.record(
        [
            measurement(epoch_seconds=1.0, epochs_done=2, data_wait_percent=50.0),
            measurement(part="b", outcome="gpu_oom"),
        ],
        models=[MODEL],
    )
    store.decide(decision())
    text = query.read_text()
    assert text.startswith("-- ")
    assert "?" in text.splitlines()[0]
    with store.engine.connect() as connection:
        assert len(connection.exec_driver_sql(text.rstrip().rstrip(";")).all()) == 1
