"""Nodes and pods as the Kubernetes API's JSON has them, in plain numbers, and whether a node may take a pod."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

_UNITS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{unit: Fraction(10 ** (3 * power)) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(2 ** (10 * power)) for power, unit in enumerate("KMGTPE", 1)},
}
# A machine's spelling, so letters mean what the API says: `m` is a thousandth, `M` a million, `1E` an exa, `1e3` not.
_QUANTITY = re.compile(r"^(?P<number>\d*\.?\d+(?:[eE][+-]?\d+)?|\d+\.)(?P<unit>[numkMGTPE]|[KMGTPE]i|)$")

_FINISHED = ("Succeeded", "Failed")
_STATES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints by which Kubernetes says how a node is at the moment (cordoned, unreachable, out of disk), not whom it is for:
https://kubernetes.io/docs/reference/labels-annotations-taints/."""


@dataclass(frozen=True)
class Taint:
    """What keeps pods off a node; `effect` is NoSchedule, NoExecute or PreferNoSchedule."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


@dataclass(frozen=True)
class Node:
    """One node, as far as placing a pod is concerned.

    Attributes:
        name: as the API calls it.
        labels: all of them.
        taints: all of them.
        cordoned: nothing new is put on it.
        ready: kubelet says so.
        cpu_millicores: allocatable to pods, all together.
        memory_bytes: allocatable to pods, all together.
        extended: allocatable devices by resource name; zeros stay in it after a MIG layout is gone.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    cordoned: bool
    ready: bool
    cpu_millicores: int
    memory_bytes: int
    extended: Mapping[str, int]


@dataclass(frozen=True)
class Placement:
    """Which nodes a pod lets itself be put on, in the API's JSON.

    Attributes:
        node_selector: labels that the node must have.
        tolerations: of the pod, each with `key`, `operator`, `value`, `effect`, as far as given.
        node_affinity: `requiredDuringSchedulingIgnoredDuringExecution`, so one key `nodeSelectorTerms`.
        node_name: the only node, where the pod names one; the scheduler and its NoSchedule taints are then passed by.
    """

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    node_affinity: Mapping[str, Any] | None = None
    node_name: str = ""


def read_nodes(items: Iterable[Mapping[str, Any]]) -> list[Node]:
    """The nodes of a NodeList's `items`.

    Raises:
        ValueError: an allocatable quantity is not one.
    """
    return [_node(item) for item in items]


def requests_by_node(pods: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """What the pods on each node hold, by resource: `cpu` in millicores, the rest in bytes or devices.

    A pod holds what it requests from the moment it is bound until it has ended, whether it runs or not.

    Args:
        pods: a PodList's `items`, of all namespaces, or what is free would be too much.

    Raises:
        ValueError: a requested quantity is not one.
    """
    held: dict[str, dict[str, int]] = {}
    for pod in pods:
        spec = pod.get("spec") or {}
        node = spec.get("nodeName")
        if not node or (pod.get("status") or {}).get("phase") in _FINISHED:
            continue
        held[node] = _sum(held.get(node, {}), pod_requests(spec))
    return held


def why_not(node: Node, placement: Placement) -> str:
    """Why the node can never take the pod, as a part of a sentence; empty where it can.

    States that pass (cordoned, not ready) are no reason here: `why_not_now` has them.
    """
    if placement.node_name and placement.node_name != node.name:
        return f"the pod names node {placement.node_name}"
    for key, wanted in sorted(placement.node_selector.items()):
        if node.labels.get(key) != wanted:
            has = f"has {key}={node.labels[key]}" if key in node.labels else f"has no label {key}"
            return f"{has}, the pod's node selector asks for {wanted or 'an empty value'}"
    terms = (placement.node_affinity or {}).get("nodeSelectorTerms")
    if terms and not any(_meets(node, term) for term in terms):
        return f"does not meet the pod's node affinity: {' or '.join(map(_term_text, terms))}"
    against = [str(taint) for taint in _untolerated(node, placement) if not taint.key.startswith(_STATES)]
    if against:
        return f"tainted {', '.join(against)}, which the pod does not tolerate"
    return ""


def why_not_now(node: Node, placement: Placement) -> str:
    """Which state keeps the node from taking the pod at the moment; empty where none does."""
    states = [word for word, holds in (("cordoned", node.cordoned), ("not ready", not node.ready)) if holds]
    # The control plane says the same again by a taint, so taints only add what the fields do not show.
    states = states or [f"tainted {taint}" for taint in _untolerated(node, placement) if taint.key.startswith(_STATES)]
    return " and ".join(states)


def _node(item: Mapping[str, Any]) -> Node:
    metadata, spec, status = (item.get(part) or {} for part in ("metadata", "spec", "status"))
    allocatable = status.get("allocatable") or {}
    conditions = status.get("conditions") or ()
    return Node(
        name=metadata["name"],
        labels=dict(metadata.get("labels") or {}),
        taints=tuple(
            Taint(taint["key"], taint.get("value") or "", taint["effect"]) for taint in spec.get("taints") or ()
        ),
        cordoned=bool(spec.get("unschedulable")),
        ready=any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions),
        cpu_millicores=amount("cpu", allocatable.get("cpu", 0)),
        memory_bytes=amount("memory", allocatable.get("memory", 0)),
        extended={name: amount(name, value) for name, value in allocatable.items() if "/" in name},
    )


@lru_cache(maxsize=4096)  # thousands of pods ask for the same few amounts
def amount(resource: str, quantity: str | int | float) -> int:
    """A Kubernetes quantity as a whole number, rounded up as the scheduler does; millicores for `cpu`."""
    found = _QUANTITY.match(str(quantity))
    if found is None:
        raise ValueError(f"{resource}: {quantity!r} is not a Kubernetes quantity")
    return math.ceil(Fraction(found["number"]) * _UNITS[found["unit"]] * (1000 if resource == "cpu" else 1))


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """The larger of what runs together and of each step of the initialisation, plus the runtime's overhead.

    As in "Resource sharing within containers", https://kubernetes.io/docs/concepts/workloads/pods/init-containers/:
    an init container that restarts always is a sidecar, which stays beside everything that starts after it.
    """
    together: dict[str, int] = {}
    for container in spec.get("containers") or ():
        together = _sum(together, _container_requests(container))
    sidecars: dict[str, int] = {}
    largest_step: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        step = _sum(sidecars, _container_requests(container))
        if container.get("restartPolicy") == "Always":
            sidecars = step
        largest_step = _max(largest_step, step)
    overhead = {name: amount(name, value) for name, value in (spec.get("overhead") or {}).items()}
    return _sum(_max(_sum(together, sidecars), largest_step), overhead)


def _container_requests(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    # The API server fills in a missing request from the limit.
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount(name, value) for name, value in asked.items()}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _max(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def _untolerated(node: Node, placement: Placement) -> list[Taint]:
    effects = ("NoExecute",) if placement.node_name else ("NoSchedule", "NoExecute")
    return [
        taint
        for taint in node.taints
        if taint.effect in effects and not any(_tolerates(one, taint) for one in placement.tolerations)
    ]


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if (toleration.get("effect") or taint.effect) != taint.effect:
        return False
    key = toleration.get("key") or ""
    if toleration.get("operator") == "Exists":
        return key in ("", taint.key)  # without a key it tolerates everything
    return key == taint.key and (toleration.get("value") or "") == taint.value


def _meets(node: Node, term: Mapping[str, Any]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # as the scheduler has it: an empty term selects nothing
    named = {"metadata.name": node.name}
    return all(_holds(node.labels, one) for one in expressions) and all(_holds(named, one) for one in fields)


def _holds(labels: Mapping[str, str], requirement: Mapping[str, Any]) -> bool:
    has = labels.get(requirement["key"])
    values: Sequence[str] = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return has in values
        case "NotIn":
            return has not in values  # also true without the label
        case "Exists":
            return has is not None
        case "DoesNotExist":
            return has is None
        case "Gt" | "Lt" as operator:
            label, bound = _integer(has), _integer(values[0] if values else None)
            if label is None or bound is None:
                return False
            return label > bound if operator == "Gt" else label < bound
    return False  # the API server lets no other operator through


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[+-]?\d+", text, re.ASCII) else None


def _term_text(term: Mapping[str, Any]) -> str:
    requirements = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return " and ".join(_requirement_text(one) for one in requirements) or "an empty term, which no node meets"


def _requirement_text(requirement: Mapping[str, Any]) -> str:
    values = ", ".join(requirement.get("values") or ())
    return f"{requirement['key']} {requirement['operator']}{f' ({values})' if values else ''}"
