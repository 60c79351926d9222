from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings, strategies as st

from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.planner.choice import (
    FALLBACK_BATCH,
    Choice,
    NothingFits,
    Question,
    candidate_batches,
    choose,
)
from yolo_airflow_provider.planner.evidence import Observation, sort_evidence
from yolo_airflow_provider.planner.memory import fit

GIB = 2**30
FIXED, PER_IMAGE = 900 * 2**20, 60 * 2**20


def probe(batch: int, *, id: int = 1, peak: int | None = None) -> Observation:
    return Observation(id=id, batch=batch, peak_bytes=peak or FIXED + batch * PER_IMAGE)


def training(batch: int, *, id: int = 9, peak: int | None = None) -> Observation:
    return replace(probe(batch, id=id, peak=peak), full_run=True, epoch_seconds=30.0, images=200)


def failure(batch: int, budget: int, *, id: int = 20) -> Observation:
    return Observation(id=id, batch=batch, peak_bytes=budget, out_of_memory=True, budget_bytes=budget, full_run=True)


def question(budget: int | None = 3 * GIB, **changes: object) -> Question:
    cpu = Accelerator(kind="cpu", memory_bytes=budget)
    return replace(Question(model="yolov8n", imgsz=320, accelerator=cpu), **changes)  # type: ignore[arg-type]


PROBES = [probe(2, id=1), probe(8, id=2), probe(16, id=3)]


def test_nothing_known_is_an_honest_fallback() -> None:
    chosen = choose(question(), [])
    assert (chosen.batch, chosen.why, chosen.memory) == (FALLBACK_BATCH, "fallback", None)
    assert "nothing measured yet" in chosen.sentence
    assert "fixed fallback" in chosen.sentence


def test_the_fallback_is_never_larger_than_the_data_set() -> None:
    assert choose(question(images=5), []).batch == 5


def test_a_probe_chooses_with_room_for_what_a_training_adds() -> None:
    chosen = choose(question(), PROBES)
    assert chosen.why == "line"
    assert chosen.memory is not None
    assert chosen.memory.high_bytes <= 0.9 * 3 * GIB
    assert chosen.evidence == (1, 2, 3)
    assert "3 probe points" in chosen.sentence


def test_a_training_narrows_the_interval_and_raises_the_batch() -> None:
    first = choose(question(), PROBES)
    then = choose(question(), [*PROBES, training(first.batch)])
    assert then.batch > first.batch
    assert 9 in then.evidence
    assert f"the training at batch {first.batch}" in then.sentence


def test_the_same_batch_again_is_predicted_as_measured() -> None:
    peak = int(2.4 * GIB)
    chosen = choose(question(max_batch=20), [*PROBES, training(20, peak=peak)])
    assert chosen.memory is not None
    assert (chosen.why, chosen.batch, chosen.memory.expected_bytes) == ("measured", 20, peak)


def test_out_of_memory_is_never_tried_again_on_as_little() -> None:
    before = choose(question(), [*PROBES, training(12)])
    after = choose(question(), [*PROBES, training(12), failure(before.batch, 3 * GIB)])
    assert after.batch < before.batch
    assert "ran out of memory" in next(c.why_not for c in after.candidates if c.batch == before.batch)


def test_what_fit_before_is_taken_again_though_it_was_tight() -> None:
    tight = training(8, peak=int(2.9 * GIB))
    chosen = choose(question(), [failure(16, 3 * GIB), tight])
    assert (chosen.batch, chosen.why) == (8, "measured")
    assert choose(question(int(2.8 * GIB)), [failure(16, 3 * GIB), tight]).batch < 8


def test_out_of_memory_without_other_evidence_halves() -> None:
    assert choose(question(), [failure(16, 3 * GIB)]).batch == 8
    assert choose(question(), [failure(16, 3 * GIB), failure(8, 3 * GIB)]).batch == 4


def test_more_memory_than_what_failed_is_not_ruled_out() -> None:
    ladder = [*PROBES, failure(32, 2 * GIB)]
    assert choose(question(8 * GIB), ladder).batch > 32


def test_an_asked_batch_is_kept_unless_it_is_known_not_to_fit() -> None:
    assert choose(question(batch=30), []).sentence.startswith("yolov8n at 320 on cpu: batch 30 as asked")
    chosen = choose(question(batch=30), [*PROBES, failure(30, 3 * GIB)])
    assert chosen.batch < 30
    assert "instead of 30, which does not fit" in chosen.sentence


@pytest.mark.parametrize("batch", [0, -1, -16])
def test_a_batch_that_is_none_is_refused(batch: int) -> None:
    with pytest.raises(ValueError, match=f"batch={batch} is not a batch size"):
        choose(question(batch=batch), [])


def test_a_batch_larger_than_the_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match="batch=64 is larger than the data set's 20 training images"):
        choose(question(batch=64, images=20), [])


def test_a_budget_smaller_than_batch_1_needs_is_refused_with_the_numbers() -> None:
    with pytest.raises(NothingFits, match=r"needs about 1\.04 GiB for batch 1, the budget on cpu is 0\.75 GiB"):
        choose(question(int(0.75 * GIB)), PROBES)


def test_a_budget_below_the_runtime_is_refused_unseen() -> None:
    with pytest.raises(NothingFits, match="torch and Ultralytics alone take"):
        choose(question(250 * 2**20), [])


def test_batch_1_out_of_memory_is_the_end() -> None:
    with pytest.raises(NothingFits, match="use a smaller imgsz or model, or more memory"):
        choose(question(), [failure(1, 3 * GIB)])


def test_candidates_reach_the_limit() -> None:
    assert candidate_batches(1) == [1]
    assert candidate_batches(13) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13]
    assert candidate_batches(64)[-1] == 64
    assert candidate_batches(100)[-2:] == [96, 100]


def test_two_trainings_side_by_side_make_no_slope_of_their_own() -> None:
    near = [training(18, id=8, peak=int(2.20 * GIB)), training(20, id=9, peak=int(2.17 * GIB))]
    assert choose(question(), [*PROBES, *near]).batch < 30
    assert choose(question(), near).batch < 30


def test_trainings_far_apart_make_a_line_without_a_probe() -> None:
    chosen = choose(question(), [training(4, id=8), training(16, id=9)])
    assert chosen.why == "line"
    assert chosen.batch > 16


def test_epoch_time_scales_with_the_images() -> None:
    chosen = choose(question(images=400), [*PROBES, training(12)])
    assert chosen.epoch_seconds == pytest.approx(60)


# Properties.

peaks = st.integers(min_value=100 * 2**20, max_value=200 * GIB)
observed = st.builds(
    Observation,
    id=st.integers(1, 1000),
    batch=st.integers(1, 256),
    peak_bytes=peaks,
    full_run=st.booleans(),
    out_of_memory=st.just(False),
)
failures = st.builds(failure, st.integers(1, 256), peaks, id=st.integers(1001, 2000))
histories = st.lists(st.one_of(observed, failures), max_size=12)
budgets = st.integers(min_value=GIB, max_value=140 * GIB)


def choice_or_none(asked: Question, history: list[Observation]) -> Choice | None:
    try:
        return choose(asked, history)
    except NothingFits:
        return None


@settings(deadline=None, max_examples=300)
@given(history=histories, batch=st.integers(1, 400), more=st.integers(1, 400))
def test_more_images_never_predict_less_memory(history: list[Observation], batch: int, more: int) -> None:
    model = fit(sort_evidence(history))
    smaller, larger = model.estimate(batch), model.estimate(batch + more)
    assert (smaller is None) == (larger is None)
    if smaller is not None and larger is not None:
        assert larger.expected_bytes >= smaller.expected_bytes
        assert larger.high_bytes >= smaller.high_bytes
        assert smaller.low_bytes <= smaller.expected_bytes <= smaller.high_bytes


@settings(deadline=None, max_examples=300)
@given(history=histories, budget=budgets, more=st.integers(0, 100 * GIB))
def test_more_memory_never_gets_a_smaller_batch(history: list[Observation], budget: int, more: int) -> None:
    smaller = choice_or_none(question(budget), history)
    larger = choice_or_none(question(budget + more), history)
    if smaller is not None:
        assert larger is not None
        assert larger.batch >= smaller.batch


@settings(deadline=None, max_examples=300)
@given(history=histories, failed=st.integers(1, 256), budget=budgets)
def test_out_of_memory_never_raises_the_next_batch(history: list[Observation], failed: int, budget: int) -> None:
    before = choice_or_none(question(budget), history)
    after = choice_or_none(question(budget), [*history, failure(failed, budget)])
    if after is not None:
        assert before is not None
        assert after.batch <= before.batch
        assert after.batch < failed


@settings(deadline=None, max_examples=300)
@given(history=histories, budget=budgets, images=st.integers(1, 500))
def test_a_choice_is_explained_and_within_its_limits(history: list[Observation], budget: int, images: int) -> None:
    chosen = choice_or_none(question(budget, images=images), history)
    assume(chosen is not None)
    assert chosen is not None
    assert 1 <= chosen.batch <= min(images, 64)
    assert set(chosen.evidence) == {o.id for o in history}
    assert f"batch {chosen.batch}" in chosen.sentence
    if chosen.why not in ("fallback", "given"):
        assert chosen.memory is not None
        proven = any(o.full_run and o.batch == chosen.batch and (o.peak_bytes or 0) <= budget for o in history)
        assert chosen.memory.high_bytes <= 0.9 * budget or proven
