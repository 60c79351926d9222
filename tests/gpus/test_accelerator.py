from __future__ import annotations

import pytest

from yolo_airflow_provider.gpus.accelerator import Accelerator, parse_accelerator, parse_memory
from yolo_airflow_provider.gpus.local import cpu


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
    ],
)
def test_mig_profiles_and_their_resource_names(text: str, profile: str, resource: str) -> None:
    found = parse_accelerator(text)
    assert (found.kind, found.mig_profile, found.resource) == ("mig", profile, resource)
    assert found.memory_bytes is None  # the number in the name is not the memory


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
