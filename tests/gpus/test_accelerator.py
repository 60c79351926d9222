from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from yolo_airflow_provider.gpus.accelerator import (
    Accelerator,
    canonical_product,
    parse_accelerator,
    parse_memory,
    profile_of_name,
    profile_parts,
)
from yolo_airflow_provider.gpus.local import cpu, discover


@pytest.mark.parametrize(
    ("text", "profile", "resource"),
    [
        ("1g.5gb", "1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("3g.39gb", "3g.39gb", "nvidia.com/mig-3g.39gb"),
        ("1g.5gb+me", "1g.5gb+me", "nvidia.com/mig-1g.5gb.me"),
        ("1g.24gb+me.all", "1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
        ("1g.24gb-me", "1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ("nvidia.com/mig-1g.10gb", "1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("nvidia.com/mig-1g.5gb.me", "1g.5gb+me", "nvidia.com/mig-1g.5gb.me"),
        ("nvidia.com/mig-1g.24gb.me.all", "1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
        ("nvidia.com/mig-1g.24gb.gfx", "1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
        ("nvidia.com/mig-1g.24gb-me", "1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ("1g.5gb.me", "1g.5gb+me", "nvidia.com/mig-1g.5gb.me"),  # as mig-parted's configurations are named
    ],
)
def test_mig_profiles_and_their_resource_names(text: str, profile: str, resource: str) -> None:
    found = parse_accelerator(text)
    assert (found.kind, found.mig_profile, found.resource) == ("mig", profile, resource)
    assert found.memory_bytes is None  # the number in the name is not the memory


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("1g.5gb", (1, 5, "")),
        ("7g.141gb", (7, 141, "")),
        ("1g.5gbme", (1, 5, "+me")),  # as the product label has it
        ("1g.24gbme.all", (1, 24, "+me.all")),
        ("nvidia.com/mig-1g.24gb.me.all", (1, 24, "+me.all")),
        ("1g.24gb-me", (1, 24, "-me")),
        ("INVALID", None),
        ("1c.3g.20gb", None),
        ("", None),
    ],
)
def test_parts_of_a_profile(name: str, parts: tuple[int, int, str] | None) -> None:
    assert profile_parts(profile_of_name(name)) == parts


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.24gb-me", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-INVALID", "NVIDIA-A100-SXM4-40GB"),
        ("Tesla-T4-SHARED", "Tesla-T4"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA  RTX(TM) PRO 6000 ", "NVIDIA-RTXTM-PRO-6000"),
        ("", ""),
    ],
)
def test_one_product_has_one_name(name: str, product: str) -> None:
    assert canonical_product(name) == product


@given(st.lists(st.sampled_from(["NVIDIA", "A100", " ", "-", "MIG", "1g.5gb", "SHARED", "(", "\u00ae"])).map("".join))
def test_a_canonical_product_is_its_own(name: str) -> None:
    assert canonical_product(canonical_product(name)) == canonical_product(name)


class _NoSuchSlice(Exception):
    pass


def _nvml(monkeypatch: pytest.MonkeyPatch, *slices: str | None) -> None:
    """A machine with one A100 whose slices at the indexes have these names; None where an index has none."""
    nvml = ModuleType("pynvml")
    memory = {"card": 40 * 2**30, **dict.fromkeys(filter(None, slices), 4864 * 2**20)}

    def by_index(card: str, index: int) -> str:
        found = slices[index]
        if found is None:
            raise _NoSuchSlice
        return found

    for name, value in {
        "NVMLError": _NoSuchSlice,
        "NVMLError_NotFound": _NoSuchSlice,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: "card",
        "nvmlDeviceGetName": lambda handle: b"NVIDIA A100-SXM4-40GB" if handle == "card" else handle,
        "nvmlDeviceGetMigMode": lambda card: (int(bool(slices)), 0),
        "nvmlDeviceGetMaxMigDeviceCount": lambda card: len(slices),
        "nvmlDeviceGetMigDeviceHandleByIndex": by_index,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=memory[handle]),
    }.items():
        setattr(nvml, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_this_machines_card_is_called_as_its_label_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    _nvml(monkeypatch)
    assert discover() == Accelerator("gpu", "NVIDIA-A100-SXM4-40GB", memory_bytes=40 * 2**30)


def test_this_machines_slice_is_called_as_its_label_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    _nvml(monkeypatch, None, "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me")
    assert discover() == Accelerator("mig", "NVIDIA-A100-SXM4-40GB", "1g.5gb+me", memory_bytes=4864 * 2**20)


def test_cpu_and_whole_gpus() -> None:
    assert parse_accelerator("cpu") == Accelerator(kind="cpu")
    assert parse_accelerator("gpu").resource == parse_accelerator("nvidia.com/gpu").resource == "nvidia.com/gpu"


@pytest.mark.parametrize("text", ["", "tpu", "1g5gb", "g.5gb", "nvidia.com/mig-", "1g.5gb; rm"])
def test_unknown_accelerators_are_refused_with_what_is_known(text: str) -> None:
    with pytest.raises(ValueError, match="use 'auto', 'cpu', 'gpu', a MIG profile"):
        parse_accelerator(text)


def test_a_shared_slice_is_refused_for_measuring() -> None:
    with pytest.raises(ValueError, match="time-slicing"):
        parse_accelerator("nvidia.com/mig-1g.5gb.shared")


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("4Gi", 4 * 2**30),
        ("9984Mi", 9984 * 2**20),
        ("3.5 GiB", 3758096384),
        ("4G", 4 * 10**9),
        (1024, 1024),
        ("7kb", 7000),
    ],
)
def test_memory_quantities(text: str | int, memory: int) -> None:
    assert parse_memory(text) == memory


@pytest.mark.parametrize("text", ["", "0", "-4Gi", "4Xi", "lots", "1e3"])
def test_wrong_memory_quantities(text: str) -> None:
    with pytest.raises(ValueError, match="not a positive quantity"):
        parse_memory(text)


def test_this_machine_has_memory() -> None:
    found = cpu()
    assert found.kind == "cpu"
    assert found.memory_bytes is not None
    assert found.memory_bytes > 2**28
