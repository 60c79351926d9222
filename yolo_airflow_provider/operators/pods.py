"""A job as a pod: pure changes to the pod that KubernetesPodOperator built, and reading the job back from a pod.

The job travels on the pod itself, so that a retry which adopts an older pod records what that pod ran.
"""

from __future__ import annotations

from typing import Any

from kubernetes.client import models as k8s

from yolo_airflow_provider.contract import JOB_VARIABLE, ContractError, JobSpec
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
