"""How a pod ended, and why: from its container's state, its conditions, its own reason and the tail of its log."""

from __future__ import annotations

from airflow.providers.cncf.kubernetes.utils.container import get_container_status
from kubernetes.client import models as k8s

from yolo_airflow_provider.contract import Failure, FailureClass, JobSpec, failure_of_exit_code
from yolo_airflow_provider.operators.pod_defaults import container_of
from yolo_airflow_provider.operators.pods import memory_limit, memory_limit_bytes
from yolo_airflow_provider.symptoms import classify_text

_NEVER_STARTS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}
    | {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
"""Reasons of a container that waits which no waiting mends (kubelet's own names)."""

_TAKEN_AWAY = {
    "Evicted": "the node was short of a resource",
    "Preempting": "a pod of higher priority took its place",
    "Terminated": "the node was shut down",
    "NodeShutdown": "the node was shut down",
    "Shutdown": "the node was shut down",
    "NodeLost": "the node does not answer",
    "DeadlineExceeded": "it ran longer than active_deadline_seconds",
}
"""Reasons of a pod that was ended from outside."""

_NOT_ADMITTED = ("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "TopologyAffinityError", "AdmissionFailed")
"""Reasons of a pod that the node refused after the scheduler had bound it; a device that was given away in that moment
is one (`UnexpectedAdmissionError`)."""


def resumes(spec: JobSpec) -> str:
    """What becomes of a run that broke off, for its hint; nothing to say of one that starts anew."""
    return "the next try resumes from the last whole epoch" if spec.job.kind == "train" else ""


def how_it_ended(pod: k8s.V1Pod, container: str) -> k8s.V1ContainerStateTerminated | None:
    """The state of a container that has ended, None while it has not, or never started."""
    status = get_container_status(pod, container)
    return status.state.terminated if status and status.state else None


def failure_of(pod: k8s.V1Pod, spec: JobSpec, *, container: str, original: BaseException | None) -> Failure:
    """Why a pod gave no readable answer.

    Args:
        pod: as it was read last.
        spec: the job it was given.
        container: name of the worker's container.
        original: the exception with which KubernetesPodOperator gave up, if it did.
    """
    ended = how_it_ended(pod, container)
    # The container before the pod: a pod's own reason is empty when its container was OOMKilled.
    if ended is not None and ended.reason == "OOMKilled":
        return _oom_killed(ended, pod, spec, container)
    return (
        _taken_away(pod, spec, ended)
        or (_never_started(pod, container) if ended is None else None)
        or _without_answer(pod, spec, ended, original)
    )


def _without_answer(
    pod: k8s.V1Pod,
    spec: JobSpec,
    ended: k8s.V1ContainerStateTerminated | None,
    original: BaseException | None,
) -> Failure:
    told = {
        "phase": pod.status.phase,
        "reason": pod.status.reason or (ended.reason if ended else None),
        "exit_code": ended.exit_code if ended else None,
        "message": pod.status.message,
        # Not JSON: with FallbackToLogsOnError kubelet puts the log's tail (2 KiB) where there is no message.
        "last lines": " | ".join(ended.message.splitlines()[-3:])[-500:] if ended and ended.message else None,
        "deleted": "by somebody" if pod.metadata.deletion_timestamp else None,
        "given up with": f"{type(original).__name__}: {original}"[:300] if original else None,
    }
    on_cpu = spec.accelerator.kind == "cpu"
    found = FailureClass.LOST
    if ended is not None:
        found = failure_of_exit_code(ended.exit_code, on_cpu=on_cpu)
        if found is FailureClass.LOST and ended.exit_code:
            found = classify_text(ended.message or "") or found
    has = "ended" if ended is not None or pod.status.phase in ("Succeeded", "Failed") else "was given up"
    return Failure(
        failure_class=found,
        message=f"pod {pod.metadata.name} {has} without an answer: "
        + ", ".join(f"{name} {value}" for name, value in told.items() if value is not None),
        hint=resumes(spec),
    )


def _taken_away(pod: k8s.V1Pod, spec: JobSpec, ended: k8s.V1ContainerStateTerminated | None) -> Failure | None:
    """A pod that was ended by the cluster, not by what ran in it."""
    name, reason, said = pod.metadata.name, pod.status.reason or "", pod.status.message
    for condition in pod.status.conditions or []:
        if condition.type == "DisruptionTarget" and condition.status == "True" and reason not in _TAKEN_AWAY:
            reason, said = condition.reason, condition.message or said
            return _preempted(name, reason, said, spec)
    if pod.metadata.deletion_timestamp and ended is None:
        # Kubelet 1.20 may report a deleted pod as failed, its container as one that never ran, and the answer is lost.
        return _preempted(name, "deleted", "somebody deleted it while it ran, and its end was not told", spec)
    if reason in _TAKEN_AWAY:
        return _preempted(name, reason, said or _TAKEN_AWAY[reason], spec)
    if reason.startswith(_NOT_ADMITTED):
        return Failure(
            failure_class=FailureClass.UNSCHEDULABLE,
            message=f"node {pod.spec.node_name} refused pod {name}: {reason}: {pod.status.message}",
            hint="the device was given away in that moment, or the node cannot hold the pod; the next try asks again",
        )
    return None


def _preempted(name: str, reason: str, said: str | None, spec: JobSpec) -> Failure:
    return Failure(
        failure_class=FailureClass.PREEMPTED,
        message=f"pod {name} was taken away: {reason}: {said}",
        hint=resumes(spec),
    )


def _oom_killed(ended: k8s.V1ContainerStateTerminated, pod: k8s.V1Pod, spec: JobSpec, container: str) -> Failure:
    # On `cpu` the container's limit is the budget that is planned with; on a GPU it is another memory.
    on_cpu = spec.accelerator.kind == "cpu"
    budget = memory_limit_bytes(pod, container=container) if on_cpu else None
    limit = memory_limit(pod, container=container)
    batch = getattr(spec.job, "batch", None)
    if spec.job.kind not in ("train", "probe"):
        hint = "give the task more memory: container_resources, or memory_budget"
    elif on_cpu:
        hint = "the next try plans with this measured, and takes a smaller batch; or give more memory"
    else:
        hint = "this is the node's memory and not the GPU's: the next try asks for more of it, with the same batch"
    return Failure(
        failure_class=FailureClass.HOST_OOM,
        message=f"OOMKilled (exit code {ended.exit_code}), memory limit {limit or 'of the node'}"
        + (f", batch {batch}" if batch else ""),
        hint=hint,
        needed_bytes=budget,
        budget_bytes=budget,
    )


def _never_started(pod: k8s.V1Pod, container: str) -> Failure | None:
    """Why a pod never started: no image, or no node."""
    status = get_container_status(pod, container)
    waiting = status.state.waiting if status and status.state else None
    if waiting is not None and waiting.reason in _NEVER_STARTS:
        image = container_of(pod, container).image
        return Failure(
            failure_class=FailureClass.IMAGE,
            message=f"image {image} did not start: {waiting.reason}: {waiting.message or 'no message'}",
            hint="check the image's name and the node's access to its registry",
        )
    for condition in pod.status.conditions or []:
        if condition.type != "PodScheduled":
            continue
        if condition.status == "False":
            return Failure(
                failure_class=FailureClass.UNSCHEDULABLE,
                message=f"no node took pod {pod.metadata.name}: {condition.message or condition.reason}",
                hint="wait longer (schedule_timeout_seconds), or ask for what is free",
            )
        if waiting is not None and pod.status.phase == "Pending":
            return Failure(
                failure_class=FailureClass.IMAGE,
                message=f"image {container_of(pod, container).image} was not started on node {pod.spec.node_name} in"
                f" time: {waiting.reason}: {waiting.message or 'no message'}",
                hint="a large image or a slow volume: raise startup_timeout_seconds; else see the pod's events above",
            )
    return None
