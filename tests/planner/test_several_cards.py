"""A batch that whole cards share out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from yolo_airflow_provider.gpus.cards import device, offered
from yolo_airflow_provider.planner.catalogue import architecture
from yolo_airflow_provider.planner.choice import Question, cannot_share, choose
from yolo_airflow_provider.planner.need import GPU, Workload, needed
from yolo_airflow_provider.planner.timing import Job, cold

WHOLE = offered("gpu@a100-40gb")[0]
SLICE = offered("3g.20gb@a100-40gb")[0]
SHAPE = architecture("yolov8x")
assert SHAPE is not None
WORK = Workload(SHAPE, 640, "amp", optimizer="SGD")


def question(cards: int, batch: int | None = None, images: int | None = 10_000) -> Question:
    work = replace(WORK, ranks=cards)
    return Question("yolov8x", 640, WHOLE, batch=batch, images=images, max_batch=512, workload=work, cards=cards)


@given(share=st.integers(1, 200), cards=st.integers(2, 8))
def test_a_rank_holds_its_share_and_the_buckets_of_the_gradients(share: int, cards: int) -> None:
    assert SHAPE is not None
    alone, together = needed(WORK, share), needed(replace(WORK, ranks=cards), share * cards)
    known = math.exp(GPU.families["yolov8"])
    assert together.reserved - alone.reserved == pytest.approx(known * 4 * SHAPE.parameters, abs=2)


@pytest.mark.parametrize("cards", [2, 3, 4, 8])
def test_the_batch_is_shared_out_evenly_and_named_as_a_whole(cards: int) -> None:
    chosen = choose(question(cards), [])
    assert chosen.batch % cards == 0
    assert all(candidate.batch % cards == 0 for candidate in chosen.candidates)
    assert chosen.batch > choose(question(1), []).batch
    assert f"on {cards}x NVIDIA-A100-SXM4-40GB: batch {chosen.batch}" in chosen.sentence


def test_slices_are_refused_with_the_reason() -> None:
    assert cannot_share(WHOLE) == ""
    with pytest.raises(ValueError, match=r"Duplicate GPU detected.*one larger slice"):
        choose(replace(question(2), accelerator=SLICE), [])


@pytest.mark.parametrize(
    ("batch", "images", "said"),
    [(9, 1000, "batch=9 cannot be shared out among 2 cards"), (None, 1, "1 training images cannot be shared out")],
)
def test_what_cannot_be_shared_out_is_refused(batch: int | None, images: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        choose(question(2, batch, images), [])


def test_more_cards_are_faster_but_for_what_they_exchange() -> None:
    assert SHAPE is not None
    here = device(WHOLE)
    one, two, eight = (cold(SHAPE, here, Job(640, 64, 100_000, workers=16, ranks=ranks)) for ranks in (1, 2, 8))
    assert one.expected_seconds / 2 <= two.expected_seconds < one.expected_seconds
    assert one.expected_seconds / 8 <= eight.expected_seconds < two.expected_seconds
