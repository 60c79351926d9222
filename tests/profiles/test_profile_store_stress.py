"""Many tasks at once, and a database that dies under them: what was reported is there in the end, once.

`make stress`; YOLO_STRESS_SECONDS says for how long, a minute each by default.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from postgres_server import PostgresServer
from profile_rows import MODEL, decision, epoch, measurement
from spool_doubles import Lines
from stress_writer import Plan, Report

from yolo_airflow_provider.profiles import tables
from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.errors import StoreUnavailable
from yolo_airflow_provider.profiles.recorder import Recorder
from yolo_airflow_provider.profiles.spool import Spool
from yolo_airflow_provider.profiles.store import ProfileStore

SECONDS = float(os.environ.get("YOLO_STRESS_SECONDS", "60"))
WRITER = Path(__file__).with_name("stress_writer.py")

pytestmark = pytest.mark.stress


@pytest.fixture
def server(start_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    return start_postgres()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Plan], subprocess.Popen[str]]]:
    """Start the processes of a plan; they are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(plan: Plan) -> subprocess.Popen[str]:
        arguments = [sys.executable, str(WRITER), json.dumps(asdict(plan))]
        started.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def database(server: PostgresServer) -> str:
    url = server.create_database()
    open_store(url).release()
    return url.render_as_string(hide_password=False)


def reports(plan: Plan, writers: subprocess.Popen[str]) -> list[Report]:
    """What the processes of a plan say, when all of them have ended, none of them with an error."""
    assert writers.wait() == 0
    files = sorted(Path(plan.folder).glob("report-*.json"))
    said = [Report(**json.loads(file.read_text())) for file in files]
    assert [report.error for report in said] == [None] * plan.processes
    return said


def values(store: ProfileStore, table: sa.Table, *names: str) -> list[tuple[Any, ...]]:
    with store.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.select(*(table.c[name] for name in names)))]


def check(store: ProfileStore, said: list[Report]) -> None:
    """Everything that was reported is there, once, and the summaries are what a recount gives."""
    key = tables.RUN_KEY
    for table, name, reported in (
        (tables.measurement, "part", [row for report in said for row in report.measurements]),
        (tables.epoch, "epoch", [row for report in said for row in report.epochs]),
    ):
        found = values(store, table, *key, name)
        assert len(found) > 0
        assert sorted(found) == sorted({tuple(row) for row in reported})
    newest: dict[tuple[Any, ...], datetime] = {}
    for *decided, when in (row for report in said for row in report.decided):
        time = datetime.fromisoformat(str(when))
        newest[tuple(decided)] = max(time, newest.get(tuple(decided), time))
    assert {tuple(row[:-1]): row[-1] for row in values(store, tables.decision, *key, "decided_at")} == newest
    check_summaries(store)


def check_summaries(store: ProfileStore) -> None:
    with store.engine.connect() as connection:
        rows = connection.execute(sa.select(tables.measurement).order_by(tables.measurement.c.id)).mappings().all()
        usage = connection.execute(sa.select(tables.usage_day)).mappings().all()
        profiles = connection.execute(sa.select(tables.profile)).mappings().all()
        trained = connection.execute(sa.select(sa.func.sum(tables.epoch.c.seconds))).scalar_one()
    assert {tuple(row[name] for name in tables.USAGE_KEY): dict(row) for row in usage} == counted_usage(rows)
    assert {tuple(row[name] for name in tables.PROFILE_KEY): dict(row) for row in profiles} == counted_profiles(rows)
    # Who appended an epoch counted it, and nobody else.
    assert sum(row["trained_seconds"] or 0 for row in rows) == trained


def counted_usage(rows: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    counted: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        keyed = dict(row) | {"day": row["finished_at"].astimezone(UTC).date()}
        named = {name: "" if keyed[name] is None else keyed[name] for name in tables.USAGE_KEY}
        empty = named | dict.fromkeys(("measurements", "succeeded", "out_of_memory", "read_bytes"), 0)
        day = counted.setdefault(tuple(named.values()), empty)
        day["measurements"] += 1
        day["succeeded"] += row["outcome"] == "succeeded"
        day["out_of_memory"] += row["outcome"] == "gpu_oom"
        day["read_bytes"] += row["read_bytes"]
        day["training_seconds"] = (day.get("training_seconds") or 0) + (row["trained_seconds"] or 0)
        day["peak_device_bytes"] = max(day.get("peak_device_bytes", 0), row["peak_device_bytes"])
        day["written_bytes"] = None
        day["first_at"] = min(day.get("first_at", row["finished_at"]), row["finished_at"])
        day["last_at"] = max(day.get("last_at", row["finished_at"]), row["finished_at"])
    return counted


def counted_profiles(rows: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    counted: dict[tuple[Any, ...], dict[str, Any]] = {}
    succeeded = [row for row in rows if row["outcome"] == "succeeded"]
    for row in sorted(succeeded, key=lambda row: (row["kind"] == "train", row["finished_at"], row["id"])):
        named = {name: "" if row[name] is None else row[name] for name in tables.PROFILE_KEY}
        before = counted.get(tuple(named.values()), {"measurements": 0})
        newest = {"newest_id": row["id"], "newest_kind": row["kind"], "newest_at": row["finished_at"]}
        counted[tuple(named.values())] = named | newest | {"measurements": before["measurements"] + 1}
    return counted


def test_eight_processes_share_a_file(tmp_path: Path, start: Callable[[Plan], Any]) -> None:
    url = f"sqlite:///{tmp_path / 'profiles.db'}"
    store = open_store(url)
    plan = Plan(url=url, folder=str(tmp_path), processes=8, seconds=SECONDS)
    said = reports(plan, start(plan))
    assert {(report.spooled, report.failed_plans) for report in said} == {(0, 0)}
    check(store, said)


def test_fifty_processes_share_a_server(tmp_path: Path, start: Callable[[Plan], Any], server: PostgresServer) -> None:
    plan = Plan(url=database(server), folder=str(tmp_path), processes=50, seconds=SECONDS)
    said = reports(plan, start(plan))
    assert {(report.spooled, report.failed_plans) for report in said} == {(0, 0)}
    check(open_store(plan.url), said)
    # One that is tried again until it works is no contention that was avoided.
    assert "deadlock" not in server.log


def test_a_server_that_is_killed_under_fifty_processes_costs_no_measurement(
    tmp_path: Path, start: Callable[[Plan], Any], server: PostgresServer
) -> None:
    """Half of the processes wait until it is back; those that do not fill the spool, and all of them load it."""
    plan = Plan(
        url=database(server),
        folder=str(tmp_path),
        processes=50,
        rounds=max(4, round(SECONDS / 2)),
        patience_seconds=[300.0, 0.2],
    )
    writers = start(plan)
    assert writers.stdout.readline() == "half\n"
    server.kill()
    server.start()
    said = reports(plan, writers)
    store, log = open_store(plan.url), Lines()
    spool = Spool([tmp_path / "spool"], log)
    spool.load_into(store)
    assert (spool.waiting(), log) == ([], [])
    assert sum(report.spooled + report.failed_plans for report in said) > 0  # the outage was seen
    check(store, said)
    assert "deadlock" not in server.log


def test_an_outage_that_outlasts_the_patience_ends_in_the_spool_and_a_later_task_loads_it(
    tmp_path: Path, server: PostgresServer
) -> None:
    url, log = database(server), Lines()
    spool = Spool([tmp_path / "spool"], log)
    store = open_store(url, patience_seconds=1)
    task = Recorder(lambda: store, spool, log)
    assert task.store().evidence is not None
    server.kill()
    assert task.decide(decision()) is not None
    assert task.record([measurement()], [epoch(1)], [MODEL]) is not None
    with pytest.raises(StoreUnavailable):
        task.store()
    assert len(spool.waiting()) == 2
    server.start()
    later = open_store(url)
    assert Recorder(lambda: later, spool, log).store() is later
    assert spool.waiting() == []
    assert [item.row for item in later.measurements("yolo", "manual__1")] == [measurement()]
    assert later.decisions("yolo", "manual__1") == [decision()]
    assert len(later.frame("epoch")) == 1
