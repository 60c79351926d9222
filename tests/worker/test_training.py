"""Trainings in processes of their own: killed, cut short, out of memory, without a network."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

MakeJob = Callable[..., dict[str, Any]]
StartWorker = Callable[..., Any]


@pytest.fixture
def training(make_job: MakeJob, shapes: Path) -> Callable[..., dict[str, Any]]:
    def build(**changes: Any) -> dict[str, Any]:
        try_number, budget = changes.pop("try_number", 1), changes.pop("budget_bytes", None)
        job = {"model": "yolov8n", "data": str(shapes), "imgsz": 64, "epochs": 3, "batch": 4} | changes
        return make_job("train", try_number=try_number, budget_bytes=budget, **job)

    return build


def epochs_of(spec: dict[str, Any]) -> list[tuple[int, int]]:
    """(try, epoch) of every epoch that was trained."""
    lines = (Path(spec["run_folder"]) / "epochs.jsonl").read_text().splitlines()
    return [(record["try_number"], record["epoch"]) for record in map(json.loads, lines)]


def test_e5_killed_in_epoch_2_and_retried_the_folder_holds_three_epochs(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    first = start_worker(training())
    first.wait_for("epoch 1/3")
    os.kill(first.process.pid, signal.SIGKILL)
    assert first.end() == -signal.SIGKILL
    assert not Path(first.spec["result_path"]).exists()
    folder = Path(first.spec["run_folder"])
    weights = folder / "train" / "weights"
    kept = next(file for file in (weights / "last.pt", weights / "previous.pt") if file.exists())
    assert torch.load(kept, weights_only=False)["optimizer"]["state"]  # momentum goes on where it was

    second = start_worker(training(try_number=2))
    assert second.end() == 0, second.log
    resumed = second.answer["train"]["resumed_epochs"]
    # The kill may come after the checkpoint of epoch 2, so epoch 2 belongs to either try; none is trained twice.
    assert 1 <= resumed < 3
    assert [epoch for number, epoch in epochs_of(second.spec) if number == 2] == list(range(resumed + 1, 4))
    summary = second.answer["train"]
    assert (summary["epochs"], summary["epochs_done"]) == (3, 3)
    assert f"resuming after epoch {resumed} of 3 from {weights}/" in second.log
    rows = (folder / "train" / "results.csv").read_text().splitlines()[1:]
    assert {int(row.split(",")[0]) for row in rows} == {1, 2, 3}
    # Both tries' logs are there without Airflow's.
    assert "epoch 1/3: " in (folder / "worker-1.log").read_text()
    assert (folder / "worker-2.log").read_text().splitlines() == second.lines


def test_e6_a_torn_last_pt_falls_back_one_epoch(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    first = start_worker(training(epochs=4))
    first.wait_for("epoch 3/4")
    first.process.kill()
    first.end()
    weights = Path(first.spec["run_folder"]) / "train" / "weights"
    last = weights / "last.pt"
    reached = epochs_of(first.spec)[-1][1]
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])

    second = start_worker(training(epochs=4, try_number=2))
    assert second.end() == 0, second.log
    assert f"checkpoint {last}" in second.log
    assert "does not load and is passed over" in second.log
    assert second.answer["train"]["resumed_epochs"] == reached - 1
    assert second.answer["train"]["epochs_done"] == 4
    assert [epoch for number, epoch in epochs_of(second.spec) if number == 2] == list(range(reached, 5))


def test_e6_all_checkpoints_torn_starts_anew(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    first = start_worker(training(epochs=2))
    first.wait_for("epoch 1/2")
    first.process.kill()
    first.end()
    for file in (Path(first.spec["run_folder"]) / "train" / "weights").glob("*.pt"):
        file.write_bytes(b"")
    second = start_worker(training(epochs=2, try_number=2))
    assert second.end() == 0, second.log
    assert second.answer["train"]["resumed_epochs"] == 0


def test_e10_sigterm_in_an_epoch_is_saved_preempted_and_resumed(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    first = start_worker(training())
    first.wait_for("epoch 1/3")
    first.process.terminate()
    assert first.end() == 75, first.log
    assert first.answer["failure"]["failure_class"] == "preempted"
    assert first.answer["measurements"][0]["peak_device_bytes"] > 0
    assert (Path(first.spec["run_folder"]) / "train" / "weights" / "last.pt").exists()

    second = start_worker(training(try_number=2, batch=8))
    assert second.end() == 0, second.log
    assert "now with batch 8 instead of 4" in second.log
    assert second.answer["train"]["resumed_epochs"] >= 1
    assert second.answer["train"]["epochs_done"] == 3


def test_a_finished_training_is_reported_again_with_its_own_measurement(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    first = start_worker(training(epochs=1))
    assert first.end() == 0, first.log
    again = start_worker(training(epochs=1, try_number=2))
    assert again.end() == 0, again.log
    assert "nothing is trained" in again.log
    assert again.answer["try_number"] == 1
    assert again.answer["measurements"] == first.answer["measurements"]


def test_a_finished_training_without_an_answer_is_validated_not_trained(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    first = start_worker(training(epochs=1))
    assert first.end() == 0, first.log
    (Path(first.spec["run_folder"]) / "result-1.json").unlink()
    again = start_worker(training(epochs=1, try_number=2))
    assert again.end() == 0, again.log
    assert "validated, not trained again" in again.log
    assert again.answer["train"]["metrics"] == first.answer["train"]["metrics"]
    assert again.answer.get("measurements", []) == []
    assert epochs_of(again.spec) == [(1, 1)]


def test_e2_another_training_in_the_same_folder_is_told_and_kept_aside(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    first = start_worker(training(epochs=1))
    assert first.end() == 0, first.log
    other = start_worker(training(epochs=2, try_number=2))
    assert other.end() == 0, other.log
    assert "another training (epochs 1 -> 2)" in other.log
    assert (Path(first.spec["run_folder"]) / "train-before-1" / "weights" / "best.pt").exists()
    assert other.answer["train"]["resumed_epochs"] == 0


def test_results_of_another_training_are_not_this_ones(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    """Finished, started anew with other settings, killed: the first result must not pass for the second training's."""
    assert start_worker(training(epochs=1)).end() == 0
    second = start_worker(training(epochs=3, try_number=2))
    second.wait_for("epoch 1/3")
    second.process.kill()
    second.end()
    third = start_worker(training(epochs=3, try_number=3))
    assert third.end() == 0, third.log
    assert third.answer["train"]["epochs"] == 3
    assert third.answer["train"]["epochs_done"] == 3
    assert third.answer["train"]["resumed_epochs"] >= 1
    assert third.answer["try_number"] == 3
    assert (Path(third.spec["run_folder"]) / "train-before-1" / "result-1.json").exists()


def test_e6_a_torn_best_checkpoint_does_not_end_all_later_tries(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    """A kill while the trainer strips best.pt in place, after the last epoch."""
    first = start_worker(training(epochs=1))
    assert first.end() == 0, first.log
    folder = Path(first.spec["run_folder"])
    (folder / "result-1.json").unlink()
    best = folder / "train" / "weights" / "best.pt"
    best.write_bytes(best.read_bytes()[:1000])
    second = start_worker(training(epochs=1, try_number=2))
    assert second.end() == 0, second.log
    assert second.answer["train"]["epochs_done"] == 1
    assert best.stat().st_size > 1_000_000


def test_over_its_budget_it_ends_as_host_oom_with_the_numbers(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker
) -> None:
    budget = 1100 * 2**20  # the model alone takes about 800 MiB, batch 16 about 1,900
    worker = start_worker(training(imgsz=320, batch=16, budget_bytes=budget))
    assert worker.end() == 17, worker.log
    failure = worker.answer["failure"]
    assert failure["failure_class"] == "host_oom"
    assert failure["budget_bytes"] == budget
    assert failure["needed_bytes"] > budget
    assert "batch 16 reached 1." in failure["message"]
    assert "over its budget of 1.07 GiB" in failure["message"]


def test_the_measurement_is_whole(training: Callable[..., dict[str, Any]], start_worker: StartWorker) -> None:
    worker = start_worker(training(epochs=2))
    assert worker.end() == 0, worker.log
    measured = worker.answer["measurements"][0]
    assert measured["batch"] == 4
    assert 2**28 < measured["validation_peak_bytes"] <= measured["peak_device_bytes"] < 2**32
    assert 0 < measured["epoch_seconds"] < 300
    assert 0 < measured["step_seconds"] < measured["epoch_seconds"]
    assert 0 < measured["data_wait_percent"] < 100
    assert 0 <= measured["iowait_percent"] <= 100
    assert measured["images_per_second"] > 0
    assert measured["bound_by"] in ("compute", "data_loading")
    assert "peak_allocated_bytes" not in measured  # there is no such figure on cpu, and null is not zero
    assert worker.answer["model"]["parameters"] == 3011433
    assert worker.answer["environment"]["torch"]
    assert len([line for line in worker.lines if line.startswith("epoch ")]) == 2


def test_c5_a_container_that_hides_its_cores(
    training: Callable[..., dict[str, Any]], start_worker: StartWorker, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os\nos.cpu_count = lambda: None\n")
    worker = start_worker(training(epochs=1), PYTHONPATH=str(site))
    assert worker.end() == 0, worker.log
