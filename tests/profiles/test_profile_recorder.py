"""The store as a task uses it: an outage fails a plan, and never a run that has ended."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from profile_rows import MODEL, NOON, PROFILE, decision, epoch, measurement, run_key
from spool_doubles import AWAY, Fails, Lines

from yolo_airflow_provider.profiles import spool as spool_module
from yolo_airflow_provider.profiles.errors import (
    StoreDenied,
    StoreError,
    StoreOutdatedError,
    StoreUnavailable,
    StoreVersionError,
)
from yolo_airflow_provider.profiles.recorder import Recorder
from yolo_airflow_provider.profiles.spool import Entry, Spool, SpoolError
from yolo_airflow_provider.profiles.store import ProfileStore


@pytest.fixture
def log() -> Lines:
    return Lines()


@pytest.fixture
def spool(tmp_path: Path, log: Lines) -> Spool:
    return Spool([tmp_path / "spool"], log)


def recorder(open_store: Callable[[], ProfileStore], spool: Spool, log: Lines) -> Recorder:
    return Recorder(open_store, spool, log)


def cannot_open(error: Exception) -> Callable[[], ProfileStore]:
    def fail() -> ProfileStore:
        raise error

    return fail


def test_what_can_be_recorded_is_in_the_store_and_in_no_file(spool: Spool, store: ProfileStore, log: Lines) -> None:
    writes = recorder(lambda: store, spool, log)
    assert writes.record([measurement()], [epoch(1)], [MODEL]) is None
    assert writes.decide(decision()) is None
    assert len(store.evidence(PROFILE)) == len(store.decisions("yolo", "manual__1")) == 1
    assert (spool.waiting(), log) == ([], [])


@pytest.mark.parametrize(
    "error", [AWAY, StoreDenied("no"), StoreOutdatedError("old"), StoreVersionError("new"), StoreError("odd")]
)
@pytest.mark.parametrize("opens", [True, False])
def test_whatever_the_stores_trouble_what_was_measured_is_kept(
    opens: bool, error: StoreError, spool: Spool, store: ProfileStore, log: Lines
) -> None:
    failing = (lambda: Fails(error).as_store) if opens else cannot_open(error)
    path = recorder(failing, spool, log).record([measurement()], [epoch(1)], [MODEL])
    assert spool.waiting() == [path]
    (said,) = log
    assert said.startswith("warning ")
    assert str(path) in said
    assert " ".join(str(error).split()) in said
    assert recorder(lambda: store, spool, log).store() is store
    assert [item.row for item in store.measurements("yolo", "manual__1")] == [measurement()]
    assert len(store.frame("epoch")) == 1


def test_what_waits_is_loaded_before_what_comes_after_it(spool: Spool, store: ProfileStore, log: Lines) -> None:
    """The first row of a key stays, so a late file must not lose to a later report of the same run."""
    spool.put(Entry(measurements=(measurement(batch=4),)))
    recorder(lambda: store, spool, log).record([measurement(batch=8)])
    assert [item.row.batch for item in store.measurements("yolo", "manual__1")] == [4]


def test_an_outage_is_waited_for_once_and_not_once_a_file(spool: Spool, log: Lines) -> None:
    spool.put(Entry(measurements=(measurement(key=run_key(task_id="other")),)))
    away = Fails(AWAY)
    assert recorder(lambda: away.as_store, spool, log).record([measurement()]) is not None
    assert (away.asked, len(spool.waiting())) == (1, 2)


def test_planning_does_not_go_on_without_what_is_known(spool: Spool, log: Lines) -> None:
    with pytest.raises(StoreUnavailable):
        recorder(cannot_open(AWAY), spool, log).store()
    spool.put(Entry(measurements=(measurement(key=run_key(task_id="other")),)))
    away = Fails(AWAY)
    with pytest.raises(StoreUnavailable):
        recorder(lambda: away.as_store, spool, log).store()
    assert away.asked == 1


def test_a_decision_waits_in_the_spool_where_the_database_went_away_since(
    spool: Spool, store: ProfileStore, log: Lines
) -> None:
    path = recorder(lambda: Fails(AWAY).as_store, spool, log).decide(decision())
    assert spool.waiting() == [path]
    spool.load_into(store)
    assert store.decisions("yolo", "manual__1") == [decision()]


def test_a_store_that_takes_no_decision_is_an_error_before_anything_is_spent(spool: Spool, log: Lines) -> None:
    with pytest.raises(StoreDenied):
        recorder(lambda: Fails(StoreDenied("no right")).as_store, spool, log).decide(decision())
    assert spool.waiting() == []


def test_a_decision_that_comes_late_does_not_replace_a_newer_one(spool: Spool, store: ProfileStore) -> None:
    spool.put(Entry(decision=decision(decided_at=NOON, batch=4)))
    store.decide(decision(decided_at=NOON.replace(hour=13), batch=8))
    spool.load_into(store)
    assert [row.batch for row in store.decisions("yolo", "manual__1")] == [8]


def test_a_value_that_the_store_refuses_fails_no_run_and_is_kept(spool: Spool, store: ProfileStore, log: Lines) -> None:
    writes = recorder(lambda: store, spool, log)
    path = writes.record([measurement(batch=0)])
    assert path is not None
    assert path.name.endswith(".json.refused")
    assert '"batch": 0' in path.read_text()
    assert writes.decide(replace(decision(), basis="guess")) is not None
    assert [line.split()[0] for line in log] == ["error", "error"]
    assert "batch is 0: expected at least 1" in log[0]
    assert (spool.waiting(), store.decisions("yolo", "manual__1")) == ([], [])


@pytest.mark.parametrize("end", [KeyboardInterrupt, TimeoutError])
def test_a_task_that_is_ended_while_it_waits_has_kept_what_it_measured(
    end: type[BaseException], spool: Spool, log: Lines
) -> None:
    def waits() -> ProfileStore:
        raise end

    with pytest.raises(end):
        recorder(waits, spool, log).record([measurement()])
    assert len(spool.waiting()) == 1


def test_where_nothing_takes_the_rows_the_error_says_both_causes(
    spool: Spool, log: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spool_module, "_write", full)
    with pytest.raises(SpoolError, match=r"connection refused; and .*No space left on device") as raised:
        recorder(cannot_open(AWAY), spool, log).record([measurement()])
    assert raised.value.__cause__ is AWAY


def test_a_run_without_rows_opens_no_store(spool: Spool, log: Lines) -> None:
    assert recorder(cannot_open(AWAY), spool, log).record([]) is None
    assert spool.waiting() == []


def test_connections_are_given_back_where_there_are_any(spool: Spool, log: Lines) -> None:
    held = Fails(AWAY)
    writes = recorder(lambda: held.as_store, spool, log)
    writes.release()
    assert held.released == 0
    writes.store()
    writes.release()
    assert held.released == 1
