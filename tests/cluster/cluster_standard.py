"""The controls of the pod security standard `restricted`, as a pure function over a manifest.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ (`baseline` is part of it). Kubernetes 1.20 has
no admission that checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SECCOMP = {"RuntimeDefault", "Localhost"}


def violations(pod: dict[str, Any]) -> list[str]:
    """What the standard forbids in a pod (the API's own JSON), one sentence each; empty where it may run."""
    spec = pod["spec"]
    return [*_of_pod(spec), *(fault for container in _containers(spec) for fault in _of_container(spec, container))]


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("containers", []), *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]


def _of_pod(spec: dict[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"{name} is set"
    for volume in spec.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUMES:
            yield f"volume {volume['name']} is of {', '.join(sorted(kinds))}"
    context = spec.get("securityContext", {})
    if context.get("sysctls"):
        yield "sysctls are set"
    if context.get("runAsUser") == 0:
        yield "the pod runs as user 0"
    if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in SECCOMP:
        yield "the pod's seccomp profile is unconfined"
    if context.get("seLinuxOptions", {}).keys() & {"user", "role"}:
        yield "SELinux user or role is set"


def _of_container(spec: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    name = f"container {container['name']}"
    own, pods = container.get("securityContext", {}), spec.get("securityContext", {})
    if own.get("privileged"):
        yield f"{name} is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name} may escalate privileges"
    if not own.get("runAsNonRoot", pods.get("runAsNonRoot")):
        yield f"{name} may run as root"
    if own.get("runAsUser") == 0:
        yield f"{name} runs as user 0"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield f"{name} does not drop ALL capabilities"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name} adds capabilities"
    seccomp = own.get("seccompProfile", pods.get("seccompProfile", {})).get("type")
    if seccomp not in SECCOMP:
        yield f"{name} has no seccomp profile"
    if own.get("procMount", "Default") != "Default":
        yield f"{name} changes procMount"
    if own.get("seLinuxOptions", {}).keys() & {"user", "role"}:
        yield f"{name} sets SELinux user or role"
    for port in container.get("ports", []):
        if port.get("hostPort"):
            yield f"{name} takes a port of the host"
