"""In Kubernetes mode the operators build a correct pod; running it is tested on a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import PropertyMock, patch

import pytest
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from kubernetes.client import models as k8s

from yolo_airflow_provider.contract import JobSpec
from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.operators import (
    ExportOperator,
    MigTrainOperator,
    PreprocessOperator,
    ProfileProbeOperator,
)
from yolo_airflow_provider.operators.pods import shm_bytes

MakeContext = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def no_cluster() -> Iterator[None]:
    with patch.object(KubernetesHook, "is_in_cluster", new_callable=PropertyMock, return_value=False):
        yield


def build(operator: Any, context: dict[str, Any]) -> tuple[k8s.V1Pod, k8s.V1Container, JobSpec]:
    pod = operator.build_pod_request_obj(context)
    container = pod.spec.containers[0]
    variable = next(v for v in container.env if v.name == "YOLO_JOB")
    return pod, container, JobSpec.from_json(variable.value)


def train(dataset: dict[str, Any], **changes: Any) -> MigTrainOperator:
    arguments = {"task_id": "train", "model": "yolov8n", "data": dataset, "epochs": 3, "imgsz": 320, "image": "w:1"}
    return MigTrainOperator(**{"namespace": "ml", **arguments, **changes})


def test_a_slice_is_requested_and_limited_alike(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, container, spec = build(
        train(dataset, accelerator="1g.5gb", memory_budget="4864Mi", workspace="/ws"), make_context("train")
    )
    assert container.resources.limits == {"nvidia.com/mig-1g.5gb": "1"}
    assert container.resources.requests == container.resources.limits
    assert container.command == ["python", "-m", "yolo_airflow_provider.worker"]
    assert container.image == "w:1"
    assert container.termination_message_path == spec.result_path == "/dev/termination-log"
    assert [c.name for c in pod.spec.containers] == ["base"]  # no XCom sidecar
    assert pod.spec.automount_service_account_token is False
    assert pod.spec.restart_policy == "Never"
    environment = {v.name: v.value for v in container.env}
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:False"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert spec.accelerator.kind == "mig"
    assert spec.accelerator.mig_profile == "1g.5gb"
    assert spec.accelerator.memory_budget_bytes == 4864 * 2**20
    assert spec.accelerator.enforce_budget is False  # the device does it
    assert spec.run_folder == "/ws/dag/manual__1/train/-1"
    assert spec.job.kind == "train"
    assert spec.job.batch == 16


def test_the_pod_says_what_it_runs(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, _, _ = build(train(dataset, accelerator="1g.5gb"), make_context("train", try_number=2, map_index=4))
    annotations = {key.removeprefix("yolo-airflow.io/"): value for key, value in pod.metadata.annotations.items()}
    assert annotations["batch"] == "16"
    assert annotations["accelerator"] == "1x 1g.5gb of an unnamed GPU"
    assert (annotations["dag"], annotations["task"], annotations["run"]) == ("dag", "train", "manual__1")
    assert (annotations["try"], annotations["map-index"]) == ("2", "4")


def test_shared_memory_is_mounted_for_the_loader(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, container, _ = build(train(dataset, accelerator="1g.5gb", workers=4), make_context("train"))
    mount = next(m for m in container.volume_mounts if m.mount_path == "/dev/shm")
    volume = next(v for v in pod.spec.volumes if v.name == mount.name)
    assert volume.empty_dir.medium == "Memory"
    assert int(volume.empty_dir.size_limit) == shm_bytes(batch=16, imgsz=320, workers=4)
    assert shm_bytes(batch=64, imgsz=1280, workers=8) > 64 * 1280 * 1280 * 3 * 8 * 4


def test_without_loader_processes_there_is_no_shared_memory(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, _, _ = build(train(dataset, accelerator="1g.5gb", workers=0), make_context("train"))
    assert not pod.spec.volumes


@pytest.mark.parametrize("kind", ["preprocess", "export"])
def test_cpu_tasks_hold_no_gpu(kind: str, dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator: Any = (
        PreprocessOperator(task_id=kind, data="/data/data.yaml", namespace="ml")
        if kind == "preprocess"
        else ExportOperator(task_id=kind, weights="/ws/best.pt", data=dataset, namespace="ml")
    )
    _, container, spec = build(operator, make_context(kind))
    assert not container.resources.limits
    assert {v.name: v.value for v in container.env}["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert spec.accelerator.kind == "cpu"


def test_on_cpu_the_memory_limit_is_the_budget(dataset: dict[str, Any], make_context: MakeContext) -> None:
    limits = k8s.V1ResourceRequirements(limits={"memory": "4Gi", "cpu": "3"})
    _, container, spec = build(train(dataset, accelerator="cpu", container_resources=limits), make_context("train"))
    assert container.resources.limits == {"memory": "4Gi", "cpu": "3"}
    assert spec.accelerator.memory_budget_bytes == 4 * 2**30
    _, container, _ = build(train(dataset, accelerator="cpu", memory_budget="2Gi"), make_context("train"))
    assert container.resources.limits == container.resources.requests == {"memory": str(2 * 2**30)}


def test_what_the_author_set_stays(dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator = train(
        dataset,
        accelerator="1g.5gb",
        cmds=["/opt/run"],
        env_vars={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "MINE": "1"},
        annotations={"team": "vision"},
        labels={"app": "x"},
        node_selector={"zone": "a"},
        volumes=[k8s.V1Volume(name="shm", empty_dir=k8s.V1EmptyDirVolumeSource(medium="Memory"))],
        volume_mounts=[k8s.V1VolumeMount(name="shm", mount_path="/dev/shm")],
    )
    pod, container, _ = build(operator, make_context("train"))
    environment = {v.name: v.value for v in container.env}
    assert container.command == ["/opt/run"]
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert environment["MINE"] == "1"
    assert pod.metadata.annotations["team"] == "vision"
    assert pod.metadata.labels["app"] == "x"
    assert pod.spec.node_selector == {"zone": "a"}
    assert [v.name for v in pod.spec.volumes] == ["shm"]


def test_a_claim_is_mounted_at_the_workspace(dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator = train(dataset, accelerator="1g.5gb", workspace="/ws", workspace_claim="runs")
    pod, container, _ = build(operator, make_context("train"))
    assert {m.mount_path for m in container.volume_mounts} == {"/ws", "/dev/shm"}
    claim = next(v.persistent_volume_claim for v in pod.spec.volumes if v.persistent_volume_claim)
    assert claim.claim_name == "runs"


def test_auto_takes_what_the_connection_lists(
    dataset: dict[str, Any], make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = [{"resource": "nvidia.com/mig-1g.10gb", "memory": "9984Mi", "product": "NVIDIA H100 80GB HBM3"}]
    connection = {"conn_type": "kubernetes", "extra": {"yolo_accelerators": offered}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(connection))
    _, container, spec = build(train(dataset, accelerator="auto"), make_context("train"))
    assert container.resources.limits == {"nvidia.com/mig-1g.10gb": "1"}
    assert spec.accelerator.product == "NVIDIA H100 80GB HBM3"
    assert spec.accelerator.memory_budget_bytes == 9984 * 2**20


def test_auto_without_an_offer_says_what_to_do(dataset: dict[str, Any], make_context: MakeContext) -> None:
    with pytest.raises(BadInput, match="list one accelerator there, or name it"):
        train(dataset, accelerator="auto").build_pod_request_obj(make_context("train"))


def test_the_probe_asks_for_the_same_slice(dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator = ProfileProbeOperator(
        task_id="probe", model="yolov8n", data=dataset, imgsz=320, accelerator="1g.5gb", namespace="ml"
    )
    _, container, spec = build(operator, make_context("probe"))
    assert container.resources.limits == {"nvidia.com/mig-1g.5gb": "1"}
    assert spec.job.kind == "probe"
    assert spec.job.batches == (2, 8, 16)


def test_a_dry_run_needs_neither_context_nor_store(dataset: dict[str, Any]) -> None:
    pod = train(dataset, accelerator="1g.5gb").build_pod_request_obj(dry_run=True)
    assert pod.spec.containers[0].image == "w:1"


def test_no_secret_travels_with_the_pod(
    dataset: dict[str, Any], make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SOMETHING", "postgresql://u:hunter2@h/d")
    pod, _, _ = build(train(dataset, accelerator="1g.5gb"), make_context("train"))
    assert "hunter2" not in str(pod)


def test_the_image_comes_from_the_configuration_or_is_asked_for(
    dataset: dict[str, Any], make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = train(dataset, accelerator="1g.5gb", image=None)
    assert build(operator, make_context("train"))[1].image == "worker:1"
    monkeypatch.delenv("AIRFLOW__YOLO__IMAGE")
    with pytest.raises(BadInput, match=r"no worker image: pass image=, or set \[yolo\] image"):
        train(dataset, accelerator="1g.5gb", image=None).build_pod_request_obj(make_context("train"))


def test_asking_for_xcom_adds_no_sidecar(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, _, _ = build(train(dataset, accelerator="1g.5gb", do_xcom_push=True), make_context("train"))
    assert [c.name for c in pod.spec.containers] == ["base"]
