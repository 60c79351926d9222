"""`yolo-airflow demo` as a newcomer runs it: the example DAG twice, for real, and the table at its end."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from yolo_airflow_provider.cli import main
from yolo_airflow_provider.demo.report import outcome, what_changed
from yolo_airflow_provider.demo.shapes import draw_shapes
from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.migrate import scripts_folder
from yolo_airflow_provider.profiles.records import DecisionRow, MeasurementRow, RunKey

KEY = RunKey(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
DECISION = DecisionRow(
    key=KEY,
    decided_at=datetime(2026, 12, 1, tzinfo=UTC),
    model="yolov8n",
    imgsz=320,
    precision="fp32",
    accelerator_kind="cpu",
    product="",
    mig_profile="",
    budget_bytes=3 * 2**30,
    batch=16,
    basis="line",
    sentence="s",
    margin_percent=10,
    predicted_bytes=2 * 2**30,
    predicted_high_bytes=3 * 2**30,
)


@pytest.mark.slow
def test_the_demo_learns_from_its_first_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    options = ["--imgsz", "64", "--epochs", "1", "--memory-budget", "1700Mi", "--format", "torchscript"]
    ended = subprocess.run(
        [sys.executable, "-m", "yolo_airflow_provider.cli", "demo", "--home", str(home), *options],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

    store = open_store(f"sqlite:///{home / 'yolo_profiles.db'}")
    errors = store.frame("prediction_error").sort_values("decided_at")
    first_run, second_run = errors["run_id"]
    rows = [store.measurements("yolo_train", run_id) for run_id in (first_run, second_run)]
    kinds = ["preprocess", "probe", "probe", "probe", "train", "export"]
    assert [[item.row.kind for item in run] for run in rows] == [kinds, kinds]
    assert all(item.row.outcome == "succeeded" for run in rows for item in run)

    (first,), (second,) = (store.decisions("yolo_train", run_id) for run_id in (first_run, second_run))
    assert first.evidence == [item.id for item in rows[0] if item.row.kind == "probe"]
    trained = next(item for item in rows[0] if item.row.kind == "train")
    assert trained.id in second.evidence
    measured = next(item.row for item in rows[1] if item.row.kind == "train")
    assert measured.batch == second.batch
    assert measured.peak_device_bytes == pytest.approx(second.predicted_bytes, rel=0.15)
    assert measured.peak_rss_bytes is not None
    assert measured.peak_device_bytes is not None
    assert measured.peak_rss_bytes >= measured.peak_device_bytes

    with store.engine.connect() as connection:
        answers = {
            query.stem: len(connection.exec_driver_sql(query.read_text().rstrip().rstrip(";")).all())
            for query in (scripts_folder() / "queries").glob("*.sql")
        }
    # A training's card and the probe's points are one profile; nothing failed, and nothing has to be waited for.
    assert answers["resource_cards"] == answers["model_spectrum"] == answers["epochs_of_the_last_training"] == 1
    assert answers["usage_by_dag"] == 1
    assert answers["prediction_error"] >= 1
    assert answers["runs_that_failed"] == answers["out_of_memory"] == 0

    assert "epoch 1/1" in ended.stdout + ended.stderr  # progress is seen while it runs
    for said in ("Resource card", f"run 1: {first.sentence}", f"run 2: {second.sentence}", "changed: ", "mAP50"):
        assert said in ended.stdout
    artefacts = [line.split()[1] for line in ended.stdout.splitlines() if line.strip().startswith("artefact")]
    assert len(artefacts) == 2
    assert all(Path(artefact).is_file() for artefact in artefacts)


def test_a_data_set_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--data", str(tmp_path / "none.yaml"), "--home", str(tmp_path / "home")]) == 1
    assert f"the data set {tmp_path / 'none.yaml'} does not exist" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_the_shapes_are_the_same_every_time(tmp_path: Path) -> None:
    one, other = (draw_shapes(tmp_path / name, train=3, val=2, size=64) for name in ("one", "other"))
    files = sorted(path.relative_to(one.parent) for path in one.parent.rglob("*") if path.is_file())
    assert len(files) == 11
    assert all((one.parent / file).read_bytes() == (other.parent / file).read_bytes() for file in files)


def test_what_changed_tells_up_from_down() -> None:
    more = replace(DECISION, batch=24, predicted_high_bytes=int(2.2 * 2**30))
    assert what_changed(DECISION, more) == (
        "changed: batch 16 -> 24, because the prediction stands on more: line +50 % -> line +10 %"
    )
    assert what_changed(more, DECISION) == "changed: batch 24 -> 16, because of what was measured since"
    assert "nothing, batch 16 again" in what_changed(DECISION, DECISION)


def test_a_try_that_ran_out_of_memory_does_not_show_the_next_ones_numbers() -> None:
    failed = MeasurementRow(
        key=KEY, part="train", kind="train", outcome="host_oom", finished_at=DECISION.decided_at, message="too much"
    )
    assert outcome(DECISION, failed) == "came out: host_oom: too much"
    fitted = replace(failed, outcome="succeeded", peak_device_bytes=2**31, epoch_seconds=3.0, map50=0.5)
    assert outcome(DECISION, fitted) == "came out: 2.00 GiB, predicted +0.0 %, 3.0 s an epoch, mAP50 0.500"
    assert outcome(DECISION, None) == "came out: not measured"
