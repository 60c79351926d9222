"""What the cluster offers to a pod: two LIST calls, and what to do where they are forbidden."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kubernetes.client import ApiClient, CoreV1Api, models as k8s
from kubernetes.client.exceptions import ApiException

from yolo_airflow_provider.gpus.cluster import ClusterOffer, discover
from yolo_airflow_provider.gpus.nodes import Placement, read_nodes, requests_by_node

_FORBIDDEN = 403
_TIMEOUT_SECONDS = 60
_ACTIVE_PODS = "status.phase!=Succeeded,status.phase!=Failed"


def read_cluster(client: CoreV1Api, pod: k8s.V1Pod, warn: Callable[[str], None]) -> ClusterOffer | None:
    """What the nodes offer that may take the pod; None where nodes may not be listed, which the log says.

    Where pods may not be listed in all namespaces, what is free is not known.

    Raises:
        ApiException: the API server failed in another way.
    """
    nodes = _listed(client.list_node)
    if nodes is None:
        warn(
            "This account may not list nodes, so what the cluster offers is not known: the connection's extra"
            " `yolo_accelerators` stands for it. docs/kubernetes.md has the ClusterRole that is missing."
        )
        return None
    pods = _listed(client.list_pod_for_all_namespaces, field_selector=_ACTIVE_PODS)
    if pods is None:
        warn("This account may not list pods in all namespaces, so it is not known how many slices are free.")
    return discover(read_nodes(nodes), None if pods is None else requests_by_node(pods), placement_of(pod))


def placement_of(pod: k8s.V1Pod) -> Placement:
    """Which nodes the pod lets itself be put on, as its author, its template and Airflow's policies say."""
    spec = _plain(pod.spec)
    required = (spec.get("affinity") or {}).get("nodeAffinity", {})
    return Placement(
        node_selector=spec.get("nodeSelector") or {},
        tolerations=tuple(spec.get("tolerations") or ()),
        node_affinity=required.get("requiredDuringSchedulingIgnoredDuringExecution"),
    )


def _listed(call: Callable[..., Any], **arguments: Any) -> list[dict[str, Any]] | None:
    """The items as the API's own JSON; the client's models of a thousand pods take seconds to build."""
    try:
        response = call(_preload_content=False, _request_timeout=_TIMEOUT_SECONDS, **arguments)
    except ApiException as error:
        if error.status == _FORBIDDEN:
            return None
        raise
    items: list[dict[str, Any]] = json.loads(response.data)["items"]
    return items


def _plain(model: Any) -> dict[str, Any]:
    # Needs no connection: it only turns names into the API's spelling.
    plain: dict[str, Any] = ApiClient().sanitize_for_serialization(model)
    return plain
