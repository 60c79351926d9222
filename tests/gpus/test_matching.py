from __future__ import annotations

from typing import Any

import pytest
from gpu_nodes import A100, H100, Json, a100_single, card_labels, cluster, h100_mixed, node, pod, slice_labels, whole
from hypothesis import given, strategies as st

from yolo_airflow_provider.gpus.accelerator import Accelerator, parse_accelerator
from yolo_airflow_provider.gpus.cluster import ClusterOffer
from yolo_airflow_provider.gpus.matching import matching, refusal, waiting_reason
from yolo_airflow_provider.gpus.nodes import Placement

GIB = 2**30
GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"
SMALL: dict[str, int] = {"cpu_millicores": 4000, "memory_bytes": 8 * GIB}


def _profiles(*profiles: tuple[str, str, int, int]) -> ClusterOffer:
    """A node each of (product, profile, MiB, multiprocessors), a slice each."""
    items = []
    for index, (product, profile, memory_mib, sm) in enumerate(profiles):
        labels = {**card_labels(product, 81920), **slice_labels(product, profile, 1, memory_mib, sm)}
        items.append(node(f"node-{index}", {f"nvidia.com/mig-{profile}": 1}, labels))
    return cluster(*items, pods=[])


def _matched(offered: ClusterOffer, asked: str, product: str = "") -> list[tuple[str, str]]:
    wanted = parse_accelerator(asked)
    wanted = Accelerator(wanted.kind, product, wanted.mig_profile, wanted.resource)
    return [(offer.accelerator.product, offer.accelerator.mig_profile) for offer in matching(offered, wanted)]


def _first_line(message: str | None) -> str:
    assert message is not None
    return message.splitlines()[0]


def test_the_very_profile_before_one_that_a_driver_rounds_differently() -> None:
    names = _profiles(("A", "3g.40gb", 40192, 42), ("B", "3g.39gb", 40192, 42))
    assert _matched(names, "3g.40gb") == [("A", "3g.40gb")]
    assert _matched(names, "3g.39gb") == [("B", "3g.39gb")]


@pytest.mark.parametrize(
    ("offered", "asked", "matches"),
    [
        ("3g.39gb", "3g.40gb", True),
        ("7g.79gb", "7g.80gb", True),
        ("1g.24gb", "1g.23gb", True),
        ("1g.6gb", "1g.5gb", True),
        ("7g.269gb", "7g.280gb", True),
        ("7g.269gb", "7g.288gb", False),
        ("2g.20gb", "1g.20gb", False),
        ("1g.12gb", "1g.10gb", False),
        ("1g.24gb.me", "1g.23gb", False),
        ("1g.24gb.me", "1g.23gb+me", True),
        ("1g.24gb-me", "1g.23gb+me", False),  # with a minus it is without the media engines
        ("1g.24gb.gfx", "1g.23gb+gfx", True),
        ("1g.24gb.me.all", "1g.23gb+me.all", True),
        ("1g.24gb.me.all", "1g.23gb+me", False),
    ],
)
def test_names_that_rounding_may_change(offered: str, asked: str, matches: bool) -> None:
    found = _profiles(("A", offered, 22528, 18))
    assert bool(_matched(found, asked)) is matches
    assert bool(_matched(found, f"nvidia.com/mig-{asked.replace('+', '.')}")) is matches


def test_the_smallest_memory_then_the_fewest_multiprocessors_come_first() -> None:
    found = _profiles(("C", "1g.10gb", 9984, 16), ("B", "1g.10gb", 9984, 14), ("A", "1g.10gb", 9728, 20))
    assert [product for product, _ in _matched(found, "1g.10gb")] == ["A", "B", "C"]


def test_a_whole_card_is_no_slice_and_a_slice_no_card() -> None:
    found = cluster(whole("a"), a100_single("b"))
    assert _matched(found, "gpu") == [(A100, "")]
    assert _matched(found, "1g.5gb") == [(A100, "1g.5gb")]  # though its resource is nvidia.com/gpu
    assert matching(found, Accelerator("cpu")) == ()


def test_a_product_that_is_named_must_be_the_offers() -> None:
    found = cluster(whole("a"), whole("b", H100, 81559))
    assert _matched(found, "gpu", "NVIDIA H100 80GB HBM3") == [(H100, "")]
    assert _matched(found, "gpu", "NVIDIA L40S") == []


def test_b17_a_name_that_nobody_offers_is_refused_with_what_is_offered() -> None:
    found = cluster(h100_mixed("gpu-a"), h100_mixed("gpu-b", cordoned=True), pods=[pod("gpu-a", **{SLICE: 1})])
    message = refusal(found, parse_accelerator("1g.5gb"), **SMALL)
    assert message is not None
    assert message.splitlines() == [
        "no node that may take the pod offers 1g.5gb (nvidia.com/mig-1g.5gb)",
        "accelerator                          resource                memory     SM  free/total  later  nodes",
        "1x 1g.10gb of NVIDIA-H100-80GB-HBM3  nvidia.com/mig-1g.10gb  9.75 GiB   16  1/2         2      gpu-a",
        "1x 2g.20gb of NVIDIA-H100-80GB-HBM3  nvidia.com/mig-2g.20gb  19.62 GiB  32  1/1         1      gpu-a",
        "1x 3g.40gb of NVIDIA-H100-80GB-HBM3  nvidia.com/mig-3g.40gb  39.38 GiB  60  1/1         1      gpu-a",
        "left out:",
        "  gpu-b: cordoned",
    ]


def test_b17_a_taint_that_keeps_the_pod_off_is_in_the_refusal() -> None:
    tainted = h100_mixed("a", taints=("nvidia.com/gpu=present:NoSchedule",))
    message = refusal(cluster(tainted), parse_accelerator("1g.10gb"), **SMALL)
    assert message is not None
    assert message.splitlines()[1:] == [
        "no node offers a GPU",
        "left out:",
        "  a: tainted nvidia.com/gpu=present:NoSchedule, which the pod does not tolerate",
    ]
    tolerant = Placement(tolerations=({"key": GPU, "operator": "Exists"},))
    assert refusal(cluster(tainted, placement=tolerant), parse_accelerator("1g.10gb"), **SMALL) is None


def test_b17_without_any_gpu() -> None:
    message = refusal(cluster(node("a")), parse_accelerator("gpu"), **SMALL)
    assert message == f"no node that may take the pod offers a whole GPU ({GPU})\nno node offers a GPU"


def test_what_is_offered_later_is_not_refused() -> None:
    for how in ({"cordoned": True}, {"ready": False}, {"state": "pending"}):
        assert refusal(cluster(h100_mixed("a", **how)), parse_accelerator("1g.10gb"), **SMALL) is None
    assert refusal(cluster(h100_mixed("a", "failed")), parse_accelerator("1g.10gb"), **SMALL) is not None


def test_a_pod_larger_than_any_node_that_offers_it_is_refused_with_both_numbers() -> None:
    found = cluster(h100_mixed("a", cpu="15890m", memory="60Gi"), node("big", cpu="96", memory="750Gi"))
    asked = parse_accelerator("1g.10gb")
    line = _first_line(refusal(found, asked, cpu_millicores=16000, memory_bytes=60 * GIB + 1))
    assert line == (
        "no node with 1g.10gb (nvidia.com/mig-1g.10gb) is large enough for the pod: 16 CPUs asked, the most on one node"
        " is 15.89; 61441Mi of memory asked, the most on one node is 61440Mi"
    )
    line = _first_line(refusal(found, asked, count=3, cpu_millicores=0, memory_bytes=0))
    assert line.endswith("3 of it asked, the most on one node is 2")
    assert refusal(found, asked, count=2, cpu_millicores=15890, memory_bytes=60 * GIB) is None
    assert (
        refusal(found, None, cpu_millicores=96000, memory_bytes=750 * GIB) is None
    )  # without a GPU it may go to `big`


def test_a_pod_that_fits_in_parts_but_on_no_node_is_refused() -> None:
    found = cluster(whole("a", cpu="64", memory="16Gi"), whole("b", cpu="8", memory="256Gi"))
    line = _first_line(refusal(found, parse_accelerator("gpu"), cpu_millicores=32000, memory_bytes=64 * GIB))
    assert line.endswith("none has 1 of it, 32 CPUs, 65536Mi of memory together")


def test_a_pod_without_a_gpu_is_refused_with_the_nodes() -> None:
    found = cluster(node("a", cpu="4", memory="16Gi"), node("b", cpu="8", memory="8Gi", cordoned=True))
    assert refusal(found, None, cpu_millicores=8000, memory_bytes=8 * GIB) is None  # `b`, later
    message = refusal(found, Accelerator("cpu"), cpu_millicores=8001, memory_bytes=GIB)
    assert message is not None
    assert message.splitlines() == [
        "no node is large enough for the pod: 8.001 CPUs asked, the most on one node is 8",
        "node  CPUs  memory",
        "b     8     8.00 GiB",
        "a     4     16.00 GiB",
        "left out:",
        "  b: cordoned",
    ]
    nowhere = cluster(node("a"), placement=Placement(node_selector={"pool": "x"}))
    assert refusal(nowhere, None, cpu_millicores=0, memory_bytes=0) == (
        "no node may take the pod\nleft out:\n  a: has no label pool, the pod's node selector asks for x"
    )


def test_a_long_table_stays_readable() -> None:
    many = [whole(f"gpu-{index:02}", cordoned=index >= 10) for index in range(30)]
    lines = cluster(*many).table().splitlines()
    assert lines[1].endswith("?/80        160    gpu-00, gpu-01, gpu-02, gpu-03, gpu-04, gpu-05 and 4 more")
    assert lines[2:] == ["left out:", "  gpu-10, gpu-11, gpu-12, gpu-13, gpu-14, gpu-15 and 14 more: cordoned"]
    lines = cluster(*[node(f"n-{index:02}", cpu=str(index + 1)) for index in range(30)]).cpu_table().splitlines()
    assert lines[1].startswith("n-29")  # the largest
    assert lines[-1] == "and 10 smaller ones"


def test_what_a_pod_waits_for() -> None:
    def reason(offered: ClusterOffer, asked: str = "gpu") -> str:
        return waiting_reason(offered, matching(offered, parse_accelerator(asked))[0])

    full = [pod("a", **{GPU: 7})]
    assert reason(cluster(a100_single("a"), pods=full), "1g.5gb") == "all 7 are in use"
    assert reason(cluster(whole("a", cards=8), pods=full)) == ""
    assert reason(cluster(whole("a", cards=1), pods=[pod("a", **{GPU: 1})])) == "the only one is in use"
    cordoned = [whole("a", cordoned=True), whole("b", cordoned=True), whole("c", ready=False)]
    assert reason(cluster(*cordoned, pods=[])) == (
        "the nodes that offer it are cordoned: a, b; the node that offers it is not ready: c"
    )
    busy = cluster(whole("a", cards=7), whole("b", cards=2, cordoned=True), pods=full)
    assert reason(busy) == "all 7 are in use; 2 more: the node that offers it is cordoned: b"
    assert reason(cluster(whole("a"))).startswith("how many of the 8 are in use is not known")
    pending = cluster(h100_mixed("a", "pending", labels={"nvidia.com/gpu.shared.count": "1"}))
    assert reason(pending, "1g.10gb").startswith("the node that offers it is being reconfigured by MIG Manager")


def test_a_shared_resource_beside_it_is_nothing_to_wait_for() -> None:
    both = whole("a", cordoned=True)
    both["status"]["allocatable"]["nvidia.com/mig-1g.5gb.shared"] = "14"
    found = cluster(both, pods=[])
    assert len(found.left_out) == 2
    assert waiting_reason(found, found.offers[0]) == "the node that offers it is cordoned: a"


SIZES = st.tuples(st.integers(0, 4), st.integers(0, 64), st.integers(0, 64))


@given(st.lists(st.tuples(SIZES, st.sampled_from(["", "cordoned", "tainted"])), max_size=5), SIZES)
def test_a_pod_is_refused_exactly_where_no_node_could_run_it(drawn: Any, asked: tuple[int, int, int]) -> None:
    states: dict[str, dict[str, Any]] = {
        "": {},
        "cordoned": {"cordoned": True},
        "tainted": {"taints": ("x:NoExecute",)},
    }
    items: list[Json] = [
        whole(f"node-{index}", cards=cards, cpu=str(cpu), memory=f"{memory}Gi", **states[state])
        for index, ((cards, cpu, memory), state) in enumerate(drawn)
    ]
    found = cluster(*items, pods=[])
    count, cpu, memory = asked
    possible = [sizes for sizes, state in drawn if state != "tainted"]
    size = {"cpu_millicores": cpu * 1000, "memory_bytes": memory * GIB}
    needed = max(count, 1)
    for accelerator, least in ((parse_accelerator("gpu"), needed), (None, 0)):
        fits = any(has[0] >= least and has[1] >= cpu and has[2] >= memory for has in possible)
        message = refusal(found, accelerator, **size, count=needed)
        assert (message is None) is fits
        if message is not None:
            table = found.table() if accelerator else found.cpu_table()
            assert message.endswith(table)
            assert len(message.splitlines()[0]) > len("no node")
