"""Accelerators are one idea: `cpu`, a whole GPU or a MIG slice, each with a product and a memory budget."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# `1g.5gb`, `3g.39gb`, `1g.10gb+me`; compute slices, then memory in GB by name only.
_MIG_PROFILE = re.compile(r"^(?P<slices>\d)g\.(?P<memory>\d+)gb(?P<attributes>(?:[+.-][a-z]+)*)$")
_MIG_RESOURCE = "nvidia.com/mig-"
_GPU_RESOURCE = "nvidia.com/gpu"

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
        product: as the driver names it, e.g. `NVIDIA A100-SXM4-40GB`; empty where it is not known yet.
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
        """For people: `cpu`, `1x 1g.5gb of NVIDIA A100-SXM4-40GB`."""
        if self.kind == "cpu":
            return "cpu"
        product = self.product or "an unnamed GPU"
        return f"1x {self.mig_profile} of {product}" if self.kind == "mig" else f"1x {product}"


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
    profile = _profile_of_resource(name) if name.startswith(_MIG_RESOURCE) else name
    if not _MIG_PROFILE.match(profile):
        raise ValueError(
            f"accelerator {text!r} is not known: use 'auto', 'cpu', 'gpu', a MIG profile such as '1g.10gb', or a"
            " resource name such as 'nvidia.com/mig-1g.10gb'"
        )
    return Accelerator(kind="mig", mig_profile=profile, resource=resource_of_profile(profile))


def resource_of_profile(profile: str) -> str:
    """The device plugin's name of a profile: `1g.5gb+me` is `nvidia.com/mig-1g.5gb.me` (its internal/rm/rm.go)."""
    return _MIG_RESOURCE + profile.replace("+", ".")


def _profile_of_resource(resource: str) -> str:
    # `.me` and `.gfx` at the end were written with a plus; the dot between slices and memory was not.
    profile = resource.removeprefix(_MIG_RESOURCE)
    return re.sub(r"gb\.(?=[a-z])", "gb+", profile)


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
