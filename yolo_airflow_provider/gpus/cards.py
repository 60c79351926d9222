"""What NVIDIA's cards and their MIG slices are: memory, multiprocessors, bandwidth and arithmetic.

`cards.csv` is from NVIDIA's data sheets; its memory is what torch reported on that card where anybody reported it
(`torch`), else three percent less than the data sheet's (`nominal`). `mig_profiles.csv` is what `nvidia-smi mig -lgip`
prints. Sums without sparsity; where a consumer card halves its tensor cores' rate for sums in 32 bit, the half.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from yolo_airflow_provider.gpus.accelerator import (
    Accelerator,
    canonical_product,
    parse_memory,
    profile_of_name,
    profile_parts,
    resource_of_profile,
)

_MIB = 2**20
_WHOLE_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True)
class Device:
    """What a training gets to compute on: a card, or a slice of one.

    Attributes:
        product: the card in its canonical spelling.
        profile: of the slice, empty for the whole card.
        memory_bytes: that can be used.
        multiprocessors: streaming multiprocessors.
        bandwidth_bytes_per_second: of its memory.
        fp16_flops: a second, of the tensor cores.
        fp32_flops: a second.
        share: of the card, by memory or by compute, the larger: what others cannot have meanwhile.
    """

    product: str
    profile: str
    memory_bytes: int
    multiprocessors: int
    bandwidth_bytes_per_second: float
    fp16_flops: float
    fp32_flops: float
    share: float = 1.0


@dataclass(frozen=True)
class Slice:
    """A MIG profile of a card. Memory and multiprocessors are of the profile, not what its name says.

    Attributes:
        profile: e.g. `1g.5gb`.
        memory_bytes: that can be used.
        multiprocessors: of the GPU instance.
        compute_slices: of `compute_slices_total`.
        compute_slices_total: of the card: seven, four of an A30 and an RTX PRO 6000. Not what its largest listed
            profile has: the figures of some are not published.
        memory_slices: of `memory_slices_total`.
        memory_slices_total: of the card.
        max_instances: that one card holds.
    """

    profile: str
    memory_bytes: int
    multiprocessors: int
    compute_slices: int
    compute_slices_total: int
    memory_slices: int
    memory_slices_total: int
    max_instances: int


@dataclass(frozen=True)
class Card:
    """A card: the whole of it, the short names that people give it, and its slices, smallest first."""

    whole: Device
    aliases: tuple[str, ...]
    slices: tuple[Slice, ...]


@cache
def cards() -> Mapping[str, Card]:
    """All cards by their canonical product name."""
    return {card.whole.product: card for card in _read()}


def card(name: str) -> Card | None:
    """The card that somebody means: `a100-40gb`, `NVIDIA A100-SXM4-40GB`, `Tesla T4`, `rtx4090`; None for no such.

    Raises:
        ValueError: the name fits several cards with different memory, such as `a100`.
    """
    exact = cards().get(canonical_product(name))
    if exact is not None:
        return exact
    asked = _squeezed(name)
    if not asked:
        return None
    named = [one for one in cards().values() if asked in map(_squeezed, (*one.aliases, one.whole.product))]
    if named:
        return named[0]
    near = [one for one in cards().values() if any(_squeezed(alias).startswith(asked) for alias in one.aliases)]
    if len({one.whole.memory_bytes for one in near}) > 1:
        raise ValueError(f"{name!r} may be any of {', '.join(one.aliases[0] for one in near)}: name one")
    return near[0] if near else None


def device(accelerator: Accelerator) -> Device | None:
    """The card or slice that an accelerator is; None on `cpu` and where the card or the profile is not known.

    Its memory is the accelerator's own where that is known.
    """
    found = cards().get(accelerator.product)
    if accelerator.kind == "cpu" or found is None:
        return None
    known = found.whole if accelerator.kind == "gpu" else _sliced(found, accelerator.mig_profile)
    if known is None or accelerator.memory_bytes is None:
        return known
    return Device(**{**vars(known), "memory_bytes": accelerator.memory_bytes})


def offered(text: str) -> list[Accelerator]:
    """What somebody says a cluster offers, comma separated.

    `a100-40gb` is the whole card and all its slices, `1g.10gb@a100-80gb` one slice, `gpu@l4` the whole card alone,
    `cpu:8Gi` a CPU with so much memory.

    Raises:
        ValueError: a name is not known.
    """
    found: list[Accelerator] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        found += _offer(name)
    if not found:
        raise ValueError("nothing is offered: name cards or slices, such as 'a100-40gb' or '1g.10gb@a100-80gb'")
    return found


def _offer(name: str) -> list[Accelerator]:
    if name == "cpu" or name.startswith("cpu:"):
        return [Accelerator("cpu", memory_bytes=parse_memory(name[4:]) if name != "cpu" else None)]
    what, at, of = name.rpartition("@")
    found = card(of)
    if found is None:
        raise ValueError(f"no card is known as {of!r}: known are {', '.join(sorted(_short_names()))}")
    whole = Accelerator("gpu", found.whole.product, "", _WHOLE_RESOURCE, found.whole.memory_bytes)
    if not at:
        return [*(_slice_of(found, one) for one in found.slices), whole]
    if what == "gpu":
        return [whole]
    named = [one for one in found.slices if one.profile == profile_of_name(what)]
    if not named:
        profiles = ", ".join(one.profile for one in found.slices) or "none, it cannot be divided"
        raise ValueError(f"{what!r} is no slice of {found.whole.product}: it has {profiles}")
    return [_slice_of(found, named[0])]


def _slice_of(found: Card, one: Slice) -> Accelerator:
    return Accelerator("mig", found.whole.product, one.profile, resource_of_profile(one.profile), one.memory_bytes)


def _short_names() -> list[str]:
    return [alias for one in cards().values() for alias in one.aliases]


def _sliced(found: Card, profile: str) -> Device | None:
    # Attributes such as +me change what else the slice has, not its size.
    parts = profile_parts(profile)
    plain = f"{parts[0]}g.{parts[1]}gb" if parts else ""
    one = next((one for one in found.slices if one.profile == plain), None)
    if one is None:
        return None
    whole = found.whole
    compute = one.multiprocessors / whole.multiprocessors
    memory = one.memory_slices / one.memory_slices_total
    return Device(
        product=whole.product,
        profile=profile,
        memory_bytes=one.memory_bytes,
        multiprocessors=one.multiprocessors,
        bandwidth_bytes_per_second=whole.bandwidth_bytes_per_second * memory,
        fp16_flops=whole.fp16_flops * compute,
        fp32_flops=whole.fp32_flops * compute,
        share=max(memory, one.compute_slices / one.compute_slices_total),
    )


def _read() -> Iterator[Card]:
    slices: dict[str, list[Slice]] = {}
    for row in _rows("mig_profiles.csv"):
        one = Slice(
            profile=row["profile"],
            memory_bytes=int(row["memory_mib"]) * _MIB,
            multiprocessors=int(row["multiprocessors"]),
            compute_slices=int(row["compute_slices"]),
            compute_slices_total=int(row["compute_slices_total"]),
            memory_slices=int(row["memory_slices"]),
            memory_slices_total=int(row["memory_slices_total"]),
            max_instances=int(row["max_instances"]),
        )
        slices.setdefault(row["card"], []).append(one)
    for row in _rows("cards.csv"):
        whole = Device(
            product=row["product"],
            profile="",
            memory_bytes=int(row["memory_bytes"]),
            multiprocessors=int(row["multiprocessors"]),
            bandwidth_bytes_per_second=float(row["bandwidth_gb_per_second"]) * 1e9,
            fp16_flops=float(row["fp16_teraflops"]) * 1e12,
            fp32_flops=float(row["fp32_teraflops"]) * 1e12,
        )
        known = sorted(slices.get(row["mig"], []), key=lambda one: (one.memory_bytes, one.multiprocessors))
        yield Card(whole, tuple(row["aliases"].split()), tuple(known))


def _rows(name: str) -> Iterator[dict[str, str]]:
    with files(__package__).joinpath(name).open(encoding="utf-8") as stream:
        yield from csv.DictReader(stream)


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|geforce|tesla", "", name.lower())
