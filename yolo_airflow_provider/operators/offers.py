"""What there is to compute on, for a task that asks for `auto` or for something by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from yolo_airflow_provider.errors import BadInput
from yolo_airflow_provider.gpus import local
from yolo_airflow_provider.gpus.accelerator import Accelerator, parse_accelerator, parse_memory

CONNECTION_EXTRA = "yolo_accelerators"
"""Key in the Kubernetes connection's extra: a list of `{"resource": ..., "memory": ..., "product": ...}`."""


def on_this_machine(asked: str, budget_bytes: int | None) -> Accelerator:
    """The accelerator of a local run.

    Raises:
        BadInput: not a known name, or this machine has no such thing.
    """
    try:
        wanted = None if asked == "auto" else parse_accelerator(asked)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if wanted is not None and wanted.kind == "cpu":
        found = local.cpu()
    else:
        found = local.discover()
        if wanted is not None and (found.kind, found.mig_profile) != (wanted.kind, wanted.mig_profile):
            raise BadInput(f"accelerator={asked!r}: this machine offers {found.label}; use 'auto' or 'cpu'")
    return replace(found, memory_bytes=budget_bytes or found.memory_bytes)


def in_cluster(asked: str, budget_bytes: int | None, offered: Sequence[Accelerator]) -> Accelerator:
    """The accelerator of a pod, by name or the one that is offered.

    Raises:
        BadInput: not a known name, nothing of the kind is offered, or several are and none was named.
    """
    if asked == "auto":
        if len(offered) != 1:
            listed = ", ".join(offer.resource for offer in offered) or "nothing"
            raise BadInput(
                f"accelerator='auto' in Kubernetes: the connection's extra {CONNECTION_EXTRA!r} lists {listed};"
                " list one accelerator there, or name it: accelerator='1g.10gb' or 'cpu'"
            )
        return replace(offered[0], memory_bytes=budget_bytes or offered[0].memory_bytes)
    try:
        wanted = parse_accelerator(asked)
    except ValueError as error:
        raise BadInput(str(error)) from None
    known = next((offer for offer in offered if offer.resource == wanted.resource and wanted.resource), wanted)
    return replace(known, memory_bytes=budget_bytes or known.memory_bytes)


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
                product=str(entry.get("product", "")),
                memory_bytes=parse_memory(entry["memory"]) if entry.get("memory") else None,
            )
            for entry in entries
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"the Kubernetes connection's extra {CONNECTION_EXTRA!r} is wrong ({error}): expected a list such as"
            ' [{"resource": "nvidia.com/mig-1g.5gb", "memory": "4864Mi", "product": "NVIDIA A100-SXM4-40GB"}]'
        ) from None
