"""A probe's points on record, and what the next try makes of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.contract import (
    Failure,
    FailureClass,
    JobResult,
    JobSpec,
    Measurement,
    ModelFacts,
    ProbeJob,
)
from yolo_airflow_provider.worker import models, points as points_module, probe as module
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.measure.device import Cpu
from yolo_airflow_provider.worker.points import PointLog, Room
from yolo_airflow_provider.worker.probe import Probe

GIB = 2**30
FACTS = ModelFacts(name="yolov8n", task="detect", parameters=3_011_433, stride=32, classes=3)
MakeJob = Callable[..., dict[str, Any]]


def point(batch: int, failure: FailureClass | None = None, *, try_number: int | None = None) -> Measurement:
    return Measurement(
        try_number=try_number,
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

    def spec(self, try_number: int, *, budget_bytes: int | None = None, attempt: str = "", **changes: Any) -> JobSpec:
        fields = {"model": "yolov8n", "data": "d.yaml", "imgsz": 64, "batches": [2, 8, 16]} | changes
        raw = self._make_job("probe", try_number=try_number, budget_bytes=budget_bytes, **fields)
        raw["identity"]["attempt"] = attempt
        Path(raw["run_folder"]).mkdir(parents=True, exist_ok=True)
        return JobSpec.from_json(json.dumps(raw))

    def log(self, try_number: int, *, limit_bytes: int | None = 4 * GIB, **changes: Any) -> PointLog:
        spec = self.spec(try_number, **changes)
        assert isinstance(spec.job, ProbeJob)
        fence = Fence(Path(spec.run_folder), try_number, spec.identity.attempt)
        return PointLog(spec, spec.job, fence, limit_bytes=limit_bytes)

    def measure(self, try_number: int, batch: int, **changes: Any) -> None:
        log = self.log(try_number, **changes)
        log.started(batch)
        log.measured(point(batch), FACTS)

    def vanish(self, *try_numbers: int, batch: int, **changes: Any) -> None:
        """Tries that ended without a word."""
        for try_number in try_numbers:
            self.log(try_number, **changes).started(batch)

    def answer(self, try_number: int, failure: Failure | None = None) -> None:
        """The result that a try left, at whatever time."""
        result = JobResult(kind="probe", try_number=try_number, failure=failure)
        (Path(self.spec(try_number).run_folder) / f"result-{try_number}.json").write_text(result.to_message())

    def date(self, name: str, seconds: int) -> None:
        """Set the time at which a file was written."""
        os.utime(Path(self.spec(1).run_folder) / name, (seconds, seconds))


@pytest.fixture
def tries(make_job: MakeJob) -> Tries:
    return Tries(make_job)


def test_nothing_is_known_to_the_first_try(tries: Tries) -> None:
    found = tries.log(1).earlier()
    assert (found.points, found.vanished, found.model) == ({}, set(), None)


def test_points_of_all_earlier_tries_are_known_by_their_batch(tries: Tries) -> None:
    tries.measure(1, 2)
    tries.measure(2, 8)
    tries.vanish(2, 3, batch=16)
    found = tries.log(4).earlier()
    assert found.points == {2: point(2, try_number=1), 8: point(8, try_number=2)}
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
    tries.vanish(1, 2, batch=8)
    found = tries.log(3, **change).earlier()
    assert (found.points, found.vanished) == ({}, set())


def test_other_batches_and_loaders_make_no_other_probe(tries: Tries) -> None:
    tries.measure(1, 2)
    assert set(tries.log(2, batches=[2, 4], workers=3, seed=7).earlier().points) == {2}


@pytest.mark.parametrize("package", ["torch", "ultralytics"])
def test_points_of_another_image_are_not_this_ones(package: str, tries: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
    tries.measure(1, 2)
    real = points_module.version
    monkeypatch.setattr(points_module, "version", lambda name: "99.0" if name == package else real(name))
    assert tries.log(2).earlier().points == {}


def test_a_probe_that_succeeded_is_measured_again(tries: Tries) -> None:
    """Its task was cleared: with another image, say, or since nobody trusts the numbers."""
    tries.measure(1, 2)
    tries.measure(2, 8)
    tries.answer(2)
    tries.date("probe-1.json", 100)
    tries.date("probe-2.json", 200)
    tries.date("result-2.json", 200)
    assert tries.log(3).earlier().points == {}
    tries.measure(3, 16)
    assert set(tries.log(4).earlier().points) == {16}


def test_a_probe_that_failed_goes_on_where_it_was(tries: Tries) -> None:
    tries.measure(1, 2)
    tries.answer(1, Failure(failure_class=FailureClass.PREEMPTED, message="stopped"))
    assert set(tries.log(2).earlier().points) == {2}


def test_the_newest_line_counts_also_where_a_run_was_made_again_under_its_name(tries: Tries) -> None:
    tries.log(3, attempt="a").measured(point(2, FailureClass.HOST_OOM), FACTS)
    tries.log(1, attempt="b").measured(point(2), FACTS)
    folder = Path(tries.spec(1).run_folder)
    old, new = sorted(folder.glob("probe-*.json"), reverse=True)
    assert (old.name[:8], new.name[:8]) == ("probe-3-", "probe-1-")
    tries.date(old.name, 100)
    tries.date(new.name, 200)
    assert tries.log(2, attempt="c").earlier().points == {2: point(2, try_number=1)}


def test_one_try_that_vanished_says_nothing_of_the_batch(tries: Tries) -> None:
    tries.vanish(1, batch=8)
    assert tries.log(2).earlier().vanished == set()
    tries.log(1).ended(8, FailureClass.PREEMPTED)
    tries.vanish(2, batch=8)
    assert tries.log(3).earlier().vanished == set()


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
    tries.vanish(1, 1, batch=16, budget_bytes=2 * GIB)
    same = tries.log(2, budget_bytes=2 * GIB).earlier()
    assert same.points == {8: point(8, FailureClass.HOST_OOM, try_number=1)}
    assert same.vanished == {16}
    larger = tries.log(2, **({"budget_bytes": 2 * GIB} | more)).earlier()
    assert (larger.points, larger.vanished) == ({}, set())


def test_memory_that_is_not_known_is_not_more() -> None:
    assert not Room(None, GIB).is_larger_than(Room(GIB, GIB))
    assert not Room(GIB, GIB).is_larger_than(Room(None, None))
    assert not Room(GIB, GIB).is_larger_than(Room(GIB, GIB))


def test_a_limit_that_was_taken_away_is_more() -> None:
    assert Room(GIB, None).is_larger_than(Room(GIB, GIB))
    assert not Room(GIB, None).is_larger_than(Room(GIB, None))


def test_a_line_that_a_kill_cut_off_takes_no_other_with_it(tries: Tries) -> None:
    tries.measure(1, 2)
    path = Path(tries.spec(1).run_folder) / "probe-1.json"
    with path.open("a") as file:
        file.write('{"batch": 8, "measure')
    tries.vanish(1, 2, batch=16)
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
    assert tries.log(2).earlier().points == {2: point(2, try_number=1)}


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
    assert [(found.batch, found.try_number) for found in result.measurements] == [(2, 1), (8, None), (16, None)]
    assert "probe: batch 2 was measured by an earlier try" in capsys.readouterr().out
    again, result = run_probe(3)
    assert again == []
    assert [found.batch for found in result.measurements] == [2, 8, 16]
    assert result.model == FACTS


def test_a_batch_at_which_a_try_vanished_is_left_out_with_the_larger_ones(
    tries: Tries, run_probe: Callable[..., tuple[list[int], Any]]
) -> None:
    tries.measure(1, 2, limit_bytes=None)
    tries.vanish(1, 2, batch=8, limit_bytes=None)
    measured, result = run_probe(3)
    assert measured == []
    assert [found.batch for found in result.measurements] == [2]
    assert "two tries ended without a word while they measured batch 8: it is left out" in result.notes[1]


def test_the_smallest_batch_is_tried_again_since_a_probe_of_nothing_is_none(
    tries: Tries, run_probe: Callable[..., tuple[list[int], Any]]
) -> None:
    tries.vanish(1, 2, batch=2, limit_bytes=None)
    measured, _ = run_probe(3)
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


@pytest.mark.parametrize(("torch_name", "points"), [("cpu", [2, 8]), ("0", None)])
def test_host_memory_that_runs_out_beside_a_gpu_is_no_point_of_the_batch(
    torch_name: str, points: list[int] | None, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tries.spec(1)
    assert isinstance(spec.job, ProbeJob)
    device = Cpu()
    device.torch_name = torch_name
    work = Probe(spec, spec.job, device, Fence(Path(spec.run_folder), 1))
    work._points.append(point(2))

    def killed_loader(*_: Any) -> None:
        raise RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed. ")

    monkeypatch.setattr(work, "_measure", killed_loader)
    monkeypatch.setattr(work, "_current", lambda failure: (point(8, failure),))
    if points is None:
        with pytest.raises(RuntimeError, match="killed by signal"):
            work._try(8, None, None, None)  # type: ignore[arg-type]
        assert tries.log(2).earlier().points == {}
    else:
        work._try(8, None, None, None)  # type: ignore[arg-type]
        assert [found.batch for found in work._points] == points
