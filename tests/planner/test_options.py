from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.cards import device, offered
from yolo_airflow_provider.planner import timing
from yolo_airflow_provider.planner.catalogue import architecture, architectures
from yolo_airflow_provider.planner.choice import Choice, NothingFits, Question, choose
from yolo_airflow_provider.planner.evidence import Observation
from yolo_airflow_provider.planner.need import Workload
from yolo_airflow_provider.planner.options import Objective, Option, best

A100 = offered("a100-40gb")
NAMES = st.sampled_from(sorted(architectures()))


def ask(name: str, accelerator: Accelerator, *, imgsz: int = 640, min_batch: int = 4) -> Question:
    known = architecture(name)
    assert known is not None
    job = timing.Job(imgsz=imgsz, batch=1, images=5000)
    return Question(
        model=name,
        imgsz=imgsz,
        accelerator=accelerator,
        images=5000,
        min_batch=min_batch,
        workload=Workload(known, imgsz, "amp"),
        time=lambda batch: timing.cold(
            known, device(accelerator), timing.Job(imgsz=job.imgsz, batch=batch, images=job.images)
        ),
        epochs=10,
    )


def options(name: str) -> list[Option]:
    found = []
    for one in A100:
        try:
            found.append(Option(one, choose(ask(name, one), []), epochs=10))
        except NothingFits:
            continue
    return found


@pytest.mark.parametrize("name", ["yolov8n", "yolov8m", "yolov8x"])
def test_each_objective_takes_what_is_best_by_it(name: str) -> None:
    found = options(name)
    taken = {goal: found[best(found, goal)] for goal in ("cost", "time", "fit")}
    near = 1.03  # as good as equal, so that a smaller one may be taken
    assert taken["cost"].card_seconds <= near * min(one.card_seconds for one in found)
    assert taken["time"].seconds <= near * min(one.seconds for one in found)
    assert taken["fit"].accelerator.memory_bytes == min(one.accelerator.memory_bytes or 0 for one in found)
    assert taken["time"].seconds <= taken["cost"].seconds <= taken["fit"].seconds * near


@pytest.mark.parametrize("goal", ["cost", "time", "fit"])
def test_what_is_free_comes_first(goal: Objective) -> None:
    found = [Option(one.accelerator, one.choice, one.epochs, free=False) for one in options("yolov8n")]
    found[3] = Option(found[3].accelerator, found[3].choice, found[3].epochs, free=True)
    assert best(found, goal) == 3


def test_without_a_time_the_smallest_is_taken() -> None:
    found = [
        Option(one.accelerator, Choice(one.choice.batch, one.choice.why, one.choice.memory, None, (), (), ""))
        for one in options("yolov8n")
    ]
    assert best(found, "cost") == 0


@settings(max_examples=100, deadline=None)
@given(NAMES, st.sampled_from([320, 640, 960]))
def test_a_larger_slice_never_gets_a_smaller_batch(name: str, imgsz: int) -> None:
    batches = []
    for one in sorted(A100, key=lambda one: one.memory_bytes or 0):
        try:
            chosen = choose(ask(name, one, imgsz=imgsz), [])
        except NothingFits:
            continue
        batches.append(chosen.batch)
    assert batches == sorted(batches)


@settings(max_examples=150, deadline=None)
@given(NAMES, st.integers(1, 64), st.lists(st.integers(1, 64), max_size=3))
def test_running_out_of_memory_never_raises_the_next_batch(name: str, failed: int, ran: list[int]) -> None:
    slice_ = A100[1]
    assert slice_.memory_bytes is not None
    known = [
        Observation(id=number, batch=batch, peak_bytes=2**30 + batch * 10**8, full_run=True, images=5000)
        for number, batch in enumerate(sorted(set(ran)))
    ]
    failure = Observation(
        id=99, batch=failed, peak_bytes=slice_.memory_bytes, out_of_memory=True, budget_bytes=slice_.memory_bytes
    )
    question = ask(name, slice_, min_batch=1)
    try:
        before = choose(question, known)
    except NothingFits:
        return
    try:
        after = choose(question, [*known, failure])
    except NothingFits:
        return
    assert after.batch <= before.batch
    assert 99 in after.evidence


def test_a_refusal_names_what_would_fit() -> None:
    with pytest.raises(NothingFits) as refused:
        choose(ask("yolov8x", A100[0], imgsz=1280), [])
    said = str(refused.value)
    assert "for batch 4" in said
    assert "imgsz=" in said
    assert "GiB of memory" in said


def test_a_batch_that_is_known_to_be_slower_is_not_taken() -> None:
    question = ask("yolov8n", A100[1])
    fast, slow = (
        Observation(id=number, batch=batch, peak_bytes=2**30 + batch * 10**8, images_per_second=rate)
        for number, batch, rate in ((1, 16, 200.0), (2, 32, 150.0))
    )
    assert 16 <= choose(question, [fast, slow]).batch < 32
    assert choose(question, [fast]).batch > 32
