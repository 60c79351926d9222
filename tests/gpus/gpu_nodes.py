"""Nodes and pods as the API's JSON has them.

The labels of `h100_mixed` are from NVIDIA/cloud-native-docs, gpu-operator/manifests/output/mig-mixed-node-labels.json
(driver 550.54.15); those of `a100_single` follow NVIDIA/k8s-device-plugin, internal/lm/resource.go, with the memory and
the multiprocessors of NVIDIA's MIG user guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yolo_airflow_provider.gpus.cluster import ANYWHERE, ClusterOffer, discover
from yolo_airflow_provider.gpus.nodes import Placement, read_nodes, requests_by_node

Json = dict[str, Any]

H100 = "NVIDIA-H100-80GB-HBM3"
A100 = "NVIDIA-A100-SXM4-40GB"
H100_SLICES = {"1g.10gb": (2, 9984, 16), "2g.20gb": (1, 20096, 32), "3g.40gb": (1, 40320, 60)}
"""By profile: devices, MiB, multiprocessors."""


def node(
    name: str,
    devices: Mapping[str, int | str] | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    cpu: str = "32",
    memory: str = "131072Mi",
    ready: bool = True,
    cordoned: bool = False,
    taints: tuple[str, ...] = (),
) -> Json:
    """A node of the API; `taints` are written as kubectl does, `key=value:effect`."""
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "403Gi"}
    state = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True" if ready else "Unknown"}]
    spec: Json = {"taints": [_taint(text) for text in taints]} if taints else {}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {**spec, **({"unschedulable": True} if cordoned else {})},
        "status": {
            "allocatable": {**allocatable, **{key: str(count) for key, count in (devices or {}).items()}},
            "conditions": state,
        },
    }


def _taint(text: str) -> Json:
    identity, _, effect = text.rpartition(":")
    key, _, value = identity.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def card_labels(product: str, memory_mib: int, count: int = 1, **others: str) -> dict[str, str]:
    """Feature discovery's labels of whole cards; further ones by their last parts, `mig_strategy="mixed"`."""
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": str(memory_mib),
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        **{f"nvidia.com/{name.replace('_', '.')}": value for name, value in others.items()},
    }


def slice_labels(product: str, profile: str, count: int, memory_mib: int, multiprocessors: int) -> dict[str, str]:
    """Feature discovery's labels of one profile under the strategy mixed."""
    key = f"nvidia.com/mig-{profile}"
    return {
        f"{key}.count": str(count),
        f"{key}.memory": str(memory_mib),
        f"{key}.multiprocessors": str(multiprocessors),
        f"{key}.product": f"{product}-MIG-{profile}",
        f"{key}.replicas": "1",
        f"{key}.sharing-strategy": "none",
    }


def h100_mixed(name: str, state: str = "success", devices: Mapping[str, int] | None = None, **how: Any) -> Json:
    """One H100 with the layout all-balanced; `devices` instead of what is allocatable."""
    labels = {
        **card_labels(H100, 81559, mig_strategy="mixed", mig_config="all-balanced", mig_config_state=state),
        "nvidia.com/gpu.replicas": "0",
        **{
            key: text for profile, its in H100_SLICES.items() for key, text in slice_labels(H100, profile, *its).items()
        },
        **how.pop("labels", {}),
    }
    offered = {"nvidia.com/gpu": 0, **{f"nvidia.com/mig-{profile}": its[0] for profile, its in H100_SLICES.items()}}
    return node(name, offered if devices is None else devices, labels, **how)


def a100_single(name: str, slices: int = 7, **how: Any) -> Json:
    """An A100 40GB in slices 1g.5gb, which the strategy single calls nvidia.com/gpu."""
    labels = {
        **card_labels(f"{A100}-MIG-1g.5gb", 4864, count=7, mig_strategy="single", mig_config_state="success"),
        "nvidia.com/gpu.multiprocessors": "14",
        **how.pop("labels", {}),
    }
    return node(name, {"nvidia.com/gpu": slices}, labels, **how)


def whole(name: str, product: str = A100, memory_mib: int = 40960, cards: int = 8, **how: Any) -> Json:
    """A node of whole cards under the strategy none."""
    return node(name, {"nvidia.com/gpu": cards}, card_labels(product, memory_mib, cards) | how.pop("labels", {}), **how)


def pod(node_name: str | None, phase: str = "Running", **requests: Any) -> Json:
    """A pod of one container; a resource name goes through `**{"nvidia.com/gpu": 1}`."""
    texts = {name: str(value) for name, value in requests.items()}
    spec: Json = {"containers": [{"name": "base", "resources": {"requests": texts, "limits": texts}}]}
    return {"spec": {**spec, **({"nodeName": node_name} if node_name else {})}, "status": {"phase": phase}}


def cluster(*items: Json, pods: list[Json] | None = None, placement: Placement = ANYWHERE) -> ClusterOffer:
    """What the nodes offer beside these pods; nobody knows the pods where they are None."""
    return discover(read_nodes(items), None if pods is None else requests_by_node(pods), placement)
