"""The pod that an earlier try of the same task instance left: taken over, waited for, or read before it goes.

KubernetesPodOperator finds its pods again by labels. It would plan first and look then, take over a pod that is
being deleted, and delete a finished one unread (cncf-kubernetes 10.25.0, `get_or_create_pod`); so this looks first.
"""

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


def await_gone(client: CoreV1Api, pod: k8s.V1Pod, timeout_seconds: int) -> bool:
    """Wait until a pod that is being deleted is gone; False when it still is there after the time."""
    name, namespace = pod.metadata.name, pod.metadata.namespace
    try:
        found = client.read_namespaced_pod(name=name, namespace=namespace)
    except ApiException as error:
        if error.status in _GONE:
            return True
        raise
    if found.metadata.uid != pod.metadata.uid:
        return True
    events = watch.Watch().stream(
        client.list_namespaced_pod,
        namespace=namespace,
        field_selector=f"metadata.name={name}",
        resource_version=found.metadata.resource_version,
        timeout_seconds=timeout_seconds,
    )
    return any(event["type"] == "DELETED" for event in events)
