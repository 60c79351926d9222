"""What is to be made of a pod that an earlier try left, and waiting until it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kubernetes import watch
from kubernetes.client.exceptions import ApiException

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api, models as k8s

_GONE = (404, 410)

State = Literal["active", "leaving", "succeeded", "failed"]


def state_of(pod: k8s.V1Pod) -> State:
    """What is to be made of a pod that was found."""
    phase = pod.status.phase if pod.status else None
    if phase == "Succeeded":
        return "succeeded"
    if phase == "Failed":
        return "failed"
    return "leaving" if pod.metadata.deletion_timestamp else "active"


def last_seen(client: CoreV1Api, pod: k8s.V1Pod, timeout_seconds: int) -> tuple[k8s.V1Pod, bool]:
    """Wait until a pod that is being deleted is gone.

    Returns:
        The last state in which it was seen, which has its answer if it gave one; and whether it is gone.
    """
    name, namespace = pod.metadata.name, pod.metadata.namespace
    try:
        found = client.read_namespaced_pod(name=name, namespace=namespace)
    except ApiException as error:
        if error.status in _GONE:
            return pod, True
        raise
    if found.metadata.uid != pod.metadata.uid:
        return pod, True
    events = watch.Watch().stream(
        client.list_namespaced_pod,
        namespace=namespace,
        field_selector=f"metadata.name={name}",
        resource_version=found.metadata.resource_version,
        timeout_seconds=timeout_seconds,
    )
    for event in events:
        if event["type"] in ("MODIFIED", "DELETED"):
            found = event["object"]
        if event["type"] == "DELETED":
            return found, True
    return found, False
