"""What the cluster offers to a pod: two LIST calls, and what to do where they are forbidden."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import generic_api_retry
from kubernetes.client import ApiClient, CoreV1Api, models as k8s
from kubernetes.client.exceptions import ApiException

from yolo_airflow_provider.gpus.cluster import ClusterOffer, discover
from yolo_airflow_provider.gpus.nodes import Placement, read_nodes, requests_by_node

_FORBIDDEN = 403
_TIMEOUT_SECONDS = 60
_PAGE = 500
_ACTIVE_PODS = "status.phase!=Succeeded,status.phase!=Failed"


def read_cluster(
    client: CoreV1Api, pod: k8s.V1Pod, warn: Callable[[str], None], *, with_pods: bool
) -> ClusterOffer | None:
    """What the nodes offer that may take the pod; None where nodes may not be listed, which the log says.

    Where pods may not be listed in all namespaces, what is free is not known.

    Args:
        client: of the cluster.
        pod: as KubernetesPodOperator built it.
        warn: takes what is to be said in the task's log.
        with_pods: find out what is free; a task without a GPU has no use for it.

    Raises:
        ApiException: the API server failed in another way.
    """
    nodes = _pages(client.list_node)
    try:
        found = read_nodes(nodes)
    except ApiException as error:
        if error.status != _FORBIDDEN:
            raise
        warn(
            "This account may not list nodes, so what the cluster offers is not known: the connection's extra"
            " `yolo_accelerators` stands for it. docs/kubernetes.md has the ClusterRole that is missing."
        )
        return None
    return discover(found, _held(client, warn) if with_pods else None, placement_of(pod))


def _held(client: CoreV1Api, warn: Callable[[str], None]) -> dict[str, dict[str, int]] | None:
    try:
        return requests_by_node(_pages(client.list_pod_for_all_namespaces, field_selector=_ACTIVE_PODS))
    except ApiException as error:
        if error.status != _FORBIDDEN:
            raise
        warn("This account may not list pods in all namespaces, so it is not known how many slices are free.")
        return None


def placement_of(pod: k8s.V1Pod) -> Placement:
    """Which nodes the pod lets itself be put on, as its author, its template and Airflow's policies say."""
    spec = _plain(pod.spec)
    required = (spec.get("affinity") or {}).get("nodeAffinity", {})
    return Placement(
        node_selector=spec.get("nodeSelector") or {},
        tolerations=tuple(spec.get("tolerations") or ()),
        node_affinity=required.get("requiredDuringSchedulingIgnoredDuringExecution"),
        node_name=spec.get("nodeName") or "",
    )


def _pages(call: Callable[..., Any], **arguments: Any) -> Iterator[dict[str, Any]]:
    """The items as the API's own JSON, page by page.

    The client's models of thousands of pods take seconds to build, and all of them at once hundreds of megabytes.
    """
    fetch = generic_api_retry(call)
    token: str | None = None
    while True:
        more = {"_continue": token} if token else {}
        response = fetch(_preload_content=False, _request_timeout=_TIMEOUT_SECONDS, limit=_PAGE, **arguments, **more)
        page = json.loads(response.data)
        yield from page["items"]
        token = page.get("metadata", {}).get("continue")
        if not token:
            return


def _plain(model: Any) -> dict[str, Any]:
    # Needs no connection: it only turns names into the API's spelling.
    plain: dict[str, Any] = ApiClient().sanitize_for_serialization(model)
    return plain
