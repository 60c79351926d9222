"""The administrator's side of the cluster: namespace, account with the published rights, volumes, node with slices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from cluster_settings import PRODUCT, ROOT, SLICE, SLICES
from kubernetes import client
from kubernetes.client.exceptions import ApiException

MANIFEST = ROOT / "docs" / "kubernetes" / "rbac.yaml"
TOKEN_SECONDS = 4 * 3600

# What GPU feature discovery writes on a node with one A100 40 GB cut into seven, strategy `mixed`: names from its
# internal/lm, memory of the slice as nvidia-smi prints it in NVIDIA's MIG guide.
GPU_LABELS = {
    "nvidia.com/cuda.driver-version.full": "550.54.15",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.family": "ampere",
    "nvidia.com/gpu.memory": "40960",
    "nvidia.com/gpu.product": PRODUCT,
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.config": "all-1g.5gb",
    "nvidia.com/mig.config.state": "success",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig-1g.5gb.count": "7",
    "nvidia.com/mig-1g.5gb.memory": "4864",
    "nvidia.com/mig-1g.5gb.multiprocessors": "14",
    "nvidia.com/mig-1g.5gb.product": f"{PRODUCT}-MIG-1g.5gb",
    "nvidia.com/mig-1g.5gb.replicas": "1",
    "nvidia.com/mig-1g.5gb.sharing-strategy": "none",
    "nvidia.com/mig-1g.5gb.slices.ci": "1",
    "nvidia.com/mig-1g.5gb.slices.gi": "1",
}


class Kube:
    """An administrator's clients."""

    def __init__(self, kubeconfig: str) -> None:
        from kubernetes import config

        self.kubeconfig = kubeconfig
        self.api = config.new_client_from_config(kubeconfig)
        self.core = client.CoreV1Api(self.api)
        self.rbac = client.RbacAuthorizationV1Api(self.api)

    def patch_node(self, node: str, body: dict[str, Any], *, status: bool = False) -> None:
        """A merge patch, in which None takes a value away."""
        (self.core.patch_node_status if status else self.core.patch_node)(node, body)

    def cordon(self, node: str, unschedulable: bool = True) -> None:
        self.patch_node(node, {"spec": {"unschedulable": unschedulable or None}})

    def evict(self, pod: client.V1Pod, grace_seconds: int = 30) -> None:
        """What `kubectl drain` does to a pod; by deletion where the cluster's policy API is not the client's."""
        name, namespace = pod.metadata.name, pod.metadata.namespace
        body = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"gracePeriodSeconds": grace_seconds},
        }
        for version in ("policy/v1", "policy/v1beta1"):
            try:
                self.core.create_namespaced_pod_eviction(name, namespace, {**body, "apiVersion": version})
                return
            except ApiException as error:
                if error.status not in (400, 404, 415):
                    raise
            except ValueError:
                return  # the answer of an older server has no details, which the client's model wants
        self.core.delete_namespaced_pod(name, namespace, grace_period_seconds=grace_seconds)

    def delete_now(self, pod: client.V1Pod) -> None:
        """`kubectl delete --force --grace-period=0`: the object is gone at once."""
        self.core.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0)


def manifest(namespace: str) -> list[dict[str, Any]]:
    """The published rights, for a namespace of ours; names of what is cluster-wide get it as a suffix."""
    documents = list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))
    for document in documents:
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = namespace
        else:
            document["metadata"]["name"] += f"-{namespace}"
        for subject in document.get("subjects", []):
            subject["namespace"] = namespace
        if document.get("roleRef", {}).get("kind") == "ClusterRole":
            document["roleRef"]["name"] += f"-{namespace}"
    return documents


@contextmanager
def namespace_with_rights(kube: Kube, name: str) -> Iterator[None]:
    """A namespace to which exactly the published manifest is applied, and an account with its namespaced part only."""
    kube.core.create_namespace({"metadata": {"name": name}})
    try:
        for document in manifest(name):
            _create(kube, document)
        kube.core.create_namespaced_service_account(name, {"metadata": {"name": "narrow"}})
        binding = next(d for d in manifest(name) if d["kind"] == "RoleBinding")
        binding["metadata"]["name"] = "narrow"
        binding["subjects"][0]["name"] = "narrow"
        _create(kube, binding)
        yield
    finally:
        for document in manifest(name):
            if document["kind"].startswith("ClusterRole"):
                _delete(kube, document)
        kube.core.delete_namespace(name)


def _create(kube: Kube, document: dict[str, Any]) -> None:
    kind, namespace = document["kind"], document["metadata"].get("namespace")
    if kind == "ServiceAccount":
        kube.core.create_namespaced_service_account(namespace, document)
    elif kind == "Role":
        kube.rbac.create_namespaced_role(namespace, document)
    elif kind == "RoleBinding":
        kube.rbac.create_namespaced_role_binding(namespace, document)
    elif kind == "ClusterRole":
        kube.rbac.create_cluster_role(document)
    elif kind == "ClusterRoleBinding":
        kube.rbac.create_cluster_role_binding(document)
    else:
        raise ValueError(f"{MANIFEST.name} has a {kind}, which the tests cannot apply")


def _delete(kube: Kube, document: dict[str, Any]) -> None:
    name = document["metadata"]["name"]
    if document["kind"] == "ClusterRole":
        kube.rbac.delete_cluster_role(name)
    else:
        kube.rbac.delete_cluster_role_binding(name)


def write_kubeconfig(kube: Kube, account: str, namespace: str, path: Path) -> None:
    """A kubeconfig for the holder of a token of the account."""
    request = {"spec": {"expirationSeconds": TOKEN_SECONDS, "audiences": None}}
    token = kube.core.create_namespaced_service_account_token(account, namespace, request).status.token
    admin = yaml.safe_load(Path(kube.kubeconfig).read_text(encoding="utf-8"))
    context = next(c["context"] for c in admin["contexts"] if c["name"] == admin["current-context"])
    cluster = next(c for c in admin["clusters"] if c["name"] == context["cluster"])
    named = {"cluster": cluster["name"], "user": account, "namespace": namespace}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": account, "context": named}],
        "current-context": account,
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    path.chmod(0o600)


@contextmanager
def volume(kube: Kube, namespace: str, claim: str, folder: Path, *, read_only: bool = False) -> Iterator[None]:
    """A claim that is bound to a folder of the node."""
    name = f"{namespace}-{claim}"
    modes = ["ReadOnlyMany" if read_only else "ReadWriteMany"]
    size = {"storage": "10Gi"}
    kube.core.create_persistent_volume(
        {
            "metadata": {"name": name},
            "spec": {
                "capacity": size,
                "accessModes": modes,
                "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder)},
                "claimRef": {"namespace": namespace, "name": claim},
            },
        }
    )
    try:
        kube.core.create_namespaced_persistent_volume_claim(
            namespace,
            {
                "metadata": {"name": claim},
                "spec": {
                    "accessModes": modes,
                    "storageClassName": "",
                    "volumeName": name,
                    "resources": {"requests": size},
                },
            },
        )
        yield
    finally:
        kube.core.delete_persistent_volume(name)


@contextmanager
def node_with_slices(kube: Kube, node: str) -> Iterator[str]:
    """Give the node the slices of an A100 and the labels that describe them; take both away at the end."""
    amount = {SLICE: str(SLICES)}
    kube.patch_node(node, {"metadata": {"labels": GPU_LABELS}, "spec": {"unschedulable": None}})
    kube.patch_node(node, {"status": {"capacity": amount, "allocatable": amount}}, status=True)
    try:
        yield node
    finally:
        nothing = {SLICE: None}
        kube.patch_node(node, {"metadata": {"labels": dict.fromkeys(GPU_LABELS)}, "spec": {"unschedulable": None}})
        kube.patch_node(node, {"status": {"capacity": nothing, "allocatable": nothing}}, status=True)
