from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster_jobs import training
from cluster_kube import Kube
from cluster_pods import PodWatch
from cluster_runs import run_dag
from cluster_settings import SLICE
from cluster_standard import violations

AS_PLANNED = {"tests.yolo-airflow.io/requests": "as planned"}
"""Leaves the requests to the operators; `standin/airflow_local_settings.py` makes them small otherwise."""


def test_c1_c6_a_training_pod_asks_for_its_loaders_cpus_and_their_shared_memory(
    airflow: Path, pods: PodWatch, drawn: Callable[..., str]
) -> None:
    dag = training("loaders", data=drawn(), workers=1, annotations=AS_PLANNED, retries=0)
    assert run_dag(dag).state == "success"
    (seen,) = pods.pods("loaders")
    container, spec = seen.first.spec.containers[0], seen.first.spec
    assert seen.requests["cpu"] == "2"
    assert "cpu" not in seen.limits
    assert seen.requests[SLICE] == seen.limits[SLICE] == "1"
    assert seen.requests["memory"] == seen.limits["memory"]
    (mount,) = (mount for mount in container.volume_mounts if mount.mount_path == "/dev/shm")
    (shared,) = (volume.empty_dir for volume in spec.volumes if volume.name == mount.name)
    assert shared.medium == "Memory"
    # A memory volume counts into the container's limit, so the limit has room for the process beside it.
    assert _mebibytes(seen.limits["memory"]) >= _mebibytes(shared.size_limit) + 1024


def test_b2_b4_b17_d10_a_pod_on_a_tainted_node_has_one_container_that_is_told_only_what_it_needs(
    airflow: Path, kube: Kube, node: str, pods: PodWatch, drawn: Callable[..., str]
) -> None:
    # As GPU nodes commonly are, so that nothing else lands there.
    kube.patch_node(node, {"spec": {"taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]}})
    try:
        assert run_dag(training("environment", data=drawn(), retries=0)).state == "success"
    finally:
        kube.patch_node(node, {"spec": {"taints": None}})
    (seen,) = pods.pods("environment")
    (container,) = seen.first.spec.containers
    variables = {variable.name: variable.value for variable in container.env}
    assert "expandable_segments:False" in variables["PYTORCH_CUDA_ALLOC_CONF"]
    assert "CUDA_VISIBLE_DEVICES" not in variables
    assert not [name for name in variables if name.startswith(("AIRFLOW", "KUBE"))]
    assert not [mount for mount in container.volume_mounts if "serviceaccount" in mount.mount_path]
    assert seen.first.spec.termination_grace_period_seconds > 30


def test_d6_the_log_outlives_the_pod(airflow: Path, pods: PodWatch, workspace: Path, drawn: Callable[..., str]) -> None:
    dag = training("kept_log", data=drawn(), deferrable=True, retries=0)
    assert run_dag(dag).state == "success"
    (seen,) = pods.pods("kept_log")
    pods.wait_for(lambda: seen.gone, "the pod to be gone", 60)
    (kept,) = (workspace / "kept_log").glob("*/train/*/worker-1.log")
    assert "epoch 1/1" in kept.read_text(encoding="utf-8")


GOOD: dict[str, Any] = {
    "spec": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "containers": [
            {
                "name": "base",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
}


def test_the_check_of_the_restricted_standard_finds_what_it_forbids() -> None:
    assert violations(GOOD) == []

    def broken(path: str, value: Any) -> list[str]:
        pod = copy.deepcopy(GOOD)
        place: Any = pod["spec"]
        *way, last = path.split(".")
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        place[last] = value
        return violations(pod)

    assert broken("hostNetwork", True)
    assert broken("volumes", [{"name": "node", "hostPath": {"path": "/"}}])
    assert broken("securityContext.runAsNonRoot", False)
    assert broken("securityContext.runAsUser", 0)
    assert broken("securityContext.seccompProfile", {"type": "Unconfined"})
    assert broken("containers.0.securityContext", {})
    assert broken("containers.0.securityContext.privileged", True)
    assert broken("containers.0.securityContext.capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]})
    assert broken("containers.0.ports", [{"hostPort": 80}])


def _mebibytes(quantity: str) -> int:
    units = {"Gi": 2**10, "Mi": 1, "Ki": 2**-10}
    for unit, factor in units.items():
        if quantity.endswith(unit):
            return int(float(quantity.removesuffix(unit)) * factor)
    return int(quantity) // 2**20
