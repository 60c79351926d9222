from __future__ import annotations

import random
from typing import Any

import pytest
from gpu_nodes import (
    A100,
    H100,
    Json,
    a100_single,
    card_labels,
    cluster,
    h100_mixed,
    node,
    pod,
    slice_labels,
    whole,
)
from hypothesis import given, strategies as st

from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.cluster import ClusterOffer, LeftOut, Offer
from yolo_airflow_provider.gpus.nodes import Placement

MIB = 2**20
GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"


def _by_resource(offered: ClusterOffer) -> dict[str, Offer]:
    found = {offer.accelerator.resource: offer for offer in offered.offers}
    assert len(found) == len(offered.offers)
    return found


def _only(offered: ClusterOffer) -> Offer:
    (offer,) = offered.offers
    return offer


def _reasons(offered: ClusterOffer) -> dict[str, str]:
    return {one.node: one.reason for one in offered.left_out}


def _mixed(name: str, product: str, profile: str, count: int, memory_mib: int, sm: int, **how: Any) -> Json:
    labels = {
        **card_labels(product, 81920, mig_strategy="mixed"),
        **slice_labels(product, profile, count, memory_mib, sm),
    }
    return node(name, {f"nvidia.com/mig-{profile}": count}, labels | how.pop("labels", {}), **how)


def test_mixed_slices_with_their_memory_and_multiprocessors() -> None:
    found = cluster(h100_mixed("a"), pods=[pod("a", **{SLICE: 1})])
    assert [(offer.accelerator, offer.multiprocessors, offer.free, offer.total) for offer in found.offers] == [
        (Accelerator("mig", H100, "1g.10gb", SLICE, 9984 * MIB), 16, 1, 2),
        (Accelerator("mig", H100, "2g.20gb", "nvidia.com/mig-2g.20gb", 20096 * MIB), 32, 1, 1),
        (Accelerator("mig", H100, "3g.40gb", "nvidia.com/mig-3g.40gb", 40320 * MIB), 60, 1, 1),
    ]
    assert found.offers[0].node_selector == {"nvidia.com/gpu.product": H100}
    assert found.left_out == ()


def test_single_slices_are_not_cards() -> None:
    offer = _only(cluster(a100_single("a"), pods=[]))
    assert offer.accelerator == Accelerator("mig", A100, "1g.5gb", GPU, 4864 * MIB)
    assert (offer.multiprocessors, offer.free, offer.total) == (14, 7, 7)
    assert offer.node_selector == {"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb"}


def test_single_spells_attributes_its_own_way() -> None:
    labels = {"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gbme"}
    assert _only(cluster(a100_single("a", 1, labels=labels))).accelerator.mig_profile == "1g.5gb+me"


def test_whole_cards() -> None:
    offer = _only(cluster(whole("a"), whole("b", cards=4), pods=[pod("b", **{GPU: 3})]))
    assert offer.accelerator == Accelerator("gpu", A100, "", GPU, 40960 * MIB)
    assert (offer.multiprocessors, offer.free, offer.total, offer.largest_node) == (None, 9, 12, 8)


def test_one_resource_of_two_products_is_two_offers() -> None:
    found = cluster(whole("a"), a100_single("b"), whole("c", H100, 81559))
    assert [(offer.accelerator.kind, offer.accelerator.product) for offer in found.offers] == [
        ("mig", A100),
        ("gpu", A100),
        ("gpu", H100),
    ]
    assert {offer.accelerator.resource for offer in found.offers} == {GPU}
    # Without the selector a pod that asks for a card could get a slice.
    assert len({offer.node_selector["nvidia.com/gpu.product"] for offer in found.offers}) == 3


def test_cards_and_slices_side_by_side() -> None:
    labels = {"nvidia.com/gpu.count": "2"}
    found = _by_resource(cluster(_mixed("a", A100, "1g.10gb", 4, 9856, 14, labels=labels), whole("b")))
    assert (found[SLICE].total, found[GPU].total) == (4, 8)
    both = h100_mixed("a", devices={GPU: 1, SLICE: 2}, labels={"nvidia.com/gpu.replicas": "1"})
    found = _by_resource(cluster(both))
    assert (found[GPU].accelerator.kind, found[GPU].accelerator.memory_bytes) == ("gpu", 81559 * MIB)
    assert found[SLICE].accelerator.memory_bytes == 9984 * MIB


def test_nodes_without_labels_are_offered_by_name_only() -> None:
    found = _by_resource(cluster(node("a", {SLICE: 2, GPU: 1})))
    assert found[SLICE].accelerator == Accelerator("mig", "", "1g.10gb", SLICE, None)
    assert found[GPU].accelerator == Accelerator("gpu", "", "", GPU, None)
    assert found[SLICE].node_selector == {}
    assert "an unnamed GPU" in cluster(node("a", {SLICE: 2})).table()


def test_usable_memory_that_differs_by_driver_is_told_apart() -> None:
    b200 = "NVIDIA-B200"
    found = cluster(_mixed("a", b200, "1g.23gb", 7, 20992, 18), _mixed("b", b200, "1g.23gb", 7, 22528, 18))
    assert [offer.node_selector for offer in found.offers] == [
        {"nvidia.com/gpu.product": b200, "nvidia.com/mig-1g.23gb.memory": "20992"},
        {"nvidia.com/gpu.product": b200, "nvidia.com/mig-1g.23gb.memory": "22528"},
    ]


def test_a_selector_names_a_label_that_all_the_nodes_have() -> None:
    # The whole cards of `b` are time-sliced, its slices are not: the label of the card differs, of the slice not.
    shared = {"nvidia.com/gpu.product": f"{A100}-SHARED", "nvidia.com/gpu.replicas": "4"}
    found = cluster(_mixed("a", A100, "1g.5gb", 7, 4864, 14), _mixed("b", A100, "1g.5gb", 7, 4864, 14, labels=shared))
    offer = _only(found)
    assert offer.total == 14
    assert offer.node_selector == {"nvidia.com/mig-1g.5gb.product": f"{A100}-MIG-1g.5gb"}


@pytest.mark.parametrize(
    ("devices", "labels"),
    [
        ({"nvidia.com/gpu.shared": 4}, {}),
        ({"nvidia.com/mig-1g.5gb.shared": 14}, {}),
        ({GPU: 4}, {"nvidia.com/gpu.product": f"{A100}-SHARED"}),
        ({GPU: 4}, {"nvidia.com/gpu.replicas": "4"}),
        ({GPU: 4}, {"nvidia.com/gpu.sharing-strategy": "mps"}),
        ({"nvidia.com/mig-1g.5gb": 14}, {"nvidia.com/mig-1g.5gb.replicas": "2"}),
        ({"nvidia.com/mig-1g.5gb": 14}, {"nvidia.com/mig-1g.5gb.product": f"{A100}-MIG-1g.5gb-SHARED"}),
    ],
)
def test_shared_devices_are_not_for_measuring(devices: dict[str, int], labels: dict[str, str]) -> None:
    found = cluster(node("a", devices, card_labels(A100, 40960) | labels))
    assert found.offers == ()
    assert "its memory is not isolated" in _reasons(found)["a"]


def test_a_profile_of_the_future_is_left_out_by_name() -> None:
    found = cluster(node("a", {"nvidia.com/mig-1g.10gb.x9": 2, SLICE: 1}))
    assert [offer.accelerator.resource for offer in found.offers] == [SLICE]
    assert _reasons(found)["a"].startswith("nvidia.com/mig-1g.10gb.x9 is no MIG profile")


def test_b9_allocatable_is_read_anew_and_a_late_change_is_seen() -> None:
    """After a new layout, the device plugin shows the slices late, the labels still name those of before."""
    before, between = h100_mixed("a"), h100_mixed("a", devices={SLICE: 0, "nvidia.com/mig-2g.20gb": 0})
    after = h100_mixed("a", devices={SLICE: 7, "nvidia.com/mig-2g.20gb": 0})
    assert [_by_resource(cluster(item))[SLICE].total for item in (before, after)] == [2, 7]
    assert cluster(between).offers == ()
    assert list(_by_resource(cluster(after))) == [SLICE]  # the zero that lingers is no offer


def test_b11_slices_are_counted_and_not_cards() -> None:
    seven = h100_mixed("a", devices={SLICE: 7}, labels={"nvidia.com/gpu.count": "1"})
    assert _only(cluster(seven)).total == 7
    eight_cards = h100_mixed("a", devices={SLICE: 2}, labels={"nvidia.com/gpu.count": "8"})
    assert _only(cluster(eight_cards)).total == 2


@pytest.mark.parametrize("state", ["pending", "rebooting"])
def test_b13_a_node_that_is_being_reconfigured_counts_as_later(state: str) -> None:
    found = cluster(h100_mixed("a", state), h100_mixed("b"), pods=[])
    offer = _by_resource(found)[SLICE]
    assert (offer.total, offer.free, offer.later) == (2, 2, 2)
    assert found.left_out == (
        LeftOut(
            "a", f"being reconfigured by MIG Manager (nvidia.com/mig.config=all-balanced, state {state})", later=True
        ),
    )
    # A pod without a GPU runs there nevertheless.
    assert [(place.node, place.not_now) for place in found.places] == [("a", ""), ("b", "")]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("all-balanced", {SLICE: 2, "nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-3g.40gb": 1}),  # the labels of before
        ("all-1g.10gb", {SLICE: 2}),
        ("all-1g.20gb", {"nvidia.com/mig-1g.20gb": 1}),  # at least one a card
        ("all-1g.10gb.me", {"nvidia.com/mig-1g.10gb.me": 1}),
        ("all-disabled", {GPU: 1}),
    ],
)
def test_b13_what_comes_is_counted_while_the_device_plugin_is_stopped(config: str, expected: dict[str, int]) -> None:
    found = cluster(h100_mixed("a", "pending", devices={SLICE: 0}, labels={"nvidia.com/mig.config": config}))
    assert {resource: (offer.total, offer.later) for resource, offer in _by_resource(found).items()} == {
        resource: (0, count) for resource, count in expected.items()
    }


@pytest.mark.parametrize(
    ("config", "slices", "later"),
    [("all-1g.5gb", 0, 7), ("all-1g.5gb", 7, 7), ("all-3g.20gb", 7, 0), ("all-disabled", 7, 0), ("ours", 0, 7)],
)
def test_b13_under_the_strategy_single(config: str, slices: int, later: int) -> None:
    labels = {"nvidia.com/mig.config": config, "nvidia.com/mig.config.state": "pending"}
    found = cluster(a100_single("a", slices, labels=labels))
    assert sum(offer.later for offer in found.offers) == later
    assert all(offer.accelerator.mig_profile == "1g.5gb" and offer.total == 0 for offer in found.offers)


@pytest.mark.parametrize("state", ["failed", "unheard-of"])
def test_b13_a_layout_that_failed_counts_for_nothing(state: str) -> None:
    found = cluster(h100_mixed("a", state))
    assert found.offers == ()
    assert f"state {state}" in _reasons(found)["a"]
    assert not found.left_out[0].later


def test_b14_success_without_devices_is_left_out() -> None:
    found = cluster(h100_mixed("a", devices={SLICE: 0}), h100_mixed("b", devices={}))
    assert found.offers == ()
    assert set(_reasons(found)) == {"a", "b"}
    assert all("no device is allocatable" in reason and "success" in reason for reason in _reasons(found).values())


def test_b17_a_card_that_no_plugin_shows_is_named_and_a_cpu_node_is_not() -> None:
    card = node("a", labels={"feature.node.kubernetes.io/pci-0302_10de.present": "true"})
    found = cluster(card, node("b"), node("c", labels={"nvidia.com/gpu.deploy.operands": "false"}))
    assert list(_reasons(found)) == ["a"]
    assert "does the device plugin run there" in _reasons(found)["a"]


def test_mig_invalid_is_left_out() -> None:
    labels = {
        "nvidia.com/gpu.product": f"{A100}-MIG-INVALID",
        "nvidia.com/gpu.count": "0",
        "nvidia.com/gpu.memory": "0",
    }
    found = cluster(a100_single("a", 3, labels=labels))
    assert found.offers == ()
    assert "MIG-INVALID" in _reasons(found)["a"]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"cordoned": True}, "cordoned"),
        ({"ready": False}, "not ready"),
        (
            {"taints": ("node.kubernetes.io/pid-pressure:NoSchedule",)},
            "tainted node.kubernetes.io/pid-pressure:NoSchedule",
        ),
    ],
)
def test_states_that_pass_count_as_later(how: dict[str, Any], reason: str) -> None:
    found = cluster(whole("a", **how), whole("b", cards=2), pods=[pod("a", **{GPU: 8})])
    offer = _only(found)
    assert (offer.total, offer.free, offer.later, offer.largest_node) == (2, 2, 8, 8)
    assert (offer.nodes, offer.later_nodes) == ({"b": 2}, {"a": 8})
    assert found.left_out == (LeftOut("a", reason, later=True),)


def test_nodes_that_the_pod_may_not_be_put_on_count_for_nothing() -> None:
    items = [whole("a", labels={"pool": "training"}), whole("b", cordoned=True), node("c")]
    found = cluster(*items, placement=Placement(node_selector={"pool": "training"}))
    assert list(_only(found).nodes) == ["a"]
    assert _only(found).later == 0
    assert list(_reasons(found)) == ["b"]  # `c` has no GPU
    assert {one.node for one in found.unusable} == {"b", "c"}
    assert [place.node for place in found.places] == ["a"]


def test_free_is_not_known_without_the_pods() -> None:
    assert _only(cluster(whole("a"))).free is None
    assert _only(cluster(whole("a"), pods=[])).free == 8


def test_a_device_that_broke_under_its_pod_leaves_no_negative_number() -> None:
    items = [whole("a", cards=1), whole("b", cards=2)]
    assert _only(cluster(*items, pods=[pod("a", **{GPU: 2})])).free == 2


ITEMS = st.lists(
    st.one_of(
        st.builds(
            lambda cards, how: ("whole", {"cards": cards, **how}),
            st.integers(0, 8),
            st.sampled_from([{}, {"cordoned": True}, {"ready": False}, {"taints": ("team=x:NoSchedule",)}]),
        ),
        st.builds(lambda slices: ("single", {"slices": slices}), st.integers(0, 7)),
        st.builds(lambda state: ("mixed", {"state": state}), st.sampled_from(["success", "pending", "failed"])),
    ),
    max_size=6,
)
REQUESTS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([GPU, SLICE]), st.integers(1, 9)), max_size=8)


def _items(drawn: list[tuple[str, dict[str, Any]]]) -> list[Json]:
    make = {"whole": whole, "single": a100_single, "mixed": h100_mixed}
    return [make[kind](f"node-{index}", **how) for index, (kind, how) in enumerate(drawn)]


@given(ITEMS, REQUESTS)
def test_counts_stay_within_what_is_allocatable(drawn: Any, requests: list[tuple[int, str, int]]) -> None:
    items = _items(drawn)
    found = cluster(*items, pods=[pod(f"node-{index}", **{resource: count}) for index, resource, count in requests])
    allocatable = {item["metadata"]["name"]: item["status"]["allocatable"] for item in items}
    for offer in found.offers:
        assert offer.free is not None
        assert 0 <= offer.free <= offer.total
        assert offer.total + offer.later > 0
        assert not set(offer.nodes) & set(offer.later_nodes)
        for name, count in {**offer.nodes, **offer.later_nodes}.items():
            assert count == int(allocatable[name][offer.accelerator.resource])
    named = {name for offer in found.offers for name in {**offer.nodes, **offer.later_nodes}}
    assert named | {one.node for one in found.left_out} == set(allocatable)  # nobody is passed over in silence


@given(ITEMS, REQUESTS, st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_pods_does_not_matter(drawn: Any, requests: Any, order: random.Random) -> None:
    items = _items(drawn)
    pods = [pod(f"node-{index}", **{resource: count}) for index, resource, count in requests]
    expected = cluster(*items, pods=pods)
    order.shuffle(items)
    order.shuffle(pods)
    assert cluster(*items, pods=pods) == expected
    assert cluster(*items, pods=pods).table() == expected.table()
