"""What there is to compute on, for a task that asks for `auto` or for something by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from yolo_airflow_provider.errors import BadInput, Unschedulable
from yolo_airflow_provider.gpus import local
from yolo_airflow_provider.gpus.accelerator import Accelerator, canonical_product, parse_accelerator, parse_memory
from yolo_airflow_provider.gpus.cluster import ClusterOffer, Offer, smallest_first
from yolo_airflow_provider.gpus.matching import matching, same_profile

CONNECTION_EXTRA = "yolo_accelerators"
"""Key in the Kubernetes connection's extra: a list of `{"resource": ..., "memory": ..., "product": ...}`."""


@dataclass(frozen=True)
class Candidate:
    """Something that a task may run on.

    Attributes:
        accelerator: with its memory, or the budget that was given.
        node_selector: labels of the nodes that offer it; empty where any will do.
        offer: as it was discovered, None on `cpu` and where nothing was.
    """

    accelerator: Accelerator
    node_selector: Mapping[str, str] = field(default_factory=dict)
    offer: Offer | None = None


def on_this_machine(asked: str, budget_bytes: int | None) -> Accelerator:
    """The accelerator of a local run.

    Raises:
        BadInput: not a known name, or this machine has no such thing.
    """
    wanted = None if asked == "auto" else _parsed(asked)
    if wanted is not None and wanted.kind == "cpu":
        found = local.cpu()
    else:
        found = local.discover()
        if wanted is not None and (found.kind, found.mig_profile) != (wanted.kind, wanted.mig_profile):
            raise BadInput(f"accelerator={asked!r}: this machine offers {found.label}; use 'auto' or 'cpu'")
    return replace(found, memory_bytes=budget_bytes or found.memory_bytes)


def in_cluster(
    asked: str,
    budget_bytes: int | None,
    listed: Sequence[Accelerator],
    cluster: ClusterOffer | None,
) -> list[Candidate]:
    """What a pod may run on, best first: what is free before what is in use, then the smallest.

    Args:
        asked: `auto`, or a name.
        budget_bytes: stands for the accelerator's memory where given.
        listed: in the connection's extra; used where the cluster is not known, or does not tell a slice's memory.
        cluster: what the nodes offer, None where they may not be listed.

    Returns:
        At least one. A name that nobody offers is returned as it is, for the refusal to name it.

    Raises:
        BadInput: not a known name; or `auto` where the cluster is not known and the extra lists none.
        Unschedulable: `auto`, and the cluster offers no GPU that can be measured.
    """
    wanted = None if asked == "auto" else _parsed(asked)
    if wanted is not None and wanted.kind == "cpu":
        return [Candidate(replace(wanted, memory_bytes=budget_bytes))]
    if cluster is None:
        return [Candidate(_with_memory(one, budget_bytes, listed)) for one in _from_list(wanted, listed)]
    # A resource's name means the resource, whatever it is there: with the strategy single `nvidia.com/gpu` is a slice.
    named = [offer for offer in cluster.offers if offer.accelerator.resource == asked.strip()]
    found = named or (matching(cluster, wanted) if wanted is not None else sorted(cluster.offers, key=smallest_first))
    if not found:
        if wanted is None:
            raise Unschedulable(f"accelerator='auto': the cluster offers no GPU\n{cluster.table()}")
        return [Candidate(_with_memory(wanted, budget_bytes, listed))]
    return [
        Candidate(_with_memory(offer.accelerator, budget_bytes, listed), offer.node_selector, offer)
        for offer in sorted(found, key=lambda offer: not (offer.free or offer.free is None))
    ]


def from_extra(extra: Mapping[str, Any]) -> list[Accelerator]:
    """The accelerators that a connection's extra lists.

    Raises:
        BadInput: an entry is not understood.
    """
    entries = extra.get(CONNECTION_EXTRA) or []
    try:
        return [
            replace(
                parse_accelerator(entry["resource"]),
                product=canonical_product(str(entry.get("product", ""))),
                memory_bytes=parse_memory(entry["memory"]) if entry.get("memory") else None,
            )
            for entry in entries
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"the Kubernetes connection's extra {CONNECTION_EXTRA!r} is wrong ({error}): expected a list such as"
            ' [{"resource": "nvidia.com/mig-1g.5gb", "memory": "4864Mi", "product": "NVIDIA-A100-SXM4-40GB"}]'
        ) from None


def _parsed(asked: str) -> Accelerator:
    try:
        return parse_accelerator(asked)
    except ValueError as error:
        raise BadInput(str(error)) from None


def _from_list(wanted: Accelerator | None, listed: Sequence[Accelerator]) -> list[Accelerator]:
    if wanted is None:
        if not listed:
            raise BadInput(
                f"accelerator='auto' where nodes may not be listed, and the connection's extra {CONNECTION_EXTRA!r}"
                " lists nothing; list what there is, or name it: accelerator='1g.10gb' or 'cpu'"
            )
        return sorted(listed, key=lambda one: (one.memory_bytes is None, one.memory_bytes or 0))
    exact = [one for one in listed if one.resource == wanted.resource]
    near = [one for one in listed if one.kind == wanted.kind and same_profile(one.mig_profile, wanted.mig_profile)]
    return (exact or near)[:1] or [wanted]


def _with_memory(found: Accelerator, budget_bytes: int | None, listed: Sequence[Accelerator]) -> Accelerator:
    known = budget_bytes or found.memory_bytes
    if known is None:
        known = next((offer.memory_bytes for offer in listed if offer.resource == found.resource), None)
    return replace(found, memory_bytes=known)
