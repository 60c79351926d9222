"""Which GPUs and MIG slices one node offers, by its allocatable resources and NVIDIA's labels.

Read in NVIDIA/k8s-device-plugin (internal/rm, internal/lm: resource names and labels of the strategies none, single and
mixed) and NVIDIA/mig-parted (pkg/mig/reconfigure: the states of a layout change).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from yolo_airflow_provider.gpus.accelerator import (
    Accelerator,
    canonical_product,
    profile_of_name,
    profile_parts,
    resource_of_profile,
)
from yolo_airflow_provider.gpus.nodes import Node

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
_MIG = "nvidia.com/mig-"
_STRATEGY = "nvidia.com/mig.strategy"
_CONFIG = "nvidia.com/mig.config"
_STATE = "nvidia.com/mig.config.state"
_CHANGING = ("pending", "rebooting")
_MIB = 2**20
# Node feature discovery's label for a PCI device of NVIDIA, with or without the device's class.
_PCI_CARD = re.compile(r"^feature\.node\.kubernetes\.io/pci-(?:[0-9a-f]+_)?10de\.present$")


@dataclass(frozen=True)
class Devices:
    """Devices of one kind on one node.

    Attributes:
        accelerator: what one of them is; its memory is None where no label says it.
        multiprocessors: of one of them, None where no label says it; no label does for a whole card.
        count: how many the kubelet may give to pods, all together.
        product_labels: labels of the node that name the product, that of the whole node before that of the resource.
    """

    accelerator: Accelerator
    multiprocessors: int | None
    count: int
    product_labels: Mapping[str, str]


@dataclass(frozen=True)
class NodeGpus:
    """What a node has to do with GPUs.

    Attributes:
        devices: what it offers, or offered and will offer again where `not_now` is set.
        not_now: the state that has to pass before it can be used, empty where it can be now.
        left_out: why it, or a resource of it, is of no use at all.
    """

    devices: tuple[Devices, ...] = ()
    not_now: str = ""
    left_out: tuple[str, ...] = ()


def has_gpus(node: Node) -> bool:
    """Whether a reader who looks for GPUs would ask about this node."""
    labels = node.labels
    return (
        any(name in (PRODUCT, _CONFIG, _STATE) or _PCI_CARD.match(name) for name in labels)
        or labels.get("nvidia.com/gpu.present") == "true"
        or any(_is_device(name) for name in node.extended)
    )


def read_gpus(node: Node) -> NodeGpus:
    """What the node offers, from allocatable and not from the labels' counts.

    `nvidia.com/gpu.count` counts cards under the strategy mixed, slices under single (k8s-device-plugin#1501), and
    keeps its value when the device plugin does not see the devices (gpu-operator#603, k8s-device-plugin#992).
    """
    state = node.labels.get(_STATE, "success")
    if state in _CHANGING:
        devices, _ = _read(node, _during_change(node))
        return NodeGpus(devices=devices, not_now=f"being reconfigured by MIG Manager ({_mig_state(node)})")
    if state != "success":
        return NodeGpus(left_out=(f"the last change of its MIG layout did not succeed ({_mig_state(node)})",))
    if node.labels.get(PRODUCT, "").endswith("-MIG-INVALID"):
        return NodeGpus(
            left_out=("its cards are not divided alike, which the MIG strategy 'single' needs (MIG-INVALID)",)
        )
    devices, reasons = _read(node, node.extended)
    if not devices and not reasons:
        reasons = (_nothing(node),)
    return NodeGpus(devices=devices, left_out=reasons)


def _read(node: Node, counts: Mapping[str, int]) -> tuple[tuple[Devices, ...], tuple[str, ...]]:
    devices: list[Devices] = []
    reasons: list[str] = []
    # Above zero only: the names of an earlier layout stay (k8s-device-plugin#214, #240).
    for resource, count in sorted(counts.items()):
        if count <= 0 or not _is_device(resource):
            continue
        why = _unmeasurable(node, resource)
        accelerator = None if why else _accelerator(node, resource)
        if accelerator is None:
            reasons.append(why or f"{resource} is no MIG profile that this version knows")
            continue
        devices.append(
            Devices(
                accelerator=accelerator,
                multiprocessors=_number(node, f"{resource}.multiprocessors"),
                count=count,
                product_labels={
                    name: node.labels[name] for name in (PRODUCT, f"{resource}.product") if node.labels.get(name)
                },
            )
        )
    return tuple(devices), tuple(reasons)


def _is_device(resource: str) -> bool:
    return resource.removesuffix(".shared") == GPU or resource.startswith(_MIG)


def _unmeasurable(node: Node, resource: str) -> str:
    """Why nothing that is measured on the resource holds for the next run; empty where it does."""
    labelled = resource.removesuffix(".shared")
    replicas = _number(node, f"{labelled}.replicas") or 1
    strategy = node.labels.get(f"{labelled}.sharing-strategy", "none")
    product = node.labels.get(f"{labelled}.product", "")
    if resource.endswith(".shared") or product.endswith("-SHARED") or replicas > 1 or strategy != "none":
        how = f" by {replicas} ({strategy})" if replicas > 1 else ""
        return f"{resource} is shared{how}: its memory is not isolated, so nothing measured on it holds"
    return ""


def _accelerator(node: Node, resource: str) -> Accelerator | None:
    """One device of the resource, None where its name is not understood.

    The memory label is of the slice for a slice, also under the strategy single, and of the card for a card; MiB.
    """
    label = node.labels.get(f"{resource}.product") or node.labels.get(PRODUCT, "")
    memory = _number(node, f"{resource}.memory")
    memory_bytes = memory * _MIB if memory else None
    if resource == GPU:
        _, single, spelled = label.partition("-MIG-")
    else:
        single, spelled = "mixed", resource
    if not single:
        return Accelerator("gpu", canonical_product(label), "", resource, memory_bytes)
    profile = profile_of_name(spelled)
    if profile_parts(profile) is None:
        return None
    return Accelerator("mig", canonical_product(label), profile, resource, memory_bytes)


def _during_change(node: Node) -> Mapping[str, int]:
    """What to expect after a layout change, by resource.

    MIG Manager stops the device plugin and feature discovery meanwhile: allocatable falls to zero, and the labels keep
    the layout of before. The layout of after is only known where its name says it, as `all-1g.10gb` and `all-disabled`
    do; the count of slices is then at least one a card.
    """
    wanted = node.labels.get(_CONFIG, "").removeprefix("all-")
    mixed = node.labels.get(_STRATEGY) == "mixed"
    cards = _number(node, f"{GPU}.count") or 1
    if wanted == "disabled":
        return {GPU: cards} if mixed else {}
    profile = profile_of_name(wanted)
    if profile_parts(profile) is not None:
        if mixed:
            resource = resource_of_profile(profile)
            return {resource: node.extended.get(resource) or _number(node, f"{resource}.count") or cards}
        if profile_of_name(node.labels.get(PRODUCT, "").partition("-MIG-")[2]) != profile:
            return {}  # `nvidia.com/gpu` will be something else than the labels say
    if any(count > 0 and _is_device(name) for name, count in node.extended.items()):
        return node.extended
    return dict(_labelled_counts(node))


def _labelled_counts(node: Node) -> Iterator[tuple[str, int]]:
    mixed = node.labels.get(_STRATEGY) == "mixed"
    for name in node.labels:
        resource = name.removesuffix(".count")
        # Under mixed the count of `nvidia.com/gpu` includes the cards that are divided.
        if name.endswith(".count") and (resource.startswith(_MIG) if mixed else resource == GPU):
            yield resource, _number(node, name) or 0


def _nothing(node: Node) -> str:
    if _STATE in node.labels:
        return f"no device is allocatable though MIG is set up ({_mig_state(node)}): restart its device plugin"
    return "no GPU is allocatable: does the device plugin run there, and does it see the driver?"


def _mig_state(node: Node) -> str:
    return f"{_CONFIG}={node.labels.get(_CONFIG, '?')}, state {node.labels[_STATE]}"


def _number(node: Node, label: str) -> int | None:
    text = node.labels.get(label, "")
    return int(text) if text.isascii() and text.isdigit() else None
