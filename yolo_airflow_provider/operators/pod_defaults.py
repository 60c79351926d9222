"""Defaults of the operators' pods: what the `restricted` pod security standard asks for, writable places, labels.

Pure changes to the pod that KubernetesPodOperator built; what is set there already stays, whoever set it (the DAG
author, a pod template, Airflow's pod_mutation_hook).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value
from kubernetes.client import models as k8s

PREFIX = "yolo-airflow.io/"
"""Of our labels and annotations."""

USER_ID = 1000
"""Any number but 0: `runAsNonRoot` refuses an image whose user is a name or root, unless the pod gives a number."""

GPU_TOLERATION = k8s.V1Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
"""Nodes with GPUs are commonly tainted with this key, so that nothing else lands there."""


def secure(pod: k8s.V1Pod, *, container: str) -> None:
    """Run as a plain user without any right over the node, on a read-only root with a writable /tmp.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/, profile `restricted`; the read-only root is
    beyond it.
    """
    # KubernetesPodOperator 10.25.0 makes {} of a security context that is not given, and takes plain dicts as well.
    if not pod.spec.security_context or pod.spec.security_context == k8s.V1PodSecurityContext():
        pod.spec.security_context = k8s.V1PodSecurityContext(
            run_as_non_root=True,
            run_as_user=USER_ID,
            run_as_group=USER_ID,
            fs_group=USER_ID,
            # A volume with many images would be walked at each start otherwise.
            fs_group_change_policy="OnRootMismatch",
            seccomp_profile=k8s.V1SeccompProfile(type="RuntimeDefault"),
        )
    base = container_of(pod, container)
    if not base.security_context:
        base.security_context = k8s.V1SecurityContext(
            allow_privilege_escalation=False,
            capabilities=k8s.V1Capabilities(drop=["ALL"]),
            read_only_root_filesystem=True,
        )
    given = base.security_context
    if given.get("readOnlyRootFilesystem") if isinstance(given, dict) else given.read_only_root_filesystem:
        mount(pod, base, k8s.V1Volume(name="yolo-tmp", empty_dir=k8s.V1EmptyDirVolumeSource()), "/tmp")
        # A user without an entry in /etc/passwd has neither a home nor a name, and libraries ask for both.
        for name, value in (("HOME", "/tmp"), ("USER", "yolo"), ("TMPDIR", "/tmp")):
            default_env(base, name, value)


def tolerate_gpu_taint(pod: k8s.V1Pod) -> None:
    """Let a pod that asks for a GPU land on a node that is tainted for GPUs."""
    tolerations = list(pod.spec.tolerations or [])
    if not any(t.key in (GPU_TOLERATION.key, None) and t.operator == "Exists" for t in tolerations):
        pod.spec.tolerations = [*tolerations, GPU_TOLERATION]


def mount_claim(pod: k8s.V1Pod, *, name: str, claim: str, path: str, container: str, read_only: bool = False) -> None:
    """Mount a claim at a path, unless something is mounted there."""
    source = k8s.V1PersistentVolumeClaimVolumeSource(claim_name=claim, read_only=read_only or None)
    volume = k8s.V1Volume(name=name, persistent_volume_claim=source)
    mount(pod, container_of(pod, container), volume, path, read_only=read_only)


def mount_shm(pod: k8s.V1Pod, *, container: str, size_bytes: int) -> None:
    """Give the loader processes a /dev/shm of a known size, in memory."""
    memory = k8s.V1EmptyDirVolumeSource(medium="Memory", size_limit=str(size_bytes))
    mount(pod, container_of(pod, container), k8s.V1Volume(name="yolo-shm", empty_dir=memory), "/dev/shm")


def mount(
    pod: k8s.V1Pod, container: k8s.V1Container, volume: k8s.V1Volume, path: str, *, read_only: bool = False
) -> None:
    """Mount a volume of our own at a path, unless something is mounted there."""
    mounts = container.volume_mounts or []
    if any(existing.mount_path.rstrip("/") == path.rstrip("/") for existing in mounts):
        return
    volumes = pod.spec.volumes or []
    if all(existing.name != volume.name for existing in volumes):
        pod.spec.volumes = [*volumes, volume]
    container.volume_mounts = [
        *mounts,
        k8s.V1VolumeMount(name=volume.name, mount_path=path, read_only=True if read_only else None),
    ]


def mark(pod: k8s.V1Pod, values: Mapping[str, Any]) -> None:
    """Put values on the pod: whole as annotations, and as labels as far as a label can hold them."""
    given = {PREFIX + name: str(value) for name, value in values.items() if str(value)}
    labels = {name: label_value(value) for name, value in given.items()}
    pod.metadata.annotations = {**given, **(pod.metadata.annotations or {})}
    pod.metadata.labels = {**labels, **(pod.metadata.labels or {})}


def label_value(text: str) -> str:
    """A text as the value of a label: at most 63 characters of `[A-Za-z0-9._-]`, told apart by a hash where cut.

    cncf-kubernetes 10.25.0 puts a dash and the hash where no character can stay (an id in Chinese, say), and a label
    must not begin with a dash.
    """
    return make_safe_label_value(text).lstrip("-")


def container_of(pod: k8s.V1Pod, name: str) -> k8s.V1Container:
    """The container of that name."""
    return next(container for container in pod.spec.containers if container.name == name)


def default_env(container: k8s.V1Container, name: str, value: str) -> None:
    """Set a variable that nobody has set."""
    if all(variable.name != name for variable in container.env or []):
        container.env = [*(container.env or []), k8s.V1EnvVar(name=name, value=value)]
