"""In Kubernetes mode the operators build a correct pod; running it is tested on a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes.client import models as k8s

from yolo_airflow_provider.contract import JobSpec
from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.operators import (
    ExportOperator,
    MigTrainOperator,
    PreprocessOperator,
    ProfileProbeOperator,
)
from yolo_airflow_provider.planner.host import shared_bytes

MakeContext = Callable[..., dict[str, Any]]


pytestmark = pytest.mark.usefixtures("cluster")

SLICE = "nvidia.com/mig-1g.5gb"


def build(operator: Any, context: dict[str, Any]) -> tuple[k8s.V1Pod, k8s.V1Container, JobSpec]:
    pod = operator.build_pod_request_obj(context)
    container = pod.spec.containers[0]
    variable = next(v for v in container.env if v.name == "YOLO_JOB")
    return pod, container, JobSpec.from_json(variable.value)


def train(dataset: dict[str, Any], **changes: Any) -> MigTrainOperator:
    arguments = {"task_id": "train", "model": "yolov8n", "data": dataset, "epochs": 3, "imgsz": 320, "image": "w:1"}
    # What the architecture predicts would take up to 64.
    arguments["max_batch"] = 16
    return MigTrainOperator(**{"namespace": "ml", **arguments, **changes})


def test_a_slice_is_requested_and_limited_alike(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, container, spec = build(
        train(dataset, accelerator="1g.5gb", memory_budget="4864Mi", workspace="/ws"), make_context("train")
    )
    assert container.resources.limits[SLICE] == container.resources.requests[SLICE] == "1"
    assert container.command == ["python", "-m", "yolo_airflow_provider.worker"]
    assert container.image == "w:1"
    assert container.termination_message_path == spec.result_path == "/dev/termination-log"
    assert [c.name for c in pod.spec.containers] == ["base"]  # no XCom sidecar
    assert pod.spec.automount_service_account_token is False
    assert pod.spec.restart_policy == "Never"
    environment = {v.name: v.value for v in container.env}
    assert "NVIDIA_VISIBLE_DEVICES" not in environment
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


def test_b2_the_allocator_is_set_up_for_slices_only(dataset: dict[str, Any], make_context: MakeContext) -> None:
    def environment(**changes: Any) -> dict[str, str]:
        _, container, _ = build(train(dataset, **changes), make_context("train"))
        return {v.name: v.value for v in container.env}

    assert environment(accelerator="1g.5gb")["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:False"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment(accelerator="gpu")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment(accelerator="cpu")


@pytest.mark.parametrize("accelerator", ["1g.5gb", "gpu", "cpu"])
def test_b4_cuda_visible_devices_is_left_to_the_device_plugin(
    accelerator: str, dataset: dict[str, Any], make_context: MakeContext
) -> None:
    _, container, _ = build(train(dataset, accelerator=accelerator), make_context("train"))
    assert "CUDA_VISIBLE_DEVICES" not in {v.name for v in container.env}


def test_b16_another_scheduler_may_place_the_pod(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, _, _ = build(train(dataset, accelerator="1g.5gb", schedulername="kai-scheduler"), make_context("train"))
    assert pod.spec.scheduler_name == "kai-scheduler"


@pytest.mark.parametrize("device", ["0,1", [0, 1], "cpu", "1"])
def test_b3_several_devices_are_refused(device: Any, dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator = train(dataset, accelerator="1g.5gb", train_arguments={"device": device})
    with pytest.raises(BadInput, match="one pod has one slice"):
        operator.build_pod_request_obj(make_context("train"))


def test_what_is_planned_is_not_asked_for_twice(dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator = train(dataset, accelerator="1g.5gb", train_arguments={"batch": 4, "imgsz": 64, "lr0": 0.1})
    with pytest.raises(BadInput, match="batch, imgsz: pass it to the operator"):
        operator.build_pod_request_obj(make_context("train"))


def test_c1_c3_shared_memory_is_mounted_for_the_loader_and_counted_into_the_limit(
    dataset: dict[str, Any], make_context: MakeContext
) -> None:
    pod, container, _ = build(train(dataset, accelerator="1g.5gb", workers=4), make_context("train"))
    mount = next(m for m in container.volume_mounts if m.mount_path == "/dev/shm")
    volume = next(v for v in pod.spec.volumes if v.name == mount.name)
    assert volume.empty_dir.medium == "Memory"
    shared = shared_bytes(batch=16, imgsz=320, workers=4)
    assert int(volume.empty_dir.size_limit) == shared
    assert container.resources.limits["memory"] == container.resources.requests["memory"]
    _, without, _ = build(train(dataset, accelerator="1g.5gb", workers=0), make_context("train"))
    process = int(without.resources.limits["memory"])
    assert int(container.resources.limits["memory"]) == process + 4 * 512 * 2**20 + shared


def test_without_loader_processes_there_is_no_shared_memory(dataset: dict[str, Any], make_context: MakeContext) -> None:
    _, container, _ = build(train(dataset, accelerator="1g.5gb", workers=0), make_context("train"))
    assert "/dev/shm" not in {m.mount_path for m in container.volume_mounts}


def test_c6_the_cpu_request_is_the_loader_and_the_training(dataset: dict[str, Any], make_context: MakeContext) -> None:
    def requested(**changes: Any) -> dict[str, str]:
        _, container, _ = build(train(dataset, **changes), make_context("train"))
        assert "cpu" not in (container.resources.limits or {})  # throttling would only make the slice wait
        return container.resources.requests

    assert requested(accelerator="1g.5gb", workers=3)["cpu"] == "4000m"
    assert requested(accelerator="cpu", workers=3)["cpu"] == "1000m"  # Ultralytics loads in the process there
    asked = k8s.V1ResourceRequirements(requests={"cpu": "250m"})
    assert requested(accelerator="1g.5gb", container_resources=asked)["cpu"] == "250m"


@pytest.mark.parametrize("kind", ["preprocess", "export"])
def test_cpu_tasks_hold_no_gpu(kind: str, dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator: Any = (
        PreprocessOperator(task_id=kind, data="/data/data.yaml", namespace="ml")
        if kind == "preprocess"
        else ExportOperator(task_id=kind, weights="/ws/best.pt", data=dataset, namespace="ml")
    )
    _, container, spec = build(operator, make_context(kind))
    assert not container.resources.limits
    assert set(container.resources.requests) == {"cpu", "memory"}
    assert {v.name: v.value for v in container.env}["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert spec.accelerator.kind == "cpu"


def test_on_cpu_the_memory_limit_is_the_budget(dataset: dict[str, Any], make_context: MakeContext) -> None:
    limits = k8s.V1ResourceRequirements(limits={"memory": "4Gi", "cpu": "3"})
    _, container, spec = build(train(dataset, accelerator="cpu", container_resources=limits), make_context("train"))
    assert container.resources.limits == {"memory": "4Gi", "cpu": "3"}
    assert spec.accelerator.memory_budget_bytes == 4 * 2**30
    _, container, _ = build(train(dataset, accelerator="cpu", memory_budget="2Gi"), make_context("train"))
    assert container.resources.limits == {"memory": str(2 * 2**30)}
    assert container.resources.requests == {"memory": str(2 * 2**30), "cpu": "1000m"}


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
    assert [v.name for v in pod.spec.volumes] == ["shm", "yolo-tmp"]


def test_a_claim_is_mounted_at_the_workspace(dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator = train(dataset, accelerator="1g.5gb", workspace="/ws", workspace_claim="runs")
    pod, container, _ = build(operator, make_context("train"))
    assert {m.mount_path for m in container.volume_mounts} == {"/ws", "/dev/shm", "/tmp"}
    claim = next(v.persistent_volume_claim for v in pod.spec.volumes if v.persistent_volume_claim)
    assert claim.claim_name == "runs"


def test_claims_may_be_set_for_all_dags(
    dataset: dict[str, Any], make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__YOLO__WORKSPACE_CLAIM", "runs")
    monkeypatch.setenv("AIRFLOW__YOLO__DATA_CLAIM", "sets")
    pod, container, _ = build(train(dataset, accelerator="1g.5gb", workspace="/ws"), make_context("train"))
    mounts = {m.mount_path: m for m in container.volume_mounts}
    assert mounts["/data"].read_only is True
    assert mounts["/ws"].read_only is None
    claims = {v.name: v.persistent_volume_claim for v in pod.spec.volumes if v.persistent_volume_claim}
    assert {claim.claim_name for claim in claims.values()} == {"runs", "sets"}
    assert claims[mounts["/data"].name].read_only is True


def test_auto_takes_what_the_connection_lists(
    dataset: dict[str, Any], make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = [{"resource": "nvidia.com/mig-1g.10gb", "memory": "9984Mi", "product": "NVIDIA H100 80GB HBM3"}]
    connection = {"conn_type": "kubernetes", "extra": {"yolo_accelerators": offered}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(connection))
    _, container, spec = build(train(dataset, accelerator="auto"), make_context("train"))
    assert container.resources.limits["nvidia.com/mig-1g.10gb"] == "1"
    assert spec.accelerator.product == "NVIDIA-H100-80GB-HBM3"
    assert spec.accelerator.memory_budget_bytes == 9984 * 2**20


def test_auto_without_an_offer_says_what_to_do(dataset: dict[str, Any], make_context: MakeContext) -> None:
    with pytest.raises(BadInput, match="list what there is, or name it"):
        train(dataset, accelerator="auto").build_pod_request_obj(make_context("train"))


def test_the_probe_asks_for_the_same_slice(dataset: dict[str, Any], make_context: MakeContext) -> None:
    operator = ProfileProbeOperator(
        task_id="probe", model="yolov8n", data=dataset, imgsz=320, accelerator="1g.5gb", namespace="ml"
    )
    _, container, spec = build(operator, make_context("probe"))
    assert container.resources.limits[SLICE] == "1"
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


def test_d10_d11_asking_for_xcom_adds_no_sidecar(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, _, _ = build(train(dataset, accelerator="1g.5gb", do_xcom_push=True), make_context("train"))
    assert [c.name for c in pod.spec.containers] == ["base"]


def test_d3_d15_nothing_is_done_in_init_containers(dataset: dict[str, Any], make_context: MakeContext) -> None:
    """Their logs are ignored in deferrable mode, and waiting for them escapes the deadlines (D3)."""
    operator = train(dataset, accelerator="1g.5gb")
    pod, _, _ = build(operator, make_context("train"))
    assert not pod.spec.init_containers
    assert operator.init_container_logs is None


def test_d1_a_slice_is_waited_for_longer_than_an_image(dataset: dict[str, Any]) -> None:
    operator = train(dataset, accelerator="1g.5gb")
    assert (operator.schedule_timeout_seconds, operator.startup_timeout_seconds) == (24 * 3600, 600)


def test_a_gpu_is_never_held_for_ever(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, _, _ = build(train(dataset, accelerator="1g.5gb"), make_context("train"))
    assert pod.spec.active_deadline_seconds == 7 * 24 * 3600
    assert pod.spec.termination_grace_period_seconds == 120


def test_a_fixed_pod_name_that_could_be_another_runs_is_refused(dataset: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="could adopt the pod of another run"):
        train(dataset, accelerator="1g.5gb", random_name_suffix=False)
    train(dataset, accelerator="1g.5gb", random_name_suffix=False, durable=False)


@pytest.mark.parametrize(
    "id_", ["a" * 250, "Team.Vision.NIGHTLY-Run_7", "夜間学習", "-_-", "manual__2026-12-01T00:00:00+00:00"]
)
def test_labels_are_valid_for_any_id_and_annotations_whole(
    id_: str, dataset: dict[str, Any], make_context: MakeContext
) -> None:
    context = make_context("train", run_id=id_)
    context["ti"].dag_id = id_
    pod, _, _ = build(train(dataset, accelerator="1g.5gb"), context)
    valid = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
    assert {key: value for key, value in pod.metadata.labels.items() if not valid.fullmatch(value)} == {}
    assert pod.metadata.annotations["yolo-airflow.io/run"] == id_
    assert pod.metadata.annotations["yolo-airflow.io/dag"] == id_
    assert pod.metadata.labels["yolo-airflow.io/dag"]
    assert pod.metadata.labels["yolo-airflow.io/plan"] == pod.metadata.annotations["yolo-airflow.io/plan"]


def test_two_ids_that_a_label_cannot_hold_stay_apart(dataset: dict[str, Any], make_context: MakeContext) -> None:
    def run_label(run_id: str) -> str:
        pod, _, _ = build(train(dataset, accelerator="1g.5gb"), make_context("train", run_id=run_id))
        return pod.metadata.labels["run_id"]

    assert run_label("夜間") != run_label("学習")


def test_a_users_security_stays(dataset: dict[str, Any], make_context: MakeContext) -> None:
    mine = k8s.V1PodSecurityContext(run_as_user=0)
    writable = k8s.V1SecurityContext(read_only_root_filesystem=False)
    operator = train(
        dataset, accelerator="1g.5gb", workers=0, security_context=mine, container_security_context=writable
    )
    pod, container, _ = build(operator, make_context("train"))
    assert pod.spec.security_context == mine
    assert container.security_context == writable
    assert not container.volume_mounts  # a writable root needs no /tmp of ours


def test_the_defaults_are_a_plain_user_on_a_read_only_root(dataset: dict[str, Any], make_context: MakeContext) -> None:
    pod, container, _ = build(train(dataset, accelerator="1g.5gb"), make_context("train"))
    assert pod.spec.security_context.run_as_non_root is True
    assert pod.spec.security_context.run_as_user == 1000
    assert pod.spec.security_context.seccomp_profile.type == "RuntimeDefault"
    assert container.security_context.allow_privilege_escalation is False
    assert container.security_context.capabilities.drop == ["ALL"]
    assert container.security_context.read_only_root_filesystem is True
    assert "/tmp" in {m.mount_path for m in container.volume_mounts}


def test_gpu_pods_tolerate_the_taint_of_gpu_nodes(dataset: dict[str, Any], make_context: MakeContext) -> None:
    mine = k8s.V1Toleration(key="team", operator="Exists")
    pod, _, _ = build(train(dataset, accelerator="1g.5gb", tolerations=[mine]), make_context("train"))
    assert [t.key for t in pod.spec.tolerations] == ["team", "nvidia.com/gpu"]
    pod, _, _ = build(train(dataset, accelerator="cpu"), make_context("train"))
    assert not pod.spec.tolerations


@pytest.mark.parametrize("given", [{"nvidia.com/gpu": "1"}, {"nvidia.com/mig-2g.10gb": "1"}, {SLICE: "2"}])
@pytest.mark.parametrize("accelerator", ["cpu", "1g.5gb"])
def test_a_device_that_was_not_planned_for_is_refused(
    accelerator: str, given: dict[str, str], dataset: dict[str, Any], make_context: MakeContext
) -> None:
    asked = k8s.V1ResourceRequirements(limits=given)
    with pytest.raises(BadInput, match="say accelerator="):
        build(train(dataset, accelerator=accelerator, container_resources=asked), make_context("train"))


def test_a_request_of_the_authors_raises_the_limit_with_it(dataset: dict[str, Any], make_context: MakeContext) -> None:
    """The API refuses a request that is larger than the limit."""
    asked = k8s.V1ResourceRequirements(requests={"memory": "32Gi"})
    _, container, _ = build(train(dataset, accelerator="1g.5gb", container_resources=asked), make_context("train"))
    assert container.resources.limits["memory"] == container.resources.requests["memory"] == "32Gi"
    operator = train(dataset, accelerator="cpu", memory_budget="4Gi", container_resources=asked)
    with pytest.raises(BadInput, match="more than memory_budget"):
        build(operator, make_context("train"))


def test_on_cpu_a_templates_limit_is_the_budget_as_well(dataset: dict[str, Any], make_context: MakeContext) -> None:
    limits = k8s.V1ResourceRequirements(limits={"memory": "3Gi"})
    base = k8s.V1Container(name="base", image="w", resources=limits)
    operator = train(dataset, accelerator="cpu", full_pod_spec=k8s.V1Pod(spec=k8s.V1PodSpec(containers=[base])))
    _, container, spec = build(operator, make_context("train"))
    assert spec.accelerator.memory_budget_bytes == 3 * 2**30
    assert container.resources.limits == {"memory": "3Gi"}


def test_a_budget_limits_every_cpu_task(make_context: MakeContext) -> None:
    operator = PreprocessOperator(task_id="check", data="/data/data.yaml", namespace="ml", memory_budget="1Gi")
    _, container, _ = build(operator, make_context("check"))
    assert container.resources.limits == {"memory": str(2**30)}


def test_a_cache_that_the_budget_does_not_hold_is_refused(dataset: dict[str, Any], make_context: MakeContext) -> None:
    """No smaller batch would help it."""
    dataset["dataset"]["train_images"] = 20_000
    operator = train(dataset, accelerator="cpu", memory_budget="4Gi", cache="ram")
    with pytest.raises(BadInput, match=r"cache='ram' keeps 5\.7\d GiB of images in memory"):
        build(operator, make_context("train"))


def test_images_in_memory_raise_the_pods_memory(dataset: dict[str, Any], make_context: MakeContext) -> None:
    def limit(**changes: Any) -> int:
        _, container, _ = build(train(dataset, accelerator="1g.5gb", **changes), make_context("train"))
        return int(container.resources.limits["memory"])

    assert limit(cache="ram") - limit() == (200 + 50) * 320 * 320 * 3


@pytest.mark.parametrize("name", ["cache", "seed", "optimizer", "save_dir"])
def test_no_argument_is_dropped_in_silence(name: str, dataset: dict[str, Any], make_context: MakeContext) -> None:
    with pytest.raises(BadInput, match=f"{name}: pass it to the operator"):
        build(train(dataset, accelerator="1g.5gb", train_arguments={name: "x"}), make_context("train"))
