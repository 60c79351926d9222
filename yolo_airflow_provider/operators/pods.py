"""A job as a pod: pure changes to the pod that KubernetesPodOperator built.

The job travels on the pod itself, so that a retry which adopts an older pod records what that pod ran.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from kubernetes.client import ApiClient, models as k8s

from yolo_airflow_provider.contract import JOB_VARIABLE, ContractError, JobSpec
from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.nodes import amount, pod_requests
from yolo_airflow_provider.operators import pod_defaults
from yolo_airflow_provider.operators.pod_defaults import container_of, default_env
from yolo_airflow_provider.planner.host import HostNeed

TERMINATION_MESSAGE_PATH = "/dev/termination-log"
WORKER_COMMAND = ["python", "-m", "yolo_airflow_provider.worker"]


def put_job(
    pod: k8s.V1Pod,
    spec: JobSpec,
    accelerator: Accelerator,
    need: HostNeed,
    *,
    container: str,
    node_selector: Mapping[str, str],
) -> k8s.V1Pod:
    """Make the pod run the job on the accelerator; changes and returns it.

    What the DAG author set (command, resources, volumes, security) stays; only what is missing is added.

    Args:
        pod: as KubernetesPodOperator built it.
        spec: the job.
        accelerator: what the job was planned for.
        need: what it takes of its node.
        container: name of the worker's container.
        node_selector: labels of the nodes that offer the accelerator.
    """
    base = container_of(pod, container)
    base.command = base.command or list(WORKER_COMMAND)
    base.termination_message_path = TERMINATION_MESSAGE_PATH
    base.env = [variable for variable in base.env or [] if variable.name != JOB_VARIABLE]
    base.env.append(k8s.V1EnvVar(name=JOB_VARIABLE, value=spec.to_json()))
    _name_node(base)
    if accelerator.kind == "cpu":
        # With NVIDIA's runtime a container that asks for no GPU is shown all of them (k8s-device-plugin's README).
        default_env(base, "NVIDIA_VISIBLE_DEVICES", "void")
    else:
        pod.spec.node_selector = {**node_selector, **(pod.spec.node_selector or {})} or None
        if accelerator.kind == "mig":
            # The allocator's expandable segments ask NVML for what a slice may not tell (pytorch#112377).
            default_env(base, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    base.resources = _resources(base.resources, accelerator, need)
    if need.shared_bytes:
        pod_defaults.mount_shm(pod, container=container, size_bytes=need.shared_bytes)
    pod_defaults.secure(pod, container=container)
    pod_defaults.mark(pod, _marks(spec, accelerator))
    return pod


def read_job(pod: k8s.V1Pod, *, container: str) -> JobSpec | None:
    """The job that a pod was given, None where it carries none that this version can read."""
    for variable in container_of(pod, container).env or []:
        if variable.name == JOB_VARIABLE and variable.value:
            try:
                return JobSpec.from_json(variable.value)
            except ContractError:
                return None
    return None


def memory_limit_bytes(pod: k8s.V1Pod, *, container: str) -> int | None:
    """The container's memory limit, None where it has none."""
    resources = container_of(pod, container).resources
    limit = ((resources.limits if resources else None) or {}).get("memory")
    try:
        return None if limit is None else amount("memory", limit)
    except ValueError:
        return None  # the API will say what is wrong with it


def memory_limit(pod: k8s.V1Pod, *, container: str) -> str | None:
    """The same for people."""
    limit = memory_limit_bytes(pod, container=container)
    return None if limit is None else f"{limit / 2**30:.2f} GiB"


def requests(pod: k8s.V1Pod, accelerator: Accelerator, need: HostNeed, *, container: str) -> dict[str, int]:
    """What the whole pod would hold of its node: `cpu` in millicores, the rest in bytes or devices."""
    client = ApiClient()  # needs no connection: it only turns names into the API's spelling
    spec = client.sanitize_for_serialization(pod.spec)
    for plain in spec["containers"]:
        if plain["name"] == container:
            resources = _resources(container_of(pod, container).resources, accelerator, need)
            plain["resources"] = client.sanitize_for_serialization(resources)
    try:
        return pod_requests(spec)
    except ValueError as error:
        raise BadInput(f"container_resources: {error}") from None


def plan_hash(spec: JobSpec) -> str:
    """Twelve hexadecimal digits that two pods share if they run the same job on the same accelerator."""
    planned = spec.model_dump_json(include={"job", "accelerator"})
    return hashlib.sha256(planned.encode()).hexdigest()[:12]


def _name_node(container: k8s.V1Container) -> None:
    """Tell the worker its node, which it has no other way to know."""
    if all(variable.name != "NODE_NAME" for variable in container.env):
        field = k8s.V1ObjectFieldSelector(field_path="spec.nodeName")
        container.env.append(k8s.V1EnvVar(name="NODE_NAME", value_from=k8s.V1EnvVarSource(field_ref=field)))


def _resources(
    given: k8s.V1ResourceRequirements | None, accelerator: Accelerator, need: HostNeed
) -> k8s.V1ResourceRequirements:
    """Extended resources want requests equal to limits; on `cpu` the memory limit is the budget."""
    limits: dict[str, Any] = dict((given.limits if given else None) or {})
    requests: dict[str, Any] = dict((given.requests if given else None) or {})
    _refuse_other_devices({**requests, **limits}, accelerator)
    if accelerator.resource:
        limits[accelerator.resource] = requests[accelerator.resource] = "1"
    budget = accelerator.memory_bytes if accelerator.kind == "cpu" else None
    memory = budget if budget is not None else need.memory_bytes
    if "memory" not in limits and memory is not None and (need.limited or budget is not None):
        asked = _memory(requests.get("memory"))
        if budget is not None and asked > budget:
            raise BadInput(
                f"container_resources: requests.memory={requests['memory']} is more than memory_budget, {budget:,}"
                " bytes, which is the container's limit on cpu"
            )
        # A request of the author's own that is larger than what is needed is what he wants.
        limits["memory"] = requests["memory"] if asked > memory else str(memory)
    if "memory" in limits:
        requests.setdefault("memory", limits["memory"])
    elif memory is not None:
        requests.setdefault("memory", str(memory))
    # A limit without a request is the request, in Kubernetes' own defaulting; a smaller one must stay possible.
    if "cpu" not in limits:
        requests.setdefault("cpu", f"{need.cpu_millicores}m")
    return k8s.V1ResourceRequirements(limits=limits or None, requests=requests or None)


def _refuse_other_devices(given: Mapping[str, Any], accelerator: Accelerator) -> None:
    """One pod has what was planned for: a CPU task no GPU, a training one slice."""
    for name, count in given.items():
        if name.startswith("nvidia.com/") and (name != accelerator.resource or str(count) != "1"):
            planned = f"one {accelerator.resource}" if accelerator.resource else "none"
            raise BadInput(
                f"container_resources: {name}: {count} is asked for, and this task has {planned}: say accelerator="
                " and leave GPUs out of container_resources, default_args and pod templates"
            )


def _memory(quantity: Any) -> int:
    return 0 if quantity is None else amount("memory", quantity)


def _marks(spec: JobSpec, accelerator: Accelerator) -> dict[str, Any]:
    identity = spec.identity
    return {
        "dag": identity.dag_id,
        "run": identity.run_id,
        "task": identity.task_id,
        "map-index": identity.map_index,
        "try": identity.try_number,
        "plan": plan_hash(spec),
        "accelerator": accelerator.label,
        "batch": getattr(spec.job, "batch", ""),
    }
