from __future__ import annotations

import logging
import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from postgres_server import Databases, PostgresServer
from profile_rows import MODEL, decision, epoch, measurement, run_key
from psycopg import sql

from yolo_airflow_provider.profiles import engine as engines, outage, trouble
from yolo_airflow_provider.profiles.engine import make_engine, open_store
from yolo_airflow_provider.profiles.errors import StoreDenied, StoreError, StoreUnavailable
from yolo_airflow_provider.profiles.store import ProfileStore

on_postgres = pytest.mark.parametrize("store", ["postgres"], indirect=True)
on_sqlite = pytest.mark.parametrize("store", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(outage, "LONGEST_WAIT_SECONDS", 0.2)
    caplog.set_level(logging.INFO, logger="yolo_airflow_provider")


class Waiting(logging.Handler):
    """Does something, once, in a thread of its own, as soon as somebody says that he waits for the database."""

    def __init__(self, cure: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._waits = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._done = self._pool.submit(self._run, cure)

    def _run(self, cure: Callable[[], None]) -> bool:
        if self._waits.wait(60):
            cure()
        return self._waits.is_set()

    def emit(self, record: logging.LogRecord) -> None:
        self._waits.set()

    def __enter__(self) -> Waiting:
        outage.log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        outage.log.removeHandler(self)
        with self._pool:
            assert self._done.result(60), "nobody waited"


def execute(store: ProfileStore, statement: str, *, write: bool = False) -> Any:
    return store.transaction(lambda connection: connection.execute(sa.text(statement)).scalar(), write=write)


def backend(store: ProfileStore) -> int:
    return int(execute(store, "SELECT pg_backend_pid()"))


def raw(url: sa.URL) -> psycopg.Connection[Any]:
    address = url.translate_connect_args(username="user", database="dbname")
    return psycopg.connect(**address, **dict(url.query), autocommit=True)


def connections(store: ProfileStore, server: Databases) -> int:
    """How many connections there are to the store's database."""
    with raw(server.admin_url) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [store.engine.url.database]
        ).fetchone()
    assert found is not None
    return int(found[0])


def wait_for(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not (so := is_so()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return so


def fail_once(store: ProfileStore, state: str) -> tuple[int, list[int]]:
    """Do something that fails at first with an error of the server; what it gave, and the tries that it took."""
    tries: list[int] = []

    def work(connection: sa.Connection) -> int:
        tries.append(len(tries) + 1)
        if len(tries) == 1:
            connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{state}'; END $$")
        return 42

    return store.transaction(work, write=True), tries


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == outage.log.name and r.levelno == level]


@on_postgres
def test_reads_share_a_connection_and_survive_its_end(store: ProfileStore, postgres: Databases):
    first = backend(store)
    assert backend(store) == first
    postgres.execute(sql.SQL("SELECT pg_terminate_backend({}, 10000)").format(first))
    assert store.measurements("yolo", "manual__1") == []
    assert backend(store) != first


def test_a_write_waits_for_a_server_that_died_and_comes_back(
    start_postgres: Callable[..., PostgresServer], caplog: pytest.LogCaptureFixture
):
    server = start_postgres()
    store = open_store(server.create_database(), patience_seconds=60)
    store.decide(decision())
    server.kill()
    with Waiting(server.start):
        store.record([measurement()], [epoch(1)], [MODEL])
    assert len(store.measurements("yolo", "manual__1")) == 1
    assert len(store.decisions("yolo", "manual__1")) == 1
    (warning,) = messages(caplog, logging.WARNING)
    assert "cannot write to the profile store" in warning
    assert "Trying again for up to 60 s" in warning
    (info,) = messages(caplog, logging.INFO)
    assert "answers again after" in info


def test_opening_waits_for_a_server_that_is_down(start_postgres: Callable[..., PostgresServer]):
    server = start_postgres()
    url = server.create_database()
    server.stop()
    with Waiting(server.start):
        store = open_store(url, patience_seconds=60)
    assert store.measurements("yolo", "manual__1") == []


def make_standby(server: PostgresServer) -> None:
    """Restart a server as one that follows another, though there is none: it serves reads until it is promoted."""
    server.stop()
    data = server.folder / "data"
    (data / "standby.signal").touch()
    os.chown(data / "standby.signal", data.stat().st_uid, data.stat().st_gid)
    server.start()


def test_a_write_waits_for_a_failover(start_postgres: Callable[..., PostgresServer]):
    server = start_postgres()
    url = server.create_database()
    open_store(url).release()
    make_standby(server)
    store = open_store(url, upgrade=False, patience_seconds=0)
    with pytest.raises(StoreUnavailable, match=r"the server is a standby: either a failover .* or .* read replica"):
        store.record([measurement()])
    store.patience_seconds = 60
    with Waiting(lambda: server.execute(sql.SQL("SELECT pg_promote()"))):
        store.record([measurement()])
    assert len(store.measurements("yolo", "manual__1")) == 1


@on_postgres
def test_a_role_that_is_read_only_by_setting_is_not_waited_for(store: ProfileStore):
    url = store.engine.url.update_query_dict({"options": "-c default_transaction_read_only=on"})
    with pytest.raises(StoreDenied, match=r"is no standby.*default_transaction_read_only"):
        open_store(url, upgrade=False).decide(decision())


@on_postgres
@pytest.mark.parametrize("state", ["08006", "40001", "40P01", "53100", "53200", "53300", "55P03", "57P03"])
def test_trouble_that_passes_is_tried_again(store: ProfileStore, state: str):
    assert fail_once(store, state) == (42, [1, 2])


@on_postgres
@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        ("28P01", StoreDenied, "check login and password of role"),
        ("42501", StoreDenied, "GRANT yolo_writer TO"),
        ("3D000", StoreError, "CREATE DATABASE"),
        ("42P01", StoreError, "yolo-airflow db upgrade"),
        ("42703", StoreError, "yolo-airflow db upgrade"),
        ("57014", StoreError, "statement_timeout is 30 s"),
        ("23514", StoreError, "injected$"),
        ("XX000", StoreError, "injected$"),
    ],
)
def test_trouble_that_stays_is_told_at_once(store: ProfileStore, state: str, kind: type[StoreError], said: str):
    with pytest.raises(StoreError, match=said) as caught:
        fail_once(store, state)
    assert type(caught.value) is kind
    assert "cannot write to the profile store postgresql+psycopg://" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("FATAL:  the database system is starting up", StoreUnavailable, ""),
        ("FATAL:  sorry, too many clients already", StoreUnavailable, ""),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", StoreUnavailable, ""),
        ("consuming input failed: SSL connection has been closed unexpectedly", StoreUnavailable, ""),
        ("consuming input failed: SSL SYSCALL error: EOF detected", StoreUnavailable, ""),
        ("connection timeout expired", StoreUnavailable, ""),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "u", database "d", no encryption', StoreDenied, "hba"),
        ('FATAL:  role "u" does not exist', StoreDenied, "check login"),
        ('FATAL:  Peer authentication failed for user "u"', StoreDenied, "check login"),
        ('FATAL:  database "d" does not exist', StoreError, 'CREATE DATABASE "d"'),
        ("SSL error: tlsv1 alert unknown ca", StoreError, "sslrootcert"),
        (
            "FATAL:  unsupported startup parameter in options: statement_timeout",
            StoreError,
            "ignore_startup_parameters",
        ),
        # The first of two addresses is down, and the other says what is wrong.
        (
            '- host: a: Connection refused\n- host: b: FATAL:  database "d" does not exist',
            StoreError,
            "CREATE DATABASE",
        ),
    ],
)
def test_a_failure_to_connect_is_known_by_its_text(text: str, kind: type[StoreError], said: str):
    error = sa.exc.OperationalError("", {}, psycopg.OperationalError(text))
    explained = trouble.explain(error, make_engine("postgresql://u:hunter2@db/d"), "open")
    assert type(explained) is kind
    assert said in str(explained)
    assert "hunter2" not in str(explained)


@on_postgres
def test_a_login_with_too_many_connections_is_waited_for(store: ProfileStore, postgres: Databases):
    name = f"{store.engine.url.database}_one"
    postgres.create_user(name, "secret")
    postgres.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT 1").format(sql.Identifier(name)))
    url = postgres.url(str(store.engine.url.database), user=name, password="secret")
    postgres.execute(
        sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(sql.Identifier(name)), url.database
    )
    only = raw(url)
    with Waiting(only.close):
        assert open_store(url, upgrade=False, patience_seconds=60).decisions("yolo", "manual__1") == []
    postgres.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)), url.database)
    postgres.drop_user(name)


@on_postgres
def test_a_lock_that_is_held_too_long_is_waited_for(store: ProfileStore):
    url = store.engine.url.update_query_dict({"lock_timeout": "0.05"})
    writer = open_store(url, upgrade=False, patience_seconds=60)
    with store.engine.connect() as connection:
        connection.exec_driver_sql("LOCK TABLE measurement IN ACCESS EXCLUSIVE MODE")
        with Waiting(connection.rollback):
            writer.record([measurement()])
    assert len(store.measurements("yolo", "manual__1")) == 1


@on_postgres
def test_a_statement_timeout_is_named_with_its_value(store: ProfileStore):
    slow = open_store(store.engine.url.update_query_dict({"statement_timeout": "0.05"}), upgrade=False)
    with pytest.raises(StoreError, match=r"canceling statement .*statement_timeout is 0\.05 s") as caught:
        execute(slow, "SELECT pg_sleep(60)")
    assert not isinstance(caught.value, StoreUnavailable)


def test_a_commit_whose_answer_is_lost_is_done_once(store: ProfileStore, monkeypatch: pytest.MonkeyPatch):
    commit = store.engine.dialect.do_commit
    commits = []

    def lose_the_answer(connection: Any) -> None:
        commit(connection)
        commits.append(connection)
        if len(commits) % 2:
            if store.engine.dialect.name == "sqlite":
                error = sqlite3.OperationalError("lost")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(store.engine.dialect, "do_commit", lose_the_answer)
    store.decide(decision())
    store.record([measurement()], [epoch(1)], [MODEL])
    assert len(commits) == 4
    monkeypatch.undo()
    assert len(store.measurements("yolo", "manual__1")) == 1
    assert len(store.decisions("yolo", "manual__1")) == 1
    assert store.frame("epoch")["epoch"].tolist() == [1]
    assert store.frame("usage_by_dag")["measurements"].tolist() == [1]


@on_sqlite
def test_a_file_that_another_process_has_locked_is_waited_for(store: ProfileStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_SECONDS", 0)
    with sqlite3.connect(str(store.engine.url.database), isolation_level=None, check_same_thread=False) as other:
        other.execute("BEGIN IMMEDIATE")
        store.patience_seconds = 0
        with pytest.raises(StoreUnavailable, match="database is locked; another process"):
            store.record([measurement()])
        store.patience_seconds = 60
        with Waiting(other.rollback):
            store.record([measurement()])
    assert len(store.measurements("yolo", "manual__1")) == 1


def closed_port() -> sa.URL:
    return sa.URL.create("postgresql+psycopg", "yolo", "hunter2", "127.0.0.1", 1, "profiles")


def test_without_patience_there_is_one_attempt(caplog: pytest.LogCaptureFixture):
    with pytest.raises(StoreUnavailable, match=r"cannot open the profile store .*Connection refused$"):
        open_store(closed_port(), upgrade=False, patience_seconds=0)
    assert messages(caplog, logging.WARNING) == []


def test_after_the_patience_the_error_says_how_long_it_was(caplog: pytest.LogCaptureFixture):
    with pytest.raises(StoreUnavailable, match=r"Connection refused; tried \d+ times in \d+\.\d s$") as caught:
        open_store(closed_port(), upgrade=False, patience_seconds=0.5)
    assert isinstance(caught.value.__cause__, sa.exc.OperationalError)
    assert len(messages(caplog, logging.WARNING)) == 1
    assert "hunter2" not in str(caught.value) + caplog.text


def test_the_url_says_how_patient_a_store_is(postgres: Databases, migrated_database: str, tmp_path: Path):
    url = postgres.create_database(template=migrated_database)
    assert open_store(url).patience_seconds == outage.PATIENCE_SECONDS
    patient = url.update_query_dict({"retry_seconds": "7.5"})
    assert open_store(patient).patience_seconds == 7.5
    assert open_store(patient, patience_seconds=0).patience_seconds == 0
    assert open_store(f"sqlite:///{tmp_path / 'a.db'}").patience_seconds == outage.PATIENCE_SECONDS


@on_postgres
def test_threads_share_a_store_within_its_limit_of_connections(store: ProfileStore, postgres: Databases):
    shared = open_store(store.engine.url.update_query_dict({"max_overflow": "1"}), upgrade=False)
    store.release()

    def one(number: int) -> int:
        shared.record([measurement(key=run_key(map_index=number))])
        shared.measurements("yolo", "manual__1")
        return connections(shared, postgres)

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(one, range(32)))
    assert len(shared.measurements("yolo", "manual__1")) == 32
    # One more may be on its way out: a connection beyond the first is closed when its thread is done.
    assert max(counts) <= 3


@on_postgres
def test_a_thread_waits_for_the_connection_of_another(store: ProfileStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "POOL_TIMEOUT_SECONDS", 0.05)
    shared = open_store(store.engine.url.update_query_dict({"max_overflow": "0"}), upgrade=False, patience_seconds=0)
    other = shared.engine.connect()
    with pytest.raises(
        StoreUnavailable, match=r"connections of this process were in use for 0\.05 s; raise max_overflow"
    ):
        shared.measurements("yolo", "manual__1")
    shared.patience_seconds = 60
    with Waiting(other.close):
        assert shared.measurements("yolo", "manual__1") == []


@on_postgres
def test_a_store_gives_its_connection_back(store: ProfileStore, postgres: Databases):
    store.release()
    assert wait_for(lambda: connections(store, postgres) == 0)
    assert store.decisions("yolo", "manual__1") == []
    assert connections(store, postgres) == 1
    store.release()
    forgotten = open_store(store.engine.url, upgrade=False)
    assert connections(store, postgres) == 1
    del forgotten
    assert wait_for(lambda: connections(store, postgres) == 0)


def read_and_release(store: ProfileStore, answers: Any) -> None:
    answers.put((backend(store), len(store.measurements("yolo", "manual__1"))))
    store.release()


@on_postgres
def test_a_forked_process_leaves_its_parents_connection_alone(store: ProfileStore):
    store.record([measurement()])
    mine = backend(store)
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    child = fork.Process(target=read_and_release, args=(store, answers))
    child.start()
    theirs, found = answers.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert found == 1
    assert theirs != mine
    assert backend(store) == mine
