from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from cluster_jobs import YOLO_RETRY_POLICY, training
from cluster_kube import Kube
from cluster_pods import TRY, PodWatch, SeenPod
from cluster_runs import epochs_done, meanwhile, run_dag, wait_until
from cluster_settings import SLICE
from kubernetes.client import models as k8s

from yolo_airflow_provider.profiles.records import MeasurementRow
from yolo_airflow_provider.profiles.store import ProfileStore


def rows(store: ProfileStore, dag: DAG, run: Any) -> list[MeasurementRow]:
    return [item.row for item in store.measurements(dag.dag_id, run.run_id)]


def answer(run: Any, task_id: str = "train") -> dict[str, Any]:
    (ti,) = (ti for ti in run.get_task_instances() if ti.task_id == task_id)
    found: dict[str, Any] = ti.xcom_pull(task_ids=task_id)
    return found


def tries(run: Any) -> int:
    (ti,) = run.get_task_instances()
    return int(ti.try_number)


@pytest.mark.limit(300)
def test_d4_an_oomkilled_pod_is_on_record_and_the_next_try_takes_a_smaller_batch(
    airflow: Path, pods: PodWatch, store: ProfileStore, drawn: Callable[..., str], log: Any
) -> None:
    def dag() -> DAG:
        return training(
            "oom_on_cpu",
            data=drawn(train=32, val=2, size=320),
            accelerator="cpu",
            imgsz=320,
            # Predicted to need more than that, and not so much more that it would be refused.
            batch=24,
            memory_budget="1600Mi",
            retries=3,
            retry_policy=YOLO_RETRY_POLICY,
        )

    run = run_dag(dag())
    assert run.state == "success"
    first, *later = pods.pods("oom_on_cpu")
    ended = first.pod.status.container_statuses[0].state.terminated
    assert (ended.reason, ended.exit_code) == ("OOMKilled", 137)
    assert first.limits["memory"] == str(1600 * 2**20)
    assert later

    *failed, succeeded = rows(store, dag(), run)
    assert {row.outcome for row in failed} == {"host_oom"}
    assert failed[0].batch == 24
    batches = [row.batch for row in (*failed, succeeded)]
    assert batches == sorted(batches, reverse=True)
    assert succeeded.outcome == "succeeded"
    assert answer(run)["batch"] == succeeded.batch < 24
    for said in ("OOMKilled (exit code 137)", "memory limit", "batch 24", "next try"):
        assert said in log.text

    again = run_dag(dag())
    assert (again.state, tries(again)) == ("success", 1)
    # What fit narrows the prediction; what did not is never tried again.
    assert succeeded.batch <= answer(again)["batch"] < min(row.batch for row in failed)
    assert len(pods.pods("oom_on_cpu", run_id=again.run_id)) == 1


def test_b1_out_of_memory_on_a_slice_shows_as_an_nvml_assertion_and_shrinks_the_batch(
    airflow: Path, pods: PodWatch, store: ProfileStore, drawn: Callable[..., str]
) -> None:
    dag = training(
        "nvml_assertion", data=drawn(), batch=8, env_vars=[k8s.V1EnvVar(name="YOLO_STANDIN_FAULT", value="gpu_oom:1")]
    )
    run = run_dag(dag)
    assert run.state == "success"
    first, second = rows(store, dag, run)
    assert (first.outcome, first.batch) == ("gpu_oom", 8)
    assert second.batch is not None
    assert second.batch < 8
    assert [seen.annotations["yolo-airflow.io/batch"] for seen in pods.pods("nvml_assertion")] == [
        "8",
        str(second.batch),
    ]


def test_b8_a_lost_gpu_keeps_the_batch_and_resumes(
    airflow: Path, pods: PodWatch, store: ProfileStore, drawn: Callable[..., str], log: Any
) -> None:
    dag = training(
        "gpu_lost",
        data=drawn(),
        epochs=3,
        batch=8,
        env_vars=[k8s.V1EnvVar(name="YOLO_STANDIN_FAULT", value="gpu_lost:2")],
    )
    run = run_dag(dag)
    assert run.state == "success"
    outcomes = [(row.outcome, row.batch) for row in rows(store, dag, run)]
    assert outcomes == [("gpu_lost", 8), ("succeeded", 8)]
    given = answer(run)
    assert (given["epochs_done"], given["resumed_epochs"]) == (3, 1)
    assert "resumes" in log.text


def in_epoch_two(pods: PodWatch, workspace: Path, dag_id: str) -> SeenPod:
    """The training's running pod, once its first epoch is written down."""
    seen = pods.wait_for_pod(dag_id, "train", "runs", lambda one: one.phase == "Running")
    wait_until(lambda: epochs_done(workspace, dag_id) >= 1, f"the first epoch of {dag_id}")
    return seen


LONG = {"epochs": 3, "batch": 4}
"""Epochs of three seconds or so on two cores."""


def test_e5_a_pod_that_somebody_deletes_is_resumed(
    airflow: Path, kube: Kube, pods: PodWatch, store: ProfileStore, workspace: Path, drawn: Callable[..., str]
) -> None:
    dag = training("deleted_by_hand", data=drawn(train=64, val=4, size=160), imgsz=160, **LONG)
    with meanwhile(lambda: kube.delete_now(in_epoch_two(pods, workspace, "deleted_by_hand").pod)):
        run = run_dag(dag)
    assert run.state == "success"
    given = answer(run)
    assert given["epochs_done"] == 3
    assert given["resumed_epochs"] >= 1
    first, second = pods.pods("deleted_by_hand")
    assert (first.annotations[TRY], second.annotations[TRY]) == ("1", "2")
    assert epochs_done(workspace, "deleted_by_hand") == 3
    outcomes = [row.outcome for row in rows(store, dag, run)]
    assert outcomes[-1] == "succeeded"
    assert outcomes[0] in ("lost", "preempted")


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_e10_an_evicted_training_saves_and_resumes_with_the_same_plan(
    airflow: Path,
    kube: Kube,
    pods: PodWatch,
    store: ProfileStore,
    workspace: Path,
    drawn: Callable[..., str],
    deferrable: bool,
) -> None:
    dag_id = "evicted_deferred" if deferrable else "evicted"
    dag = training(dag_id, data=drawn(train=64, val=4, size=160), imgsz=160, deferrable=deferrable, **LONG)
    with meanwhile(lambda: kube.evict(in_epoch_two(pods, workspace, dag_id).pod)):
        run = run_dag(dag)
    assert run.state == "success"
    stopped, resumed = rows(store, dag, run)
    (worker_said,) = (workspace / dag_id).glob("*/train/*/result-1.json")
    assert json.loads(worker_said.read_text(encoding="utf-8"))["failure"]["failure_class"] == "preempted"
    # Kubelet 1.20 may take a deleted pod's container away before it has written down how it ended.
    first = pods.pods(dag_id)[0].pod.status.container_statuses[0]
    assert stopped.outcome == "preempted" or (stopped.outcome == "lost" and first.state.terminated is None)
    assert resumed.outcome == "succeeded"
    assert stopped.batch == resumed.batch == 4
    given = answer(run)
    assert given["epochs_done"] == 3
    assert given["resumed_epochs"] >= 1
    plans = {seen.annotations["yolo-airflow.io/plan"] for seen in pods.pods(dag_id)}
    assert len(plans) == 1


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_d8_a_pod_that_is_gone_before_its_result_was_read_fails_and_is_reported_by_the_next_try(
    airflow: Path, kube: Kube, pods: PodWatch, store: ProfileStore, drawn: Callable[..., str], deferrable: bool
) -> None:
    dag_id = "unread_deferred" if deferrable else "unread"
    dag = training(dag_id, data=drawn(), deferrable=deferrable, poll_interval=8, get_logs=False)
    for task in dag.tasks:
        task.base_container_status_polling_interval = 8

    def take_away() -> None:
        kube.delete_now(pods.wait_for_pod(dag_id, "train", "succeeded", lambda one: one.phase == "Succeeded").pod)

    with meanwhile(take_away):
        run = run_dag(dag)
    assert run.state == "success"
    assert tries(run) == 2
    assert answer(run)["epochs_done"] == 1
    recorded = rows(store, dag, run)
    assert sorted(row.outcome for row in recorded) == ["lost", "succeeded"]
    # The training ran once, in try 1, and is on record as that.
    (trained,) = (row for row in recorded if row.outcome == "succeeded")
    assert trained.key.try_number == 1


def test_an_image_that_cannot_be_pulled_is_named_with_the_registrys_words(
    airflow: Path, pods: PodWatch, store: ProfileStore, drawn: Callable[..., str], log: Any
) -> None:
    dag = training("no_image", data=drawn(), image="registry.invalid/nobody/worker:7", retries=0)
    run = run_dag(dag)
    assert run.state == "failed"
    (row,) = rows(store, dag, run)
    assert row.outcome == "image"
    assert row.message is not None
    assert "registry.invalid/nobody/worker:7" in row.message
    assert "ImageNotStarted" in log.text
    assert "failed to do request" in row.message or "no such host" in row.message


def test_c8_a_training_killed_for_host_memory_beside_a_gpu_gets_more_of_it_and_keeps_its_batch(
    airflow: Path, pods: PodWatch, store: ProfileStore, drawn: Callable[..., str]
) -> None:
    fault = k8s.V1EnvVar(name="YOLO_STANDIN_FAULT", value="host_memory:1")
    dag = training("host_oom_beside_gpu", data=drawn(), batch=8, workers=0, env_vars=[fault])
    run = run_dag(dag)
    assert run.state == "success"
    outcomes = [(row.outcome, row.batch) for row in rows(store, dag, run)]
    assert outcomes == [("host_oom", 8), ("succeeded", 8)]
    first, second = pods.pods("host_oom_beside_gpu")
    assert int(second.limits["memory"]) >= 1.5 * int(first.limits["memory"])
    assert first.limits[SLICE] == second.limits[SLICE] == "1"
