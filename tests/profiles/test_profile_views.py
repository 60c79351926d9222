from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest
from profile_rows import GIB, MODEL, NOON, PROFILE, decision, epoch, measurement, run_key

from yolo_airflow_provider.planner.host import shared_bytes
from yolo_airflow_provider.profiles.migrate import scripts_folder
from yolo_airflow_provider.profiles.store import ProfileStore


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


@pytest.mark.parametrize("order", [("train", "probe"), ("probe", "train")])
def test_a_card_is_that_of_a_training_where_there_is_one(store: ProfileStore, order: tuple[str, str]):
    rows = {
        "train": measurement(batch=32, minute=1),
        "probe": measurement(part="batch-2", kind="probe", batch=2, minute=5),
    }
    for kind in order:
        store.record([rows[kind]])
    (card,) = store.frame("resource_card").to_dict("records")
    assert (card["kind"], card["batch"], card["measurements"]) == ("train", 32, 2)


def test_an_older_training_that_arrives_late_takes_no_ones_place(store: ProfileStore):
    store.record([measurement(batch=8, minute=10)])
    store.record([measurement(part="late", batch=4, minute=1)])
    assert list(store.frame("resource_card")["batch"]) == [8]
    assert list(store.frame("resource_card")["measurements"]) == [2]


@pytest.mark.parametrize(("batch", "imgsz", "workers"), [(1, 64, 1), (16, 640, 4), (512, 1280, 16), (16, 640, 0)])
def test_the_shared_memory_of_a_card_is_what_a_pod_is_given(store: ProfileStore, batch: int, imgsz: int, workers: int):
    store.record([measurement(batch=batch, imgsz=imgsz, workers=workers)])
    (card,) = store.frame("resource_card").to_dict("records")
    assert card["shared_memory"] == shared_bytes(batch=batch, imgsz=imgsz, workers=workers)
    assert card["cpu_cores"] == workers + 1


@pytest.mark.parametrize(
    ("waits", "intensive"), [((None, None), None), ((19.9, 3.0), 0), ((20.0, None), 1), ((None, 25.0), 1)]
)
def test_a_card_says_whether_the_data_is_what_it_waits_for(store: ProfileStore, waits, intensive):
    store.record([measurement(data_wait_percent=waits[0], iowait_percent=waits[1])])
    (found,) = store.frame("resource_card")["io_intensive"]
    assert (None if pd.isna(found) else found) == intensive


def test_model_spectrum_is_the_mean_of_the_newest_of_each_data_set(store: ProfileStore):
    store.record(
        [
            measurement(part="old", minute=-9, data_wait_percent=99.0),
            measurement(part="a", data_wait_percent=10.0, peak_device_bytes=GIB),
            measurement(part="b", dataset_fingerprint="other", data_wait_percent=30.0),
            measurement(part="c", imgsz=320, iowait_percent=7.0),
        ],
        models=[MODEL],
    )
    spectrum = store.frame("model_spectrum").set_index("imgsz")
    assert (spectrum.loc[640, "data_wait_percent"], spectrum.loc[640, "io_sensitivity_percent"]) == (20.0, 20.0)
    assert spectrum.loc[320, "io_sensitivity_percent"] == 7.0
    assert spectrum.loc[640, "peak_device_bytes"] == 3 * GIB
    assert spectrum.loc[640, "peak_bytes_per_image"] == 2 * GIB / 16
    assert spectrum.loc[640, "measurements"] == 3


def test_model_spectrum_knows_operations_at_their_size_and_scales_them_by_pixels(store: ProfileStore):
    store.record([measurement(part="a"), measurement(part="c", imgsz=320)], models=[MODEL])
    spectrum = store.frame("model_spectrum").set_index("imgsz")
    assert spectrum.loc[640, "gflops"] == 6.4
    assert spectrum["gflops"].isna()[320]
    assert spectrum.loc[320, "parameters"] == MODEL.parameters
    intensity = 3 * 6.4e9 / (3 * GIB / 16)
    assert spectrum.loc[640, "flops_per_byte"] == pytest.approx(intensity)
    assert spectrum.loc[320, "flops_per_byte"] == pytest.approx(intensity / 4)


def test_imports_are_known_and_used_nothing_here(store: ProfileStore):
    store.record([measurement(origin="lab b", key=run_key(dag_id="lab b:yolo"))])
    assert list(store.frame("resource_card")["origin"]) == ["lab b"]
    assert len(store.evidence(PROFILE)) == 1
    assert len(store.frame("usage_by_dag")) == 0


def test_epochs_of_a_try_that_left_nothing_else_are_counted_once(store: ProfileStore):
    second = run_key(try_number=2)
    store.record([measurement(key=second)], [epoch(1), epoch(2), epoch(3, key=second)])
    third = run_key(try_number=3)
    store.record([measurement(key=third)], [epoch(1), epoch(2), epoch(3, key=second), epoch(4, key=third)])
    assert store.frame("usage_by_dag")["training_seconds"].sum() == pytest.approx(4 * 10.5)
    assert sorted(store.frame("run_history")["trained_seconds"]) == [10.5, 31.5]


QUERIES = sorted((scripts_folder() / "queries").glob("*.sql"))


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_example_queries_say_what_they_answer_and_run(store: ProfileStore, query: Path):
    later = run_key(run_id="manual__2")
    store.record(
        [
            measurement(epoch_seconds=1.0, epochs_done=2, data_wait_percent=50.0),
            measurement(part="b", outcome="gpu_oom"),
        ],
        [epoch(1)],
        [MODEL],
    )
    store.decide(decision())
    store.decide(decision(key=later, batch=8, decided_at=NOON))
    text = query.read_text()
    assert text.startswith("-- ")
    assert "?" in text.splitlines()[0]
    with store.engine.connect() as connection:
        assert len(connection.exec_driver_sql(text.rstrip().rstrip(";")).all()) == 1
