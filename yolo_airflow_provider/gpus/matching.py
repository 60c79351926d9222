"""Whether a cluster has what was asked for: the offers that match, why none does, and what a pod waits for."""

from __future__ import annotations

from collections.abc import Sequence

from yolo_airflow_provider.gpus.accelerator import Accelerator, canonical_product, profile_parts
from yolo_airflow_provider.gpus.cluster import ClusterOffer, LeftOut, Offer, Place, by_reason, named, smallest_first

_MIB = 2**20


def matching(cluster: ClusterOffer, asked: Accelerator) -> tuple[Offer, ...]:
    """The offers that are what was asked for, smallest memory first, then fewer multiprocessors.

    Drivers round the memory in a profile's name differently: `3g.39gb` for `3g.40gb` (mig-parted#31), `1g.24gb` for
    `1g.23gb` (gpu-operator#1303). So where nobody offers the very name, as many compute slices with the same attributes
    will do if that number is within 1 or 5 %. A product that was named must be the offer's.
    """
    product = canonical_product(asked.product)
    of_kind = [
        offer
        for offer in cluster.offers
        if offer.accelerator.kind == asked.kind and product in ("", offer.accelerator.product)
    ]
    exact = [offer for offer in of_kind if offer.accelerator.mig_profile == asked.mig_profile]
    near = [offer for offer in of_kind if same_profile(offer.accelerator.mig_profile, asked.mig_profile)]
    return tuple(sorted(exact or near, key=smallest_first))


def refusal(
    cluster: ClusterOffer,
    accelerator: Accelerator | None,
    *,
    cpu_millicores: int,
    memory_bytes: int,
    count: int = 1,
) -> str | None:
    """Why no node can ever run the pod, with the table of what there is; None where one can, now or later.

    Args:
        cluster: what the nodes offer.
        accelerator: what the pod asks for; None, or `cpu`, for a pod without a GPU.
        cpu_millicores: the pod's request, 0 for none.
        memory_bytes: the pod's request, 0 for none.
        count: devices of the kind that the pod asks for.
    """
    if accelerator is None or accelerator.kind == "cpu":
        if not cluster.places:
            return f"no node may take the pod\n{cluster.cpu_table()}"
        missing = _missing([(place, 0) for place in cluster.places], cpu_millicores, memory_bytes, 0)
        return f"no node is large enough for the pod: {missing}\n{cluster.cpu_table()}" if missing else None
    offers = matching(cluster, accelerator)
    name = _name(accelerator)
    if not offers:
        return f"no node that may take the pod offers {name}\n{cluster.table()}"
    places = {place.node: place for place in cluster.places}
    having = [
        (places[node], devices)
        for offer in offers
        for node, devices in [*offer.nodes.items(), *offer.later_nodes.items()]
    ]
    missing = _missing(having, cpu_millicores, memory_bytes, count)
    return f"no node with {name} is large enough for the pod: {missing}\n{cluster.table()}" if missing else None


def waiting_reason(cluster: ClusterOffer, offer: Offer) -> str:
    """One line on why nothing of the offer can be had at the moment; empty where something is free."""
    later = [one for one in cluster.left_out if one.later and one.node in offer.later_nodes]
    if not offer.total:
        return _where(later)
    if offer.free is None:
        text = f"how many of the {offer.total} are in use is not known: the pods may not be listed"
    elif offer.free == 0:
        text = f"all {offer.total} are in use" if offer.total > 1 else "the only one is in use"
    else:
        return ""
    return f"{text}; {offer.later} more: {_where(later)}" if later else text


def same_profile(offered: str, asked: str) -> bool:
    """The same slice, but for how a driver rounds the memory in its name."""
    one, other = profile_parts(offered), profile_parts(asked)
    if one is None or other is None:
        return False
    apart = abs(one[1] - other[1])
    return (one[0], one[2]) == (other[0], other[2]) and apart <= max(1, 0.05 * max(one[1], other[1]))


def _missing(nodes: Sequence[tuple[Place, int]], cpu_millicores: int, memory_bytes: int, count: int) -> str:
    """Which request is larger than what any of the nodes (with their devices) has; empty where one has it all."""
    if any(
        place.cpu_millicores >= cpu_millicores and place.memory_bytes >= memory_bytes and devices >= count
        for place, devices in nodes
    ):
        return ""
    cpu = max(place.cpu_millicores for place, _ in nodes)
    memory = max(place.memory_bytes for place, _ in nodes)
    devices = max(devices for _, devices in nodes)
    parts = []
    if devices < count:
        parts.append(f"{count} of it asked, the most on one node is {devices}")
    if cpu < cpu_millicores:
        parts.append(f"{cpu_millicores / 1000:g} CPUs asked, the most on one node is {cpu / 1000:g}")
    if memory < memory_bytes:
        # Asked rounded up, what there is rounded down: the two never look alike.
        parts.append(f"{-(-memory_bytes // _MIB)}Mi of memory asked, the most on one node is {memory // _MIB}Mi")
    together = [f"{count} of it"] if count else []
    together += [f"{cpu_millicores / 1000:g} CPUs", f"{-(-memory_bytes // _MIB)}Mi of memory"]
    return "; ".join(parts) or f"none has {', '.join(together)} together"


def _where(later: Sequence[LeftOut]) -> str:
    reasons = [
        f"the node that offers it is {reason}: {nodes[0]}"
        if len(nodes) == 1
        else f"the nodes that offer it are {reason}: {named(nodes)}"
        for reason, nodes in by_reason(later).items()
    ]
    return "; ".join(reasons)


def _name(asked: Accelerator) -> str:
    what = asked.mig_profile or "a whole GPU"
    of = f" of {canonical_product(asked.product)}" if asked.product else ""
    resource = f" ({asked.resource})" if asked.resource else ""
    return f"{what}{of}{resource}"
