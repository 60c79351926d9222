"""A probe's points on record, and what the next try makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.contract import FailureClass, JobSpec, Measurement, ModelFacts, ProbeJob
from yolo_airflow_provider.worker import models, probe as module
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.measure.device import Cpu
from yolo_airflow_provider.worker.points import PointLog, Room
from yolo_airflow_provider.worker.probe import Probe

GIB = 2**30
FACTS = ModelFacts(name="yolov8n", task="detect", parameters=3_011_433, stride=32, classes=3)
MakeJob = Callable[..., dict[str, Any]]


def point(batch: int, failure: FailureClass | None = None) -> Measurement:
    return Measurement(
        part=f"batch-{batch}",
        failure_class=failure,
        batch=batch,
        precision="fp32",
        optimizer="AdamW",
        workers=0,
        peak_device_bytes=batch * 2**28,
    )


class Tries:
    """The same probe, try after try, in one folder."""

    def __init__(self, make_job: MakeJob) -> None:
        self._make_job = make_job

    def spec(self, try_number: int, *, budget_bytes: int | None = None, **changes: Any) -> JobSpec:
        fields = {"model": "yolov8n", "data": "d.yaml", "imgsz": 64, "batches": [2, 8, 16]} | changes
        raw = self._make_job("probe", try_number=try_number, budget_bytes=budget_bytes, **fields)
        Path(raw["run_folder"]).mkdir(parents=True, exist_ok=True)
        return JobSpec.from_json(json.dumps(raw))

    def log(self, try_number: int, *, limit_bytes: int | None = 4 * GIB, **changes: Any) -> PointLog:
        spec = self.spec(try_number, **changes)
        assert isinstance(spec.job, ProbeJob)
        return PointLog(spec, spec.job, Fence(Path(spec.run_folder), try_number), limit_bytes=limit_bytes)

    def measure(self, try_number: int, batch: int, **changes: Any) -> None:
        log = self.log(try_number, **changes)
        log.started(batch)
        log.measured(point(batch), FACTS)


@pytest.fixture
def tries(make_job: MakeJob) -> Tries:
    return Tries(make_job)


def test_nothing_is_known_to_the_first_try(tries: Tries) -> None:
    found = tries.log(1).earlier()
    assert (found.points, found.vanished, found.model) == ({}, set(), None)


def test_points_of_all_earlier_tries_are_known_by_their_batch(tries: Tries) -> None:
    tries.measure(1, 2)
    tries.measure(2, 8)
    tries.log(2).started(16)
    found = tries.log(3).earlier()
    assert found.points == {2: point(2), 8: point(8)}
    assert found.vanished == {16}
    assert found.model == FACTS


def test_a_pod_that_restarted_knows_its_own_points(tries: Tries) -> None:
    tries.measure(1, 2)
    assert set(tries.log(1).earlier().points) == {2}


@pytest.mark.parametrize(
    "change",
    [
        {"model": "yolov8s"},
        {"data": "other.yaml"},
        {"imgsz": 128},
        {"amp": False},
        {"optimizer": "SGD"},
        {"steps": 9},
        {"task": "segment"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_points_of_another_probe_are_not_this_ones(change: dict[str, Any], tries: Tries) -> None:
    tries.measure(1, 2)
    tries.log(1).started(8)
    found = tries.log(2, **change).earlier()
    assert (found.points, found.vanished) == ({}, set())


def test_other_batches_and_loaders_make_no_other_probe(tries: Tries) -> None:
    tries.measure(1, 2)
    assert set(tries.log(2, batches=[2, 4], workers=3, seed=7).earlier().points) == {2}


def test_a_batch_that_ended_for_another_reason_is_measured_again(tries: Tries) -> None:
    log = tries.log(1)
    log.started(8)
    log.ended(8, FailureClass.PREEMPTED)
    found = tries.log(2).earlier()
    assert (found.points, found.vanished) == ({}, set())


@pytest.mark.parametrize("more", [{"limit_bytes": 8 * GIB}, {"budget_bytes": 3 * GIB}], ids=["container", "budget"])
def test_what_did_not_fit_is_tried_again_in_more_memory(more: dict[str, int], tries: Tries) -> None:
    log = tries.log(1, budget_bytes=2 * GIB)
    log.started(8)
    log.measured(point(8, FailureClass.HOST_OOM), FACTS)
    log.started(16)
    same = tries.log(2, budget_bytes=2 * GIB).earlier()
    assert same.points == {8: point(8, FailureClass.HOST_OOM)}
    assert same.vanished == {16}
    larger = tries.log(2, **({"budget_bytes": 2 * GIB} | more)).earlier()
    assert (larger.points, larger.vanished) == ({}, set())


def test_memory_that_is_not_known_is_not_more() -> None:
    assert not Room(None, None).is_larger_than(Room(GIB, GIB))
    assert not Room(GIB, GIB).is_larger_than(Room(None, None))
    assert not Room(GIB, GIB).is_larger_than(Room(GIB, GIB))


def test_a_line_that_a_kill_cut_off_takes_no_other_with_it(tries: Tries) -> None:
    tries.measure(1, 2)
    path = Path(tries.spec(1).run_folder) / "probe-1.json"
    with path.open("a") as file:
        file.write('{"batch": 8, "measure')
    tries.log(1).started(16)
    found = tries.log(2).earlier()
    assert (set(found.points), found.vanished) == ({2}, {16})


@pytest.mark.parametrize("line", ["{}", "[]", '{"batch": "x"}', '{"batch": 2, "measurement": {"surprise": 1}}'])
def test_lines_of_another_version_are_passed_over(line: str, tries: Tries) -> None:
    tries.measure(1, 2)
    path = Path(tries.spec(1).run_folder) / "probe-1.json"
    known = json.loads(path.read_text().splitlines()[0])
    raw = json.loads(line)
    strange = raw | {"probe": known["probe"], "room": {"surprise": 1}} if isinstance(raw, dict) else raw
    path.write_text(path.read_text() + json.dumps(strange) + "\n")
    assert tries.log(2).earlier().points == {2: point(2)}


def test_a_zombie_puts_no_point_on_record(tries: Tries) -> None:
    zombie = tries.log(1)
    zombie.started(2)
    spec = tries.spec(2)
    Fence(Path(spec.run_folder), 2).take()
    with pytest.raises(JobError, match="has taken over"):
        zombie.measured(point(2), FACTS)
    assert tries.log(2).earlier().points == {}


@pytest.fixture
def run_probe(tries: Tries, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[int], Any]]:
    """Run a try whose points need no training; returns the batches that it measured, and its result."""
    monkeypatch.setattr(models, "resolve", lambda *_, **__: models.ModelSource("yolov8n", "y.yaml", weights=False))
    monkeypatch.setattr(module, "_read_crowd", lambda _: module._Crowd([(Path("i"), Path("l"))] * 32, [], {}))

    def run(try_number: int, **changes: Any) -> tuple[list[int], Any]:
        spec = tries.spec(try_number, **changes)
        assert isinstance(spec.job, ProbeJob)
        work = Probe(spec, spec.job, Cpu(), Fence(Path(spec.run_folder), try_number))
        measured: list[int] = []

        def measure(batch: int, *_: Any) -> None:
            measured.append(batch)
            work._facts = FACTS
            work._log.measured(point(batch), FACTS)
            work._points.append(point(batch))

        monkeypatch.setattr(work, "_measure", measure)
        return measured, work.run(None)  # type: ignore[arg-type]

    return run


def test_the_next_try_measures_what_is_missing(
    tries: Tries, run_probe: Callable[..., tuple[list[int], Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    tries.measure(1, 2, limit_bytes=None)
    measured, result = run_probe(2)
    assert measured == [8, 16]
    assert [found.batch for found in result.measurements] == [2, 8, 16]
    assert "probe: batch 2 was measured by an earlier try" in capsys.readouterr().out
    again, result = run_probe(3)
    assert again == []
    assert [found.batch for found in result.measurements] == [2, 8, 16]
    assert result.model == FACTS


def test_a_batch_at_which_a_try_vanished_is_left_out_with_the_larger_ones(
    tries: Tries, run_probe: Callable[..., tuple[list[int], Any]]
) -> None:
    tries.measure(1, 2, limit_bytes=None)
    tries.log(1, limit_bytes=None).started(8)
    measured, result = run_probe(2)
    assert measured == []
    assert [found.batch for found in result.measurements] == [2]
    assert "while it measured batch 8: it is left out" in result.notes[1]


def test_the_smallest_batch_is_tried_again_since_a_probe_of_nothing_is_none(
    tries: Tries, run_probe: Callable[..., tuple[list[int], Any]]
) -> None:
    tries.log(1, limit_bytes=None).started(2)
    measured, _ = run_probe(2)
    assert measured == [2, 8, 16]


def test_a_batch_that_is_known_not_to_fit_ends_the_probe(
    tries: Tries, run_probe: Callable[..., tuple[list[int], Any]]
) -> None:
    tries.measure(1, 2, limit_bytes=None)
    tries.log(1, limit_bytes=None).measured(point(8, FailureClass.HOST_OOM), FACTS)
    measured, result = run_probe(2)
    assert measured == []
    assert [(found.batch, found.failure_class) for found in result.measurements] == [(2, None), (8, "host_oom")]


def test_c7_a_probe_that_its_cpu_limit_stopped_says_so(
    tries: Tries, run_probe: Callable[..., tuple[list[int], Any]]
) -> None:
    log = tries.log(1, limit_bytes=None)
    log.measured(point(16).model_copy(update={"throttled_percent": 40.0}), FACTS)
    _, result = run_probe(2)
    assert "stopped the run in 40 % of its scheduling periods: raise the container's CPU limit" in result.notes[-1]
