from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from yolo_airflow_provider.worker.measure.growth import growth_bytes

MIB = 2**20


@pytest.mark.parametrize("series", [[], [5], [5, 9], list(range(7))])
def test_c9_two_epochs_say_nothing(series: list[int]) -> None:
    assert growth_bytes(series) is None


def test_c9_a_leak_is_told_by_its_size_an_epoch() -> None:
    assert growth_bytes([800 * MIB + epoch * 12 * MIB for epoch in range(20)]) == 12 * MIB


def test_c9_the_first_epochs_caches_are_no_leak() -> None:
    assert growth_bytes([500 * MIB, *[900 * MIB] * 7]) == 0
    assert growth_bytes([500 * MIB, *[900 * MIB] * 15, *[1200 * MIB] * 15]) == 0  # one step is not growth


def test_c9_odd_epochs_do_not_move_it() -> None:
    noise = random.Random(4)
    series = [1000 * MIB + epoch * 8 * MIB + noise.randrange(-MIB, MIB) for epoch in range(30)]
    for epoch in (7, 15, 29):
        series[epoch] += 900 * MIB  # validation plots, another cache
    assert growth_bytes(series) == pytest.approx(8 * MIB, rel=0.15)


def test_c9_memory_that_shrinks_does_not_grow() -> None:
    assert growth_bytes([900 - 10 * epoch for epoch in range(9)]) == 0


def test_c9_a_long_series_is_thinned_out() -> None:
    assert growth_bytes([epoch * MIB for epoch in range(5000)]) == MIB


@given(series=st.lists(st.integers(0, 2**40), min_size=8, max_size=40))
def test_c9_it_is_never_negative_and_never_more_than_the_largest_step(series: list[int]) -> None:
    growth = growth_bytes(series)
    assert growth is not None
    steps = [after - before for before, after in pairwise(series[1:])]
    assert 0 <= growth <= max([0, *steps])


def test_noise_around_one_level_is_hardly_ever_growth() -> None:
    """Asked after every epoch, as a training asks, of a hundred trainings that use 3.3 of 4 GiB."""
    noise = random.Random(11)
    told = 0
    for _ in range(100):
        series = [round(noise.gauss(3300, 80) * MIB) for _ in range(40)]
        told += any(_passes_the_limit(series[:epochs], epochs_left=300 - epochs) for epochs in range(8, 41))
    assert told <= 3


def _passes_the_limit(series: list[int], *, epochs_left: int) -> bool:
    growth = growth_bytes(series) or 0
    return max(series) + growth * epochs_left > 4096 * MIB


@given(level=st.integers(100, 10_000), leak=st.integers(10, 100), seed=st.integers(0, 1000))
def test_a_leak_larger_than_the_noise_is_told_after_eight_epochs(level: int, leak: int, seed: int) -> None:
    noise = random.Random(seed)
    growth = growth_bytes([(level + epoch * leak + noise.randrange(leak // 3)) * MIB for epoch in range(8)])
    assert growth is not None
    assert growth == pytest.approx(leak * MIB, rel=0.3)
