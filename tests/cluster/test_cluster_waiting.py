from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import training
from cluster_kube import Kube
from cluster_pods import PodWatch
from cluster_runs import meanwhile, run_dag
from cluster_settings import NAMESPACE, SLICE, SLICES, STANDIN_IMAGE
from kubernetes.client import models as k8s

from yolo_airflow_provider.profiles.store import ProfileStore


@contextmanager
def all_slices_taken(kube: Kube, node: str) -> Iterator[k8s.V1Pod]:
    """One pod that holds every slice."""
    amount = {SLICE: str(SLICES)}
    pod = kube.core.create_namespaced_pod(
        NAMESPACE,
        {
            "metadata": {"generateName": "holds-all-"},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "base",
                        "image": STANDIN_IMAGE,
                        "command": ["sleep", "600"],
                        "resources": {"limits": amount, "requests": amount},
                    }
                ],
            },
        },
    )
    try:
        yield pod
    finally:
        from kubernetes.client.exceptions import ApiException

        try:
            kube.delete_now(pod)
        except ApiException as error:
            if error.status != 404:
                raise


def test_b17_a_slice_that_no_node_offers_fails_in_seconds_with_what_is_offered(
    airflow: Path, pods: PodWatch, store: ProfileStore, drawn: Callable[..., str], log: Any
) -> None:
    dag = training("no_such_slice", data=drawn(), accelerator="3g.20gb", retries=0)
    started = time.monotonic()
    run = run_dag(dag)
    assert run.state == "failed"
    assert time.monotonic() - started < 20
    assert pods.pods("no_such_slice") == []
    (stored,) = store.measurements("no_such_slice", run.run_id)
    assert stored.row.outcome == "unschedulable"
    for said in ("Unschedulable", "3g.20gb", "nvidia.com/mig-1g.5gb", "4.75 GiB", "7/7"):
        assert said in log.text


def test_b17_a_request_larger_than_any_node_fails_in_seconds(
    airflow: Path, pods: PodWatch, drawn: Callable[..., str], log: Any
) -> None:
    much = k8s.V1ResourceRequirements(requests={"cpu": "512", "memory": "1Gi"})
    dag = training("larger_than_any_node", data=drawn(), container_resources=much, retries=0)
    run = run_dag(dag)
    assert run.state == "failed"
    assert pods.pods("larger_than_any_node") == []
    assert "512 CPUs asked, the most on one node is" in log.text


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_d1_a_pod_waits_for_a_busy_slice_and_runs_when_one_gets_free(
    airflow: Path, kube: Kube, node: str, pods: PodWatch, drawn: Callable[..., str], log: Any, deferrable: bool
) -> None:
    dag_id = "waits_deferred" if deferrable else "waits"
    # The image's deadline is over long before the slice gets free: it does not count while the pod has no node.
    dag = training(
        dag_id, data=drawn(), startup_timeout_seconds=60, schedule_timeout_seconds=600, deferrable=deferrable, retries=0
    )
    with all_slices_taken(kube, node) as holder:

        def release() -> None:
            pods.wait_for_pod(dag_id, "train", "waits", lambda one: f"Insufficient {SLICE}" in one.unschedulable)
            kube.delete_now(holder)

        with meanwhile(release):
            run = run_dag(dag)
    assert run.state == "success"
    assert len(pods.pods(dag_id)) == 1
    assert f"all {SLICES} are in use" in log.text


def test_a_slice_that_stays_busy_ends_in_its_own_error(
    airflow: Path, kube: Kube, node: str, pods: PodWatch, store: ProfileStore, drawn: Callable[..., str], log: Any
) -> None:
    dag = training("stays_busy", data=drawn(), schedule_timeout_seconds=3, retries=0)
    with all_slices_taken(kube, node):
        run = run_dag(dag)
    assert run.state == "failed"
    (stored,) = store.measurements("stays_busy", run.run_id)
    assert stored.row.outcome == "unschedulable"
    assert f"Insufficient {SLICE}" in (stored.row.message or "")
    assert "Unschedulable" in log.text


def test_a_pod_waits_for_a_cordoned_node(
    airflow: Path, kube: Kube, node: str, pods: PodWatch, drawn: Callable[..., str], log: Any
) -> None:
    dag = training("cordoned", data=drawn(), retries=0)
    kube.cordon(node)

    def uncordon() -> None:
        pods.wait_for_pod("cordoned", "train", "waits", lambda one: one.unschedulable)
        kube.cordon(node, False)

    try:
        with meanwhile(uncordon):
            run = run_dag(dag)
    finally:
        kube.cordon(node, False)
    assert run.state == "success"
    assert "cordoned" in log.text


def test_b9_a_pod_waits_for_slices_that_are_being_made(
    airflow: Path, kube: Kube, node: str, pods: PodWatch, drawn: Callable[..., str], log: Any
) -> None:
    dag = training("reconfigured", data=drawn(), retries=0)

    def allocatable(count: int) -> None:
        amount = {SLICE: str(count)}
        kube.patch_node(node, {"status": {"capacity": amount, "allocatable": amount}}, status=True)

    def state(value: str) -> None:
        kube.patch_node(node, {"metadata": {"labels": {"nvidia.com/mig.config.state": value}}})

    def finish() -> None:
        pods.wait_for_pod("reconfigured", "train", "waits", lambda one: f"Insufficient {SLICE}" in one.unschedulable)
        allocatable(SLICES)
        state("success")

    state("pending")
    allocatable(0)
    try:
        with meanwhile(finish):
            run = run_dag(dag)
    finally:
        allocatable(SLICES)
        state("success")
    assert run.state == "success"
    assert "being reconfigured" in log.text


def test_b14_slices_that_a_finished_change_did_not_bring_are_refused(
    airflow: Path, kube: Kube, node: str, pods: PodWatch, drawn: Callable[..., str], log: Any
) -> None:
    nothing, amount = {SLICE: "0"}, {SLICE: str(SLICES)}
    kube.patch_node(node, {"status": {"capacity": nothing, "allocatable": nothing}}, status=True)
    try:
        run = run_dag(training("no_devices", data=drawn(), retries=0))
    finally:
        kube.patch_node(node, {"status": {"capacity": amount, "allocatable": amount}}, status=True)
    assert run.state == "failed"
    assert pods.pods("no_devices") == []
    assert "no device is allocatable" in log.text
