from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings, strategies as st

from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.cards import Device, cards, device, offered
from yolo_airflow_provider.planner.catalogue import Architecture, architecture, architectures
from yolo_airflow_provider.planner.timing import Job, Timed, cold, expect

A100 = "NVIDIA-A100-SXM4-40GB"
NAMES = st.sampled_from(sorted(architectures()))


def shape(name: str = "yolov8m") -> Architecture:
    known = architecture(name)
    assert known is not None
    return known


def on(accelerator: Accelerator) -> Device:
    found = device(accelerator)
    assert found is not None
    return found


WHOLE = cards()[A100].whole
SMALL, LARGE = (on(offered(f"{profile}@a100-40gb")[0]) for profile in ("1g.5gb", "3g.20gb"))
JOB = Job(imgsz=640, batch=16, images=5000, val_images=500, workers=32)


@settings(max_examples=150, deadline=None)
@given(NAMES, st.integers(1, 128), st.integers(1, 100_000), st.integers(0, 32))
def test_more_images_take_longer_and_more_workers_never(name: str, batch: int, images: int, workers: int) -> None:
    job = Job(imgsz=640, batch=batch, images=images, val_images=images // 10, workers=workers)
    found = cold(shape(name), SMALL, job)
    assert cold(shape(name), SMALL, replace(job, images=images + batch)).expected_seconds >= found.expected_seconds
    assert cold(shape(name), SMALL, replace(job, workers=workers + 1)).expected_seconds <= found.expected_seconds
    assert found.low_seconds < found.expected_seconds < found.high_seconds


@settings(max_examples=60, deadline=None)
@given(NAMES, st.integers(1, 128))
def test_a_larger_slice_of_a_card_is_never_slower(name: str, batch: int) -> None:
    job = replace(JOB, batch=batch)
    times = [cold(shape(name), one, job).expected_seconds for one in (SMALL, LARGE, WHOLE)]
    assert times == sorted(times, reverse=True)


def test_what_bounds_a_training_is_told() -> None:
    assert cold(shape("yolov8x"), on(offered("gtx1080")[0]), JOB).bound_by == "compute"
    assert cold(shape("yolov8n"), SMALL, JOB).bound_by == "memory_bandwidth"
    assert cold(shape("yolov8n"), WHOLE, replace(JOB, workers=2)).bound_by == "data_loading"
    assert cold(shape("yolov8n"), WHOLE, replace(JOB, batch=1, workers=1000)).bound_by == "overhead"


def test_the_same_run_on_this_device_is_the_best_evidence() -> None:
    ran = Timed(id=7, batch=16, epoch_seconds=80.0, images=2500, device=SMALL)
    found = expect([ran, replace(ran, id=8, batch=4, epoch_seconds=500.0)], shape(), SMALL, JOB)
    assert found is not None
    assert (found.expected_seconds, found.basis, found.evidence) == (160.0, "measured", (7,))


def test_another_batch_is_scaled_and_less_sure() -> None:
    found = expect([Timed(id=7, batch=4, epoch_seconds=160.0, images=5000, device=SMALL)], shape(), SMALL, JOB)
    assert found is not None
    assert (found.basis, found.evidence) == ("scaled", (7,))
    assert found.high_seconds - found.low_seconds > 0.3 * found.expected_seconds


def test_another_slice_corrects_the_prediction() -> None:
    predicted = cold(shape(), LARGE, JOB).expected_seconds
    twice = cold(shape(), SMALL, JOB).expected_seconds * 2
    found = expect([Timed(id=3, batch=16, epoch_seconds=twice, images=5000, device=SMALL)], shape(), LARGE, JOB)
    assert found is not None
    assert (round(found.expected_seconds / predicted, 6), found.basis) == (2.0, "scaled")


def test_nothing_known_says_nothing() -> None:
    assert expect([], None, None, JOB) is None


def test_a_whole_training_is_its_epochs_that_are_left() -> None:
    an_epoch = cold(shape(), SMALL, JOB)
    left = an_epoch.total(100, done=40)
    assert left.expected_seconds == an_epoch.expected_seconds * 60
    assert an_epoch.total(3, done=5).expected_seconds == 0
