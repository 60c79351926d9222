"""A job as a pod: pure changes to the pod that KubernetesPodOperator built, and reading back how it ended.

The job travels on the pod itself, so that a retry which adopts an older pod records what that pod ran.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.cncf.kubernetes.utils.container import get_container_status
from kubernetes.client import models as k8s

from yolo_airflow_provider.contract import (
    JOB_VARIABLE,
    ContractError,
    Failure,
    FailureClass,
    JobSpec,
    failure_of_exit_code,
)
from yolo_airflow_provider.gpus.accelerator import Accelerator

TERMINATION_MESSAGE_PATH = "/dev/termination-log"
WORKER_COMMAND = ["python", "-m", "yolo_airflow_provider.worker"]
ANNOTATION_PREFIX = "yolo-airflow.io/"

SHM_BYTES_PER_IMAGE_PIXEL = 3
"""A loader process hands over images as uint8 with three channels."""
SHM_PREFETCHED_BATCHES = 4
"""Batches a loader process may have ready (Ultralytics 8.4, data/build.py) besides the one in use."""
SHM_LEAST_BYTES = 256 * 2**20


def shm_bytes(*, batch: int, imgsz: int, workers: int) -> int:
    """Size of /dev/shm for the loader's batches; docker's and Kubernetes' default of 64 MiB ends in a bus error."""
    batches = max(workers, 1) * SHM_PREFETCHED_BATCHES + 2
    return max(SHM_LEAST_BYTES, batch * imgsz * imgsz * SHM_BYTES_PER_IMAGE_PIXEL * batches)


def put_job(pod: k8s.V1Pod, spec: JobSpec, accelerator: Accelerator, *, container: str, shared_bytes: int) -> k8s.V1Pod:
    """Make the pod run the job on the accelerator; changes and returns it.

    What the DAG author set (command, resources, volumes) stays; only what is missing is added.
    """
    base = _container(pod, container)
    base.command = base.command or list(WORKER_COMMAND)
    base.termination_message_path = TERMINATION_MESSAGE_PATH
    base.env = [variable for variable in base.env or [] if variable.name != JOB_VARIABLE]
    base.env.append(k8s.V1EnvVar(name=JOB_VARIABLE, value=spec.to_json()))
    if accelerator.kind == "cpu":
        # With NVIDIA's runtime a container that asks for no GPU is shown all of them (k8s-device-plugin's README).
        _default_env(base, "NVIDIA_VISIBLE_DEVICES", "void")
    elif accelerator.kind == "mig":
        # The allocator's expandable segments ask NVML for what a slice may not tell (pytorch#112377).
        _default_env(base, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    base.resources = _resources(base.resources, accelerator)
    if shared_bytes:
        _mount_shm(pod, base, shared_bytes)
    pod.metadata.annotations = {**_annotations(spec, accelerator), **(pod.metadata.annotations or {})}
    return pod


def mount_workspace(pod: k8s.V1Pod, *, claim: str, workspace: str, container: str) -> k8s.V1Pod:
    """Mount a claim at the workspace's path, unless something is mounted there."""
    base = _container(pod, container)
    mounts = base.volume_mounts or []
    if any(mount.mount_path == workspace for mount in mounts):
        return pod
    source = k8s.V1PersistentVolumeClaimVolumeSource(claim_name=claim)
    pod.spec.volumes = [
        *(pod.spec.volumes or []),
        k8s.V1Volume(name="yolo-workspace", persistent_volume_claim=source),
    ]
    base.volume_mounts = [*mounts, k8s.V1VolumeMount(name="yolo-workspace", mount_path=workspace)]
    return pod


def read_job(pod: k8s.V1Pod, *, container: str) -> JobSpec | None:
    """The job that a pod was given, None where it carries none that this version can read."""
    for variable in _container(pod, container).env or []:
        if variable.name == JOB_VARIABLE and variable.value:
            try:
                return JobSpec.from_json(variable.value)
            except ContractError:
                return None
    return None


def _container(pod: k8s.V1Pod, name: str) -> k8s.V1Container:
    return next(container for container in pod.spec.containers if container.name == name)


def _default_env(container: k8s.V1Container, name: str, value: str) -> None:
    if all(variable.name != name for variable in container.env):
        container.env.append(k8s.V1EnvVar(name=name, value=value))


def _resources(given: k8s.V1ResourceRequirements | None, accelerator: Accelerator) -> k8s.V1ResourceRequirements:
    """Extended resources want requests equal to limits; on `cpu` the memory limit is the budget."""
    limits: dict[str, Any] = dict((given.limits if given else None) or {})
    requests: dict[str, Any] = dict((given.requests if given else None) or {})
    if accelerator.resource:
        limits[accelerator.resource] = requests[accelerator.resource] = "1"
    elif accelerator.memory_bytes is not None:
        limits.setdefault("memory", str(accelerator.memory_bytes))
        requests.setdefault("memory", limits["memory"])
    return k8s.V1ResourceRequirements(limits=limits or None, requests=requests or None)


def _mount_shm(pod: k8s.V1Pod, base: k8s.V1Container, size_bytes: int) -> None:
    if any(mount.mount_path == "/dev/shm" for mount in base.volume_mounts or []):
        return
    memory = k8s.V1EmptyDirVolumeSource(medium="Memory", size_limit=str(size_bytes))
    pod.spec.volumes = [*(pod.spec.volumes or []), k8s.V1Volume(name="yolo-shm", empty_dir=memory)]
    base.volume_mounts = [
        *(base.volume_mounts or []),
        k8s.V1VolumeMount(name="yolo-shm", mount_path="/dev/shm"),
    ]


def _annotations(spec: JobSpec, accelerator: Accelerator) -> dict[str, str]:
    identity = spec.identity
    named = {
        "dag": identity.dag_id,
        "run": identity.run_id,
        "task": identity.task_id,
        "map-index": str(identity.map_index),
        "try": str(identity.try_number),
        "accelerator": accelerator.label,
        "batch": str(getattr(spec.job, "batch", "")),
    }
    return {ANNOTATION_PREFIX + name: value for name, value in named.items() if value}


_WAITING_FOR_EVER = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"}
)
"""Reasons of a container that waits which no waiting mends (kubelet's own names)."""


def how_it_ended(pod: k8s.V1Pod, container: str) -> k8s.V1ContainerStateTerminated | None:
    """The state of a container that has ended, None while it has not, or never started."""
    status = get_container_status(pod, container)
    return status.state.terminated if status and status.state else None


def failure_of(pod: k8s.V1Pod, spec: JobSpec, *, container: str, original: BaseException | None) -> Failure:
    """Why a pod gave no readable answer: from its container's state, its conditions and its own reason.

    Args:
        pod: as it was read last.
        spec: the job it was given.
        container: name of the worker's container.
        original: the exception with which KubernetesPodOperator gave up, if it did.
    """
    ended = how_it_ended(pod, container)
    on_cpu = spec.accelerator.kind == "cpu"
    if ended is not None and ended.reason == "OOMKilled":
        return _oom_killed(ended, spec, on_cpu=on_cpu)
    if ended is None and (waiting := _why_it_waits(pod, container)) is not None:
        return waiting.model_copy(update={"stage": spec.job.kind})
    told = {
        "phase": pod.status.phase,
        "reason": pod.status.reason or (ended.reason if ended else None),
        "exit_code": ended.exit_code if ended else None,
        "message": pod.status.message,
        "given up with": f"{type(original).__name__}: {original}"[:300] if original else None,
    }
    found = FailureClass.LOST
    if pod.status.reason in ("Evicted", "Preempting", "Terminated"):
        found = FailureClass.PREEMPTED
    elif ended is not None:
        found = failure_of_exit_code(ended.exit_code, on_cpu=on_cpu)
    has = "ended" if ended is not None or pod.status.phase in ("Succeeded", "Failed") else "was given up"
    return Failure(
        failure_class=found,
        message=f"pod {pod.metadata.name} {has} without an answer: "
        + ", ".join(f"{name} {value}" for name, value in told.items() if value is not None),
        hint="the next try resumes from the last whole epoch" if spec.job.kind == "train" else "",
        stage=spec.job.kind,
    )


def _oom_killed(ended: k8s.V1ContainerStateTerminated, spec: JobSpec, *, on_cpu: bool) -> Failure:
    # On `cpu` the container's limit is the budget that is planned with; on a GPU it is another memory.
    budget = spec.accelerator.memory_budget_bytes if on_cpu else None
    limit = f"its memory limit of {budget:,} bytes" if budget else "its memory limit"
    less = "the next try plans with this measured, and takes a smaller batch; or give more memory"
    more = "raise the container's memory limit (container_resources); this is not the GPU's memory"
    return Failure(
        failure_class=FailureClass.HOST_OOM,
        message=f"the container was OOMKilled (exit code {ended.exit_code}) at {limit}",
        hint=less if on_cpu else more,
        stage=spec.job.kind,
        needed_bytes=budget,
        budget_bytes=budget,
    )


def _why_it_waits(pod: k8s.V1Pod, container: str) -> Failure | None:
    """Why a pod never started: no node, or no image."""
    status = get_container_status(pod, container)
    waiting = status.state.waiting if status and status.state else None
    if waiting is not None and waiting.reason in _WAITING_FOR_EVER:
        image = _container(pod, container).image
        return Failure(
            failure_class=FailureClass.IMAGE,
            message=f"image {image} did not start: {waiting.reason}: {waiting.message or 'no message'}",
            hint="check the image's name and the node's access to its registry",
        )
    for condition in pod.status.conditions or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return Failure(
                failure_class=FailureClass.UNSCHEDULABLE,
                message=f"no node took pod {pod.metadata.name}: {condition.message or condition.reason}",
                hint="ask for a resource that a node offers, or wait longer (schedule_timeout_seconds)",
            )
    return None
