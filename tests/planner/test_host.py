"""What a pod takes of its node: CPU, memory, /dev/shm."""

from __future__ import annotations

from hypothesis import given, strategies as st

from yolo_airflow_provider.planner.host import HostObservation, cpu_task, shared_bytes, training

GIB = 2**30

observed = st.builds(
    HostObservation,
    id=st.integers(1, 99),
    container_bytes=st.none() | st.integers(1, 64 * GIB),
    process_bytes=st.none() | st.integers(1, 64 * GIB),
    limit_bytes=st.none() | st.integers(1, 64 * GIB),
    out_of_memory=st.booleans(),
)


def test_the_loader_has_room_for_every_batch_it_may_have_ready() -> None:
    assert shared_bytes(batch=64, imgsz=1280, workers=8) > 64 * 1280 * 1280 * 3 * 8 * 4
    assert shared_bytes(batch=1, imgsz=32, workers=1) == 256 * 2**20
    assert shared_bytes(batch=64, imgsz=1280, workers=0) == 0


def test_each_bus_error_doubles_shared_memory() -> None:
    once = shared_bytes(batch=16, imgsz=640, workers=4)
    assert shared_bytes(batch=16, imgsz=640, workers=4, too_small=2) == 4 * once


def test_nothing_known_is_an_estimate_by_processes_and_says_so() -> None:
    need = training("mig", workers=4, shared=GIB, cached_bytes=2 * GIB)
    assert need.memory_bytes == 3 * GIB + 2 * GIB + GIB + 2 * GIB
    assert (need.cpu_millicores, need.limited, need.shared_bytes) == (5000, True, GIB)
    assert "nothing measured" in need.why


def test_a_measured_peak_counts_with_a_quarter_more() -> None:
    seen = HostObservation(id=7, container_bytes=4 * GIB, process_bytes=2 * GIB, workers=4)
    need = training("mig", workers=4, shared=GIB, observations=[seen])
    assert need.memory_bytes == 5 * GIB
    assert need.why == "4.00 GiB measured (measurement 7)"


def test_a_peak_of_the_process_alone_leaves_room_for_its_loader_and_shared_memory() -> None:
    seen = HostObservation(id=7, process_bytes=4 * GIB, workers=2)
    assert training("gpu", workers=2, shared=GIB, observations=[seen]).memory_bytes == 7 * GIB


def test_what_the_measured_run_had_not_comes_on_top() -> None:
    seen = HostObservation(id=7, container_bytes=4 * GIB, process_bytes=2 * GIB, workers=2)
    assert training("mig", workers=10, shared=GIB, observations=[seen]).memory_bytes == 5 * GIB + 8 * GIB // 2
    cached = training("mig", workers=2, shared=GIB, cached_bytes=100 * GIB, observations=[seen])
    assert cached.memory_bytes == 105 * GIB


def test_c8_what_was_too_little_is_raised_by_half() -> None:
    failed = HostObservation(id=3, limit_bytes=6 * GIB, out_of_memory=True)
    again = HostObservation(id=4, limit_bytes=9 * GIB, out_of_memory=True)
    assert training("mig", workers=0, shared=0, observations=[failed]).memory_bytes == 9 * GIB
    need = training("mig", workers=0, shared=0, observations=[failed, again])
    assert need.memory_bytes == int(13.5 * GIB)
    assert need.why == "9.00 GiB were too little (measurement 4)"


def test_on_cpu_the_memory_is_the_budget_and_not_decided_here() -> None:
    need = training("cpu", workers=0, shared=0)
    assert (need.memory_bytes, need.limited, need.cpu_millicores) == (None, True, 1000)


def test_a_cpu_task_is_placed_by_a_request_and_not_killed_at_it() -> None:
    assert cpu_task(GIB).limited is False


@given(st.lists(observed, max_size=8), st.integers(0, 16), st.integers(0, 8 * GIB))
def test_a_training_never_gets_less_than_what_failed_or_was_used(
    observations: list[HostObservation], workers: int, shared: int
) -> None:
    need = training("mig", workers=workers, shared=shared, observations=observations)
    assert need.memory_bytes is not None
    for seen in observations:
        if seen.out_of_memory:
            assert need.memory_bytes >= (seen.limit_bytes or 0)
        elif seen.process_bytes:
            assert need.memory_bytes >= seen.process_bytes
            assert need.memory_bytes >= (seen.container_bytes or 0)
    assert need.memory_bytes > shared


@given(st.lists(observed, max_size=6), observed)
def test_more_evidence_never_lowers_the_memory_once_something_is_measured(
    observations: list[HostObservation], more: HostObservation
) -> None:
    measured = [*observations, HostObservation(id=1, process_bytes=GIB)]
    before = training("mig", workers=2, shared=0, observations=measured).memory_bytes
    after = training("mig", workers=2, shared=0, observations=[*measured, more]).memory_bytes
    assert before is not None
    assert after is not None
    assert after >= before
