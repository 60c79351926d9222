"""What the store does not take is kept as a file, and is in the store in the end, once."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profile_rows import MODEL, NOON, decision, epoch, measurement, run_key
from spool_doubles import AWAY, Fails, Lines

from yolo_airflow_provider.profiles import spool as spool_module
from yolo_airflow_provider.profiles.errors import StoreDenied, StoreError, StoreOutdatedError, StoreVersionError
from yolo_airflow_provider.profiles.spool import SPOOL_VERSION, Entry, Spool, SpoolError
from yolo_airflow_provider.profiles.store import ProfileStore


@pytest.fixture
def log() -> Lines:
    return Lines()


@pytest.fixture
def spool(tmp_path: Path, log: Lines) -> Spool:
    return Spool([tmp_path / "spool"], log)


def entry(number: int, **changes: Any) -> Entry:
    key = run_key(task_id=f"task{number}")
    return Entry(measurements=(measurement(key=key, **changes),), epochs=(epoch(1, key=key),), models=(MODEL,))


def names(store: ProfileStore) -> list[str]:
    return sorted(item.row.key.task_id for item in store.measurements("yolo", "manual__1"))


def files(spool: Spool) -> list[str]:
    """Names of everything that lies in the spool."""
    return sorted(path.name for folder in spool._folders if folder.exists() for path in folder.iterdir())


def test_what_is_kept_comes_back_as_it_was(spool: Spool) -> None:
    kept = Entry(
        measurements=(measurement(message="half \ud800 pair, NUL \x00, ✓", step_seconds=math.inf, imgsz=None),),
        epochs=(epoch(1, seconds=-math.inf, losses={"box": math.nan}, metrics={"mAP50": 0.5}),),
        models=(MODEL,),
        decision=decision(candidates=[{"batch": 8, "seconds": math.nan, "fits": True}], evidence=[3, 4]),
    )
    read = spool._read(spool.put(kept))
    assert read is not None
    assert read.to_text() == kept.to_text()  # nan is not equal to nan
    assert read.measurements[0].finished_at == NOON


def test_numbers_of_numpy_are_kept_as_numbers(spool: Spool) -> None:
    row = measurement(peak_device_bytes=np.int64(2**40), step_seconds=np.float32(0.5))
    read = spool._read(spool.put(Entry(measurements=(row,), decision=decision(candidates=[{"batch": np.int64(4)}]))))
    assert read is not None
    assert read.decision is not None
    assert (read.measurements[0].peak_device_bytes, read.measurements[0].step_seconds) == (2**40, 0.5)
    assert read.decision.candidates == [{"batch": 4}]


def test_what_waits_is_loaded_with_everything_in_it_and_then_deleted(
    spool: Spool, store: ProfileStore, log: Lines
) -> None:
    spool.put(Entry(measurements=(measurement(),), epochs=(epoch(1), epoch(2)), models=(MODEL,)))
    spool.put(Entry(decision=decision()))
    assert spool.load_into(store).files == 2
    (stored,) = store.measurements("yolo", "manual__1")
    assert stored.row == measurement()
    assert store.decisions("yolo", "manual__1") == [decision()]
    assert sorted(store.frame("epoch")["epoch"]) == [1, 2]
    assert list(store.frame("model")["name"]) == ["yolo11n"]
    assert files(spool) == []
    assert log == []


def test_a_file_that_is_loaded_again_changes_nothing(spool: Spool, store: ProfileStore) -> None:
    """The process died after the commit and before the file was deleted."""
    path = spool.put(entry(1))
    text = path.read_text()
    spool.load_into(store)
    path.write_text(text)
    assert spool.load_into(store).files == 1
    assert names(store) == ["task1"]
    assert len(store.frame("epoch")) == 1


def test_files_are_for_their_owner_only_and_sort_by_time(spool: Spool) -> None:
    paths = [spool.put(entry(number)) for number in range(20)]
    assert spool.waiting() == paths
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert stat.S_IMODE(paths[0].parent.stat().st_mode) == 0o700


def test_writers_at_the_same_time_do_not_collide(spool: Spool) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda number: spool.put(entry(number)), range(64)))
    assert sorted(spool.waiting()) == sorted(set(paths))
    assert len(paths) == 64


def test_a_spool_that_is_empty_or_was_never_made_costs_nothing(spool: Spool, log: Lines) -> None:
    never = Fails(AWAY)
    assert spool.load_into(never.as_store).files == 0
    spool.put(entry(1)).unlink()
    assert spool.load_into(never.as_store).files == 0
    assert (never.asked, log) == (0, [])


def test_a_kill_in_the_middle_of_a_file_leaves_nothing_to_load(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(descriptor: int) -> None:
        assert spool.waiting() == []  # it is not there under its name before it is on the disk
        raise Killed

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(Killed):
        spool.put(entry(1))
    assert spool.waiting() == []


def test_an_outage_in_the_middle_leaves_the_rest_in_its_place(spool: Spool, store: ProfileStore, log: Lines) -> None:
    for number in range(3):
        spool.put(entry(number))
    breaks = Fails(AWAY, after=1)
    loaded = spool.load_into(breaks.as_store)
    assert (loaded.files, breaks.asked, loaded.stopped_by) == (1, 2, AWAY)
    assert log == []
    assert spool.load_into(store).files == 2
    assert names(store) == ["task1", "task2"]


@pytest.mark.parametrize("error", [StoreDenied("no"), StoreOutdatedError("old"), StoreVersionError("new")])
def test_trouble_that_all_files_share_is_met_once(error: StoreError, spool: Spool) -> None:
    for number in range(3):
        spool.put(entry(number))
    fails = Fails(error)
    assert spool.load_into(fails.as_store).stopped_by is error
    assert (fails.asked, len(spool.waiting())) == (1, 3)


def test_a_file_that_the_database_chokes_on_does_not_hold_up_the_others(spool: Spool, log: Lines) -> None:
    class ChokesOnTask1(Fails):
        def record(self, measurements: Any, epochs: Any = (), models: Any = ()) -> None:
            if measurements[0].key.task_id == "task1":
                raise StoreError("numeric overflow")
            self.taken.append(measurements)

    paths = [spool.put(entry(number)) for number in range(3)]
    chokes = ChokesOnTask1(AWAY)
    loaded = spool.load_into(chokes.as_store)
    assert (loaded.files, loaded.left, len(chokes.taken)) == (2, 1, 2)
    assert spool.waiting() == [paths[1]]
    assert log == [f"warning {paths[1]} is not loaded into the profile store and waits on: numeric overflow"]


def test_a_row_that_the_store_refuses_is_set_aside_and_the_rest_goes_on(
    spool: Spool, store: ProfileStore, log: Lines
) -> None:
    spool.put(entry(0))
    refused = spool.put(entry(1, iowait_percent=250.0))
    spool.put(entry(2))
    loaded = spool.load_into(store)
    assert (loaded.files, loaded.refused) == (2, 1)
    assert names(store) == ["task0", "task2"]
    assert files(spool) == [f"{refused.name}.refused"]
    (said,) = log
    assert said.startswith("error ")
    assert str(refused) in said
    assert "iowait_percent is 250.0: expected at most 100" in said
    assert spool.load_into(store).refused == 0  # nobody tries again


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ('{"version": 1, "measurements": [{"part"', "Expecting"),
        ("[]", "valid dictionary"),
        ('{"version": 1, "epochs": [{"epoch": 1}]}', "epochs.0.key"),
        ('{"version": 1, "surprise": 2}', "surprise"),
        ('{"version": "x"}', "version"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_a_file_that_is_no_entry_is_set_aside_with_the_reason(
    text: str | bytes, why: str, spool: Spool, store: ProfileStore, log: Lines
) -> None:
    path = spool.put(entry(1))
    broken = path.with_name("20200101T000000.000000Z-0.json")  # before the good one
    broken.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert spool.load_into(store).refused == 1
    assert names(store) == ["task1"]
    assert files(spool) == [f"{broken.name}.refused"]
    (said,) = log
    assert why in said


def test_a_field_that_this_version_does_not_know_is_not_dropped_in_silence(spool: Spool, store: ProfileStore) -> None:
    path = spool.put(entry(1))
    path.write_text(path.read_text().replace('"epoch": 1', '"epoch": 1, "new_column": 7'))
    assert spool.load_into(store).refused == 1
    assert names(store) == []


def test_a_file_of_a_newer_version_waits_for_it(spool: Spool, store: ProfileStore, log: Lines) -> None:
    path = spool.put(entry(1))
    path.write_text(path.read_text().replace(f'"version": {SPOOL_VERSION}', f'"version": {SPOOL_VERSION + 1}'))
    assert spool.load_into(store).files == 0
    assert spool.waiting() == [path]
    assert "newer version" in log[0]


def test_a_file_that_another_process_loads_meanwhile_is_passed_over(spool: Spool, log: Lines) -> None:
    class AnotherIsFaster(Fails):
        def record(self, measurements: Any, epochs: Any = (), models: Any = ()) -> None:
            self.taken.append(measurements)
            for path in spool.waiting():
                path.unlink()

    for number in range(3):
        spool.put(entry(number))
    faster = AnotherIsFaster(AWAY)
    assert spool.load_into(faster.as_store).files == 1
    assert len(faster.taken) == 1
    assert log == []


def test_loaders_at_the_same_time_load_everything_once(spool: Spool, store: ProfileStore, log: Lines) -> None:
    for number in range(24):
        spool.put(entry(number))
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: spool.load_into(store), range(4)))
    assert {one.stopped_by for one in loaded} == {None}
    assert names(store) == sorted(f"task{number}" for number in range(24))
    assert len(store.frame("epoch")) == 24
    assert files(spool) == []
    assert log == []


def test_what_another_process_has_in_hand_comes_last_and_is_not_left_to_it(spool: Spool) -> None:
    """Tasks that an outage stopped share the files; one that hangs with a file holds up nobody."""
    for number in range(3):
        spool.put(entry(number))
    takes = Fails(AWAY, after=3)
    with spool.waiting()[0].open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert spool.load_into(takes.as_store).files == 3
    assert [rows[0][0].key.task_id for rows in takes.taken] == ["task1", "task2", "task0"]
    assert spool.waiting() == []


def test_links_and_what_is_no_file_are_not_followed(spool: Spool, store: ProfileStore, tmp_path: Path) -> None:
    folder = spool.put(entry(1)).parent
    outside = tmp_path / "outside.json"
    outside.write_text(entry(2).to_text())
    (folder / "link.json").symlink_to(outside)
    (folder / "folder.json").mkdir()
    assert spool.load_into(store).files == 1
    assert names(store) == ["task1"]
    assert outside.exists()


def test_each_store_has_files_of_its_own(tmp_path: Path, log: Lines, store: ProfileStore) -> None:
    ids = ("profiles", "other", "../profiles", "..", "a/b", "ü")
    for number, name in enumerate(ids):
        path = Spool([tmp_path / "spool"], log, store=name).put(entry(number))
        assert path.parent.parent == tmp_path / "spool"
    assert Spool([tmp_path / "spool"], log, store="other").load_into(store).files == 1
    assert names(store) == ["task1"]


def test_the_next_folder_takes_what_the_first_cannot(tmp_path: Path, log: Lines, store: ProfileStore) -> None:
    """A workspace that is not mounted here is not made on the local disk."""
    both = Spool([tmp_path / "not-mounted" / ".profile-spool", tmp_path / "home"], log)
    path = both.put(entry(1))
    assert path.is_relative_to(tmp_path / "home")
    (tmp_path / "not-mounted").mkdir()
    both.put(entry(2))
    assert [file.is_relative_to(tmp_path / "home") for file in both.waiting()] == [True, False]
    assert both.load_into(store).files == 2
    assert names(store) == ["task1", "task2"]


def test_a_disk_that_fails_when_the_file_is_written_leaves_nothing_behind(
    tmp_path: Path, log: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spool_module, "_write", full)
    spool = Spool([tmp_path / "a", tmp_path / "b"], log)
    with pytest.raises(SpoolError) as raised:
        spool.put(entry(1))
    assert str(raised.value).count("No space left on device") == 2
    assert files(spool) == []
