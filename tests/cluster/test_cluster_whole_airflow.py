from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_airflow import Airflow
from cluster_pods import PodWatch, SeenPod
from cluster_runs import epochs_done, wait_until
from cluster_settings import SLICES

from yolo_airflow_provider.profiles.store import ProfileStore

LABEL = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")


@pytest.fixture(scope="module")
def whole(
    namespace: str,
    node: str,
    pods: PodWatch,
    drawn: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Airflow]:
    """All of Airflow, for the module; DAGs in tests/cluster/dags."""
    drawn(train=8, val=4, size=32)
    drawn(train=64, val=4, size=160)
    home = tmp_path_factory.mktemp("airflow")
    (home / "config").symlink_to(Path(os.environ["AIRFLOW_HOME"]) / "config")
    airflow = Airflow(home, store_url(home))
    try:
        airflow.start()
        yield airflow
    finally:
        airflow.stop()


def store_url(home: Path) -> str:
    return f"sqlite:///{home / 'profiles.db'}"


@pytest.fixture
def store(whole: Airflow) -> ProfileStore:
    from yolo_airflow_provider.profiles.engine import open_store

    return open_store(store_url(whole.home), upgrade=True)


def training_pod(pods: PodWatch, workspace: Path, dag_id: str) -> SeenPod:
    """The pod of a training that has done its first epoch."""
    seen = pods.wait_for_pod(dag_id, "train", "runs", lambda one: one.phase == "Running")
    wait_until(lambda: epochs_done(workspace, dag_id) >= 1, f"the first epoch of {dag_id}")
    return seen


def test_a_killed_worker_leaves_its_pod_to_the_next_try(
    whole: Airflow, pods: PodWatch, store: ProfileStore, workspace: Path
) -> None:
    dag_id = "worker_killed"
    run_id = whole.trigger(dag_id)
    seen = training_pod(pods, workspace, dag_id)
    pid = whole.task(dag_id, run_id)["pid"]
    supervisor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for process in (supervisor, pid):
        os.kill(process, signal.SIGKILL)

    assert whole.wait_for_end(dag_id, run_id) == "success"
    assert whole.task(dag_id, run_id)["try_number"] == 2
    assert [one.pod.metadata.uid for one in pods.pods(dag_id)] == [seen.pod.metadata.uid]
    assert "Adopting pod" in whole.log(dag_id, run_id, 2)
    assert whole.answer(dag_id, run_id)["epochs_done"] == 8
    assert whole.answer(dag_id, run_id)["resumed_epochs"] == 0
    # On record as the try that is on the pod.
    (stored,) = store.measurements(dag_id, run_id)
    assert (stored.row.outcome, stored.row.key.try_number) == ("succeeded", 1)


def test_a_killed_triggerer_does_not_lose_the_run(whole: Airflow, pods: PodWatch, workspace: Path) -> None:
    dag_id = "triggerer_killed_deferred"
    run_id = whole.trigger(dag_id)
    training_pod(pods, workspace, dag_id)
    whole.wait_for_task(dag_id, run_id, "deferred")
    whole.kill_component("triggerer")
    whole.start_component("triggerer")

    assert whole.wait_for_end(dag_id, run_id) == "success"
    assert whole.task(dag_id, run_id)["try_number"] == 1
    assert len(pods.pods(dag_id)) == 1
    assert whole.answer(dag_id, run_id)["epochs_done"] == 8


@pytest.mark.parametrize("mode", ["running", "deferred"])
def test_d12_marking_a_task_failed_deletes_its_pod(
    whole: Airflow, pods: PodWatch, store: ProfileStore, workspace: Path, mode: str
) -> None:
    dag_id = "marked_failed_deferred" if mode == "deferred" else "marked_failed"
    run_id = whole.trigger(dag_id)
    seen = training_pod(pods, workspace, dag_id)
    whole.wait_for_task(dag_id, run_id, mode)
    whole.set_state(dag_id, run_id, "failed")
    pods.wait_for(lambda: seen.pod.metadata.deletion_timestamp or seen.gone, "the pod to be deleted", 60)
    assert whole.wait_for_end(dag_id, run_id) == "failed"
    pods.wait_for(lambda: seen.gone, "the pod to be gone", 60)
    assert len(pods.pods(dag_id)) == 1
    assert [item.row.outcome for item in store.measurements(dag_id, run_id)] == []


@pytest.mark.parametrize("mode", ["running", "deferred"])
def test_d12_clearing_a_task_deletes_its_pod_and_resumes_in_another(
    whole: Airflow, pods: PodWatch, workspace: Path, mode: str
) -> None:
    dag_id = "cleared_deferred" if mode == "deferred" else "cleared"
    run_id = whole.trigger(dag_id)
    seen = training_pod(pods, workspace, dag_id)
    whole.wait_for_task(dag_id, run_id, mode)
    whole.clear(dag_id, run_id)
    pods.wait_for(lambda: seen.pod.metadata.deletion_timestamp or seen.gone, "the pod to be deleted", 60)

    assert whole.wait_for_end(dag_id, run_id) == "success"
    first, second = pods.pods(dag_id)
    assert first.gone
    # Never two at once: the second was made when the first had ended.
    assert second.pod.metadata.creation_timestamp >= first.pod.metadata.deletion_timestamp
    given = whole.answer(dag_id, run_id)
    assert given["epochs_done"] == 4
    assert given["resumed_epochs"] >= 1


def test_any_id_makes_valid_labels_and_full_annotations(whole: Airflow, pods: PodWatch) -> None:
    dag_id = next(dag["dag_id"] for dag in whole.call("GET", "dags?limit=100")["dags"] if "Vision" in dag["dag_id"])
    run_id = "手動の実行/2026-12-01T00:00:00+00:00 überprüft"
    run_id = whole.trigger(dag_id, run_id.replace("/", "_"))
    assert whole.wait_for_end(dag_id, run_id) == "success"
    (seen,) = pods.pods(dag_id)
    assert seen.annotations["yolo-airflow.io/run"] == run_id
    assert seen.annotations["yolo-airflow.io/task"] == "Prüfung.DER_Daten"
    assert all(LABEL.match(value) for value in seen.pod.metadata.labels.values())
    assert seen.pod.metadata.labels["yolo-airflow.io/dag"]


@pytest.mark.limit(1900)
def test_d1_fifty_mapped_trainings_share_seven_slices(whole: Airflow, pods: PodWatch, store: ProfileStore) -> None:
    dag_id = "fifty"
    run_id = whole.trigger(dag_id)
    assert whole.wait_for_end(dag_id, run_id, 1800) == "success"
    tasks = whole.tasks(dag_id, run_id)
    assert len(tasks) == 50
    assert {(task["state"], task["try_number"]) for task in tasks} == {("success", 1)}
    seen = pods.pods(dag_id)
    assert len(seen) == 50
    assert 2 <= pods.most_slices[dag_id] <= SLICES
    assert {item.row.outcome for item in store.measurements(dag_id, run_id)} == {"succeeded"}
    assert len(store.measurements(dag_id, run_id)) == 50
    decisions = store.decisions(dag_id, run_id)
    assert sorted(decision.key.map_index for decision in decisions) == list(range(50))
    assert {decision.model for decision in decisions} == {"yolov8n", "yolo11n"}
    pods.wait_for(lambda: all(one.gone for one in seen), "all pods to be gone", 60)
