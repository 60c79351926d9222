"""Accelerators are one idea: `cpu`, a whole GPU or a MIG slice, each with a product and a memory budget."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# `1g.5gb`, `3g.39gb`, `1g.10gb+me`, `1g.24gb-me`; compute slices, then memory in GB by name only.
_MIG_PROFILE = re.compile(r"^(?P<slices>\d)g\.(?P<memory>\d+)gb(?P<attributes>(?:[+.-][a-z]+)*)$")
_MIG_RESOURCE = "nvidia.com/mig-"
_GPU_RESOURCE = "nvidia.com/gpu"
_NOT_IN_A_LABEL = re.compile(r"[^A-Za-z0-9_. -]")
_PRODUCT_SUFFIX = re.compile(r"(?:-MIG-.*|-SHARED)+$")

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_QUANTITY = re.compile(r"^\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]i?)?b?\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Accelerator:
    """What a run computes on.

    Attributes:
        kind: `cpu`, `gpu` or `mig`.
        product: the card in its canonical spelling, e.g. `NVIDIA-A100-SXM4-40GB`; empty where it is not known yet.
        mig_profile: e.g. `1g.5gb`; empty unless `kind` is `mig`.
        resource: the Kubernetes extended resource to ask for; empty on `cpu`.
        memory_bytes: usable memory, None where it is not known. Never derived from the profile's name: that number
            is 3 to 12 % more than what can be used.
    """

    kind: Literal["cpu", "gpu", "mig"]
    product: str = ""
    mig_profile: str = ""
    resource: str = ""
    memory_bytes: int | None = None

    @property
    def label(self) -> str:
        """For people: `cpu`, `1x 1g.5gb of NVIDIA-A100-SXM4-40GB`."""
        return self.counted(1)

    def counted(self, count: int) -> str:
        """So many of it, for people."""
        if self.kind == "cpu":
            return "cpu"
        product = self.product or "an unnamed GPU"
        return f"{count}x {self.mig_profile} of {product}" if self.kind == "mig" else f"{count}x {product}"


def parse_accelerator(text: str) -> Accelerator:
    """Read what a DAG author wrote: `cpu`, `gpu`, a MIG profile, or a Kubernetes resource name.

    Raises:
        ValueError: none of these; says what is accepted.
    """
    name = text.strip()
    if name == "cpu":
        return Accelerator(kind="cpu")
    if name in ("gpu", _GPU_RESOURCE):
        return Accelerator(kind="gpu", resource=_GPU_RESOURCE)
    if name.endswith(".shared"):
        raise ValueError(
            f"accelerator {text!r} is shared by time-slicing: its memory is not isolated, so nothing measured on it"
            " holds for the next run; ask for an unshared resource"
        )
    profile = profile_of_name(name)
    if profile_parts(profile) is None:
        raise ValueError(
            f"accelerator {text!r} is not known: use 'auto', 'cpu', 'gpu', a MIG profile such as '1g.10gb', or a"
            " resource name such as 'nvidia.com/mig-1g.10gb'"
        )
    return Accelerator(kind="mig", mig_profile=profile, resource=resource_of_profile(profile))


def resource_of_profile(profile: str) -> str:
    """The device plugin's name of a profile: `1g.5gb+me` is `nvidia.com/mig-1g.5gb.me` (its internal/rm/rm.go)."""
    return _MIG_RESOURCE + profile.replace("+", ".")


def profile_of_name(name: str) -> str:
    """The driver's spelling of a profile that a node spells its own way, with or without `nvidia.com/mig-`.

    Neither resource nor label may hold a plus: the device plugin writes `.me` for `+me` (its internal/rm/rm.go), GPU
    feature discovery drops the sign in `gpu.product`, so that `1g.5gbme` is left (its internal/lm/resource.go). The
    minus of `1g.24gb-me` is kept by both.
    """
    return re.sub(r"gb\.?(?=[a-z])", "gb+", name.removeprefix(_MIG_RESOURCE))


def profile_parts(profile: str) -> tuple[int, int, str] | None:
    """Compute slices, the memory in the name (GB, not what can be used) and attributes such as `+me`, empty for none.

    None where the name is not one of a MIG profile.
    """
    found = _MIG_PROFILE.match(profile)
    return (int(found["slices"]), int(found["memory"]), found["attributes"]) if found else None


def canonical_product(name: str) -> str:
    """One spelling of a card for what NVML and what a node's label call it.

    GPU feature discovery writes the driver's name with dashes for spaces and without what a label cannot hold, then
    `-MIG-<profile>` for a slice and `-SHARED` under time-slicing (k8s-device-plugin, internal/lm/resource.go). NVML
    calls a slice `NVIDIA A100-SXM4-40GB MIG 1g.5gb`. All of these are `NVIDIA-A100-SXM4-40GB`.
    """
    return _PRODUCT_SUFFIX.sub("", "-".join(_NOT_IN_A_LABEL.sub("", name).split()))


def parse_memory(value: str | int | float) -> int:
    """Bytes of `9984Mi`, `3.5 GiB`, `4G` (Kubernetes' and people's spellings) or a plain number of bytes.

    Raises:
        ValueError: not a positive quantity of memory.
    """
    found = _QUANTITY.match(str(value))
    parsed = int(float(found["number"]) * _UNITS[(found["unit"] or "").lower()]) if found else 0
    if parsed <= 0:
        raise ValueError(f"memory {value!r} is not a positive quantity: write 4Gi, 9984Mi or a number of bytes")
    return parsed
