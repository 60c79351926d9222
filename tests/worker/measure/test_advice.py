"""What a measurement says about the next run. Each sentence carries the numbers that it stands on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from yolo_airflow_provider.contract import Measurement
from yolo_airflow_provider.worker.measure.advice import Circumstances, advise, growing

GIB = 2**30
MIB = 2**20
KNOWN = Circumstances(
    on_cpu=False,
    imgsz=640,
    cpu_cores=4.0,
    seconds=1000.0,
    images=10_000,
    image_bytes=2 * MIB,
    epochs_ahead=100,
    memory_limit_bytes=32 * GIB,
)


def measured(**changes: Any) -> Measurement:
    fields: dict[str, Any] = {
        "part": "train",
        "batch": 16,
        "precision": "amp",
        "optimizer": "SGD",
        "workers": 8,
        "peak_rss_bytes": 4 * GIB,
        "peak_container_bytes": 6 * GIB,
        "data_wait_percent": 3.0,
        "iowait_percent": 1.0,
        "throttled_percent": 0.0,
        "rss_growth_bytes": 0,
        "read_bytes": 20 * 10**9,
    }
    return Measurement(**(fields | changes))


def only(measurement: Measurement, known: Circumstances = KNOWN) -> str:
    (sentence,) = advise(measurement, known)
    return sentence


def test_a_run_that_nothing_held_up_needs_no_advice() -> None:
    assert advise(measured(), KNOWN) == ()


def test_what_was_not_measured_is_not_advised_on() -> None:
    nothing = Measurement(part="train", batch=1, precision="fp32", optimizer="SGD", workers=0)
    assert advise(nothing, Circumstances(on_cpu=True, imgsz=64)) == ()


def test_c7_a_throttled_run_wants_a_higher_cpu_limit() -> None:
    said = only(measured(throttled_percent=34.0))
    assert said == (
        "the CPU limit of 4 cores stopped the run in 34 % of its scheduling periods: raise the container's CPU limit"
        " to about 9 cores"
    )
    assert advise(measured(throttled_percent=10.0), KNOWN) == ()


def test_c7_more_cores_than_loader_processes_are_not_proposed() -> None:
    said = only(measured(throttled_percent=34.0, workers=2))
    assert said.endswith("raise the container's CPU limit")


def test_c9_memory_that_will_not_last_is_told_with_its_numbers() -> None:
    said = only(measured(rss_growth_bytes=400 * MIB))
    assert said.startswith("memory grows by 400 MiB an epoch from 6.00 GiB: 100 more epochs would take 45.06 GiB")
    assert "the limit of 32.00 GiB holds 66" in said
    assert advise(measured(rss_growth_bytes=200 * MIB), KNOWN) == ()


def test_c9_without_a_container_the_process_is_what_grows() -> None:
    said = only(measured(rss_growth_bytes=400 * MIB, peak_container_bytes=None))
    assert "from 4.00 GiB" in said
    assert advise(measured(rss_growth_bytes=400 * MIB), replace(KNOWN, memory_limit_bytes=None)) == ()


def test_c9_a_limit_that_is_passed_already_holds_no_epoch() -> None:
    said = growing(MIB, 3 * GIB, 1, 2 * GIB)
    assert said is not None
    assert "holds 0" in said


def test_memory_that_grew_in_a_training_that_is_over_needs_no_word() -> None:
    assert growing(GIB, 3 * GIB, 0, 2 * GIB) is None


def test_c13_waiting_for_data_is_no_reason_for_a_larger_slice() -> None:
    said = only(measured(data_wait_percent=45.0))
    assert said == (
        "45 % of the training waited for data with 8 loader processes on 4 cores: give it more cores and workers, or"
        " cache the images in memory (cache='ram'); a larger slice would not make it faster"
    )
    assert advise(measured(data_wait_percent=20.0), KNOWN) == ()


def test_c13_a_cache_that_is_on_is_not_proposed() -> None:
    assert "cache" not in only(measured(data_wait_percent=45.0), replace(KNOWN, cache="ram"))


def test_c13_on_cpu_there_are_no_loader_processes_and_no_slice() -> None:
    said = only(measured(data_wait_percent=45.0, workers=0), replace(KNOWN, on_cpu=True))
    assert said.startswith("45 % of the training waited for data, which on cpu is read between the steps")
    assert "slice" not in said


@pytest.mark.parametrize("busy", [{"iowait_percent": 31.0}, {"io_pressure_percent": 60.0}])
def test_c14_slow_storage_wants_the_data_near_the_node(busy: dict[str, float]) -> None:
    said, waiting = advise(measured(data_wait_percent=45.0, **busy), KNOWN)
    assert "20.0 MB/s read" in said
    assert "copy_images=True copies them into the workspace: if that is on a local disk" in said
    assert f"{next(iter(busy.values())):.0f} %" in said
    assert "larger slice would not" in waiting


def test_c14_a_busy_node_is_not_this_runs_storage() -> None:
    assert advise(measured(iowait_percent=60.0, io_pressure_percent=80.0), KNOWN) == ()


def test_c14_nothing_is_said_of_a_rate_that_is_not_known() -> None:
    said, _ = advise(measured(data_wait_percent=45.0, iowait_percent=31.0, read_bytes=None), KNOWN)
    assert "MB/s" not in said


SMALL = replace(KNOWN, image_bytes=84 * 1024, images=2_000)
SLOW = {"data_wait_percent": 45.0, "iowait_percent": 31.0}


def test_small_files_are_not_what_is_waited_for_where_the_storage_is_idle() -> None:
    assert "45 %" in only(measured(data_wait_percent=45.0, iowait_percent=0.1), SMALL)


def test_a_cache_on_the_same_volume_is_never_proposed() -> None:
    for known in (SMALL, replace(SMALL, images=20_000), replace(SMALL, memory_limit_bytes=None)):
        assert not any("'disk'" in sentence for sentence in advise(measured(**SLOW), known))


def test_c15_small_files_are_kept_decoded_where_memory_holds_them() -> None:
    _, waiting, said = advise(measured(**SLOW), SMALL)
    assert "45 %" in waiting
    assert said == (
        "2,000 images of 84 KiB on average cost opening more than reading: cache='ram' keeps them decoded in up to"
        " 2.29 GiB, and 26.00 GiB of memory are free"
    )


def test_c15_where_memory_does_not_hold_them_they_go_on_the_volume() -> None:
    *_, said = advise(measured(**SLOW), replace(SMALL, images=20_000))
    assert "a volume local to the node helps" in said
    assert "in memory (cache='ram') they would take up to 22.89 GiB, and 26.00 GiB are free" in said


def test_c15_without_a_known_limit_both_are_named() -> None:
    *_, said = advise(measured(**SLOW), replace(SMALL, memory_limit_bytes=None))
    assert "cache='ram'" in said
    assert "a volume local to the node" in said


@pytest.mark.parametrize(
    "known",
    [
        replace(SMALL, image_bytes=256 * 1024.0),
        replace(SMALL, image_bytes=None),
        replace(SMALL, images=None),
        replace(SMALL, cache="disk"),
    ],
)
def test_c15_large_unknown_or_cached_files_are_not_spoken_of(known: Circumstances) -> None:
    assert len(advise(measured(**SLOW), known)) == 2


def test_c15_small_files_that_nobody_waits_for_are_fine() -> None:
    assert advise(measured(), SMALL) == ()


def test_what_ends_a_run_comes_first() -> None:
    found = advise(
        measured(rss_growth_bytes=GIB, throttled_percent=50.0, data_wait_percent=45.0, iowait_percent=31.0), SMALL
    )
    assert [sentence.split()[0] for sentence in found] == ["memory", "the", "the", "45", "2,000"]
