from __future__ import annotations

import pytest

from yolo_airflow_provider.gpus.accelerator import Accelerator, canonical_product
from yolo_airflow_provider.gpus.cards import card, cards, device, offered


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("a100-40gb", "NVIDIA-A100-SXM4-40GB"),
        ("A100 40GB", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA-A100-SXM4-40GB"),
        ("Tesla T4", "Tesla-T4"),
        ("t4", "Tesla-T4"),
        ("rtx 4090", "NVIDIA-GeForce-RTX-4090"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA-GeForce-RTX-4090"),
        ("h100", "NVIDIA-H100-80GB-HBM3"),
        ("L40S", "NVIDIA-L40S"),
    ],
)
def test_people_name_cards_in_many_ways(name: str, product: str) -> None:
    found = card(name)
    assert found is not None
    assert found.whole.product == product


def test_a_name_for_several_cards_is_asked_back() -> None:
    with pytest.raises(ValueError, match=r"may be any of .*a100-40gb.*a100-80gb"):
        card("a100")
    assert card("voodoo2") is None
    assert card("") is None


def test_the_tables_hang_together() -> None:
    for product, found in cards().items():
        assert canonical_product(product) == product
        assert found.whole.memory_bytes > 0
        for one in found.slices:
            # The memory of some cards is only known to a percent, that of their slices to the MiB.
            assert 0 < one.memory_bytes <= 1.01 * found.whole.memory_bytes, (product, one.profile)
            assert 0 < one.multiprocessors <= found.whole.multiprocessors, (product, one.profile)
            assert one.memory_slices <= one.memory_slices_total


def test_usable_memory_is_not_what_the_profiles_name_says() -> None:
    (one,) = offered("1g.10gb@a100-80gb")
    assert one.memory_bytes == 9728 * 2**20
    assert one.resource == "nvidia.com/mig-1g.10gb"


def test_a_slice_has_its_share_of_the_card() -> None:
    whole = device(offered("gpu@a100-40gb")[0])
    slices = [device(one) for one in offered("a100-40gb") if one.kind == "mig"]
    assert whole is not None
    assert whole.share == 1
    shares = [one.share for one in slices if one is not None]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(1 / 7)
    for one in slices:
        assert one is not None
        assert one.bandwidth_bytes_per_second <= whole.bandwidth_bytes_per_second
        assert one.fp16_flops < whole.fp16_flops


def test_the_share_is_of_the_card_also_where_its_larger_profiles_are_not_published() -> None:
    (smallest,) = (device(one) for one in offered("1g.23gb@b200"))
    assert smallest is not None
    assert smallest.share == pytest.approx(1 / 7)
    (quarter,) = (device(one) for one in offered("1g.24gb@rtx-pro-6000"))
    assert quarter is not None
    assert quarter.share == pytest.approx(1 / 4)


def test_the_memory_that_a_node_told_is_kept() -> None:
    told = device(Accelerator("mig", "NVIDIA-A100-SXM4-40GB", "1g.5gb", memory_bytes=5_000_000_000))
    assert told is not None
    assert told.memory_bytes == 5_000_000_000
    assert device(Accelerator("cpu")) is None
    assert device(Accelerator("gpu", "Unheard-Of")) is None
    assert device(Accelerator("mig", "Tesla-T4", "1g.5gb")) is None


def test_attributes_of_a_profile_do_not_change_its_size() -> None:
    plain, media = (device(Accelerator("mig", "NVIDIA-A100-SXM4-40GB", name)) for name in ("1g.5gb", "1g.5gb+me"))
    assert plain is not None
    assert media is not None
    assert (plain.memory_bytes, plain.share) == (media.memory_bytes, media.share)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing is offered"),
        ("gtx9999", "no card is known as 'gtx9999'"),
        ("1g.5gb@t4", "it cannot be divided"),
        ("9g.9gb@a100-40gb", "it has 1g.5gb"),
        ("cpu:lots", "not a positive quantity"),
    ],
)
def test_what_cannot_be_offered_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        offered(text)


def test_a_cpu_is_offered_with_its_memory() -> None:
    assert [(one.kind, one.memory_bytes) for one in offered("cpu:8Gi, t4")] == [
        ("cpu", 8 * 2**30),
        ("gpu", 15636365312),
    ]
