"""What a cluster offers to a pod: kinds of GPUs and MIG slices, how many are free, and which nodes are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.devices import Devices, has_gpus, read_gpus
from yolo_airflow_provider.gpus.nodes import Node, Placement, why_not, why_not_now

ANYWHERE = Placement()
_GIB, _MIB = 2**30, 2**20
_NAMED = 6
"""Nodes that a line of the table names; of the rest it says how many they are."""


@dataclass(frozen=True)
class Offer:
    """Devices of one kind, over all nodes that the pod may be put on.

    Attributes:
        accelerator: one of them, with the resource as the nodes spell it.
        multiprocessors: of one of them, None where no label says it.
        free: not held by a pod, on nodes that can be used now; None where the pods are not known.
        nodes: devices by the name of the node, on nodes that can be used now.
        later_nodes: the same on nodes that cannot be used at the moment.
        node_selector: labels that lead a pod that asks for the resource to such devices and no others; empty where
            the nodes have no such label.
    """

    accelerator: Accelerator
    multiprocessors: int | None
    free: int | None
    nodes: Mapping[str, int]
    later_nodes: Mapping[str, int]
    node_selector: Mapping[str, str]

    @property
    def total(self) -> int:
        """Devices on nodes that can be used now, in use or not."""
        return sum(self.nodes.values())

    @property
    def later(self) -> int:
        """Devices on nodes that are cordoned, not ready or being reconfigured."""
        return sum(self.later_nodes.values())

    @property
    def largest_node(self) -> int:
        """The most that one node has, now or later, in use or not."""
        return max([*self.nodes.values(), *self.later_nodes.values()])


@dataclass(frozen=True)
class Place:
    """A node that may take the pod, now or later, with what is allocatable on it to all pods together."""

    node: str
    cpu_millicores: int
    memory_bytes: int
    not_now: str = ""


@dataclass(frozen=True)
class LeftOut:
    """A node, or a resource of it, that was left out.

    Attributes:
        node: its name.
        reason: a part of a sentence.
        later: the reason is a state that passes.
    """

    node: str
    reason: str
    later: bool = False


@dataclass(frozen=True)
class ClusterOffer:
    """What a pod with one placement finds in a cluster at one moment. Read it anew for every try: layouts change.

    Attributes:
        offers: smallest memory first, then fewer multiprocessors.
        places: nodes that may take the pod, with or without a GPU, by name.
        left_out: nodes with GPUs that the offers do not count, or count as later, and why.
        unusable: nodes, with or without a GPU, that cannot take the pod, or not now, and why.
    """

    offers: tuple[Offer, ...] = ()
    places: tuple[Place, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    unusable: tuple[LeftOut, ...] = ()

    def table(self) -> str:
        """What there is to compute on and what is left out, as plain text of several lines."""
        if not self.offers:
            return "\n".join(["no node offers a GPU", *_left_out_lines(self.left_out)])
        head = ["accelerator", "resource", "memory", "SM", "free/total", "later", "nodes"]
        rows = [head, *(_row(offer) for offer in self.offers)]
        return "\n".join([*_aligned(rows), *_left_out_lines(self.left_out)])

    def cpu_table(self) -> str:
        """The nodes for a pod without a GPU, in the same way; the largest first."""
        if not self.places:
            return "\n".join(_left_out_lines(self.unusable) or ["the cluster has no node"])
        largest_first = sorted(self.places, key=lambda place: (-place.cpu_millicores, -place.memory_bytes))
        rows = [["node", "CPUs", "memory"]]
        rows += [[one.node, f"{one.cpu_millicores / 1000:g}", _gib(one.memory_bytes)] for one in largest_first[:20]]
        more = [f"and {len(largest_first) - 20} smaller ones"] if len(largest_first) > 20 else []
        return "\n".join([*_aligned(rows), *more, *_left_out_lines(self.unusable)])


def discover(
    nodes: Iterable[Node], requests: Mapping[str, Mapping[str, int]] | None, placement: Placement = ANYWHERE
) -> ClusterOffer:
    """What the nodes offer to a pod of this placement.

    Args:
        nodes: all nodes of the cluster.
        requests: `nodes.requests_by_node` of all pods; None where they may not be listed, and free is not known then.
        placement: where the pod lets itself be put.
    """
    now: dict[Accelerator, dict[str, Devices]] = defaultdict(dict)
    later: dict[Accelerator, dict[str, Devices]] = defaultdict(dict)
    places: list[Place] = []
    left_out: list[LeftOut] = []
    unusable: list[LeftOut] = []
    for node in sorted(nodes, key=lambda node: node.name):
        never = why_not(node, placement)
        not_now = "" if never else why_not_now(node, placement)
        if never or not_now:
            unusable.append(LeftOut(node.name, never or not_now, later=not never))
        if not never:
            places.append(Place(node.name, node.cpu_millicores, node.memory_bytes, not_now))
        if not has_gpus(node):
            continue
        if never:
            left_out.append(LeftOut(node.name, never))
            continue
        gpus = read_gpus(node)
        waits = " and ".join(filter(None, (not_now, gpus.not_now)))
        left_out += [LeftOut(node.name, waits, later=True)] if waits else []
        left_out += [LeftOut(node.name, reason) for reason in gpus.left_out]
        for devices in gpus.devices:
            (later if waits else now)[devices.accelerator][node.name] = devices
    offers = [_offer(kind, now.get(kind, {}), later.get(kind, {}), requests) for kind in {**now, **later}]
    return ClusterOffer(
        offers=tuple(sorted(_told_apart(offers), key=smallest_first)),
        places=tuple(places),
        left_out=tuple(left_out),
        unusable=tuple(unusable),
    )


def smallest_first(offer: Offer) -> tuple[float, float, str, str]:
    """Key to sort offers by: memory, then multiprocessors, what is not known last; names make it a total order."""
    accelerator = offer.accelerator
    memory = float("inf") if accelerator.memory_bytes is None else accelerator.memory_bytes
    multiprocessors = float("inf") if offer.multiprocessors is None else offer.multiprocessors
    return memory, multiprocessors, accelerator.label, accelerator.resource


def named(nodes: Sequence[str]) -> str:
    """The names of a few nodes, the number of those beyond."""
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more


def by_reason(left_out: Iterable[LeftOut]) -> dict[str, list[str]]:
    """The names of the nodes by the reason that they share."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for one in left_out:
        nodes[one.reason].append(one.node)
    return nodes


def _offer(
    accelerator: Accelerator,
    now: Mapping[str, Devices],
    later: Mapping[str, Devices],
    requests: Mapping[str, Mapping[str, int]] | None,
) -> Offer:
    everywhere = [*now.values(), *later.values()]
    known = [devices.multiprocessors for devices in everywhere if devices.multiprocessors is not None]
    labels = everywhere[0].product_labels
    # A label on which the nodes differ would shut some of them out.
    agreed = [key for key in labels if all(one.product_labels.get(key) == labels[key] for one in everywhere)]
    free = None
    if requests is not None:
        held = {name: requests.get(name, {}).get(accelerator.resource, 0) for name in now}
        # A device that broke leaves allocatable while its pod still holds it: then less than nothing is free there.
        free = sum(max(0, devices.count - held[name]) for name, devices in now.items())
    return Offer(
        accelerator=accelerator,
        multiprocessors=min(known, default=None),
        free=free,
        nodes={name: devices.count for name, devices in now.items()},
        later_nodes={name: devices.count for name, devices in later.items()},
        node_selector={key: labels[key] for key in agreed[:1]},
    )


def _told_apart(offers: Sequence[Offer]) -> list[Offer]:
    """The offers with the memory's label added to selectors that several share.

    The usable memory of one profile of one product differs by driver (`1g.23gb` of a B200: 20.5 or 22 GiB), and a plan
    for the larger must not land on the smaller.
    """
    keys = [(offer.accelerator.resource, *offer.node_selector.items()) for offer in offers]
    return [
        replace(offer, node_selector={**offer.node_selector, **_memory_label(offer)})
        if offer.node_selector and keys.count(key) > 1
        else offer
        for offer, key in zip(offers, keys, strict=True)
    ]


def _memory_label(offer: Offer) -> dict[str, str]:
    memory = offer.accelerator.memory_bytes
    return {} if memory is None else {f"{offer.accelerator.resource}.memory": str(memory // _MIB)}


def _row(offer: Offer) -> list[str]:
    accelerator = offer.accelerator
    free = "?" if offer.free is None else str(offer.free)
    return [
        accelerator.label,
        accelerator.resource,
        "?" if accelerator.memory_bytes is None else _gib(accelerator.memory_bytes),
        "?" if offer.multiprocessors is None else str(offer.multiprocessors),
        f"{free}/{offer.total}",
        str(offer.later),
        named(sorted(offer.nodes)) or "none at the moment",
    ]


def _left_out_lines(left_out: Sequence[LeftOut]) -> list[str]:
    lines = [f"  {named(nodes)}: {reason}" for reason, nodes in by_reason(left_out).items()]
    return ["left out:", *lines] if lines else []


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _gib(memory_bytes: int) -> str:
    return f"{memory_bytes / _GIB:.2f} GiB"
