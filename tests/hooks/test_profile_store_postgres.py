"""The hook with an Airflow connection to a real Postgres."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.errors import StoreError, StoreOutdatedError
from yolo_airflow_provider.profiles.records import MeasurementRow, RunKey

if TYPE_CHECKING:
    from postgres_server import GivenServer, PostgresServer

PASSWORD = "hunter2 /@:%p'ü"
ROW = MeasurementRow(
    key=RunKey(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1),
    part="train",
    kind="train",
    outcome="succeeded",
    finished_at=datetime(2026, 5, 4, 12, tzinfo=UTC),
)


@pytest.fixture
def url(postgres: PostgresServer | GivenServer) -> Iterator[sa.URL]:
    """An empty database over TCP, whose owner is no superuser and has a password that is checked."""
    postgres.start()
    owner = f"yolo_test_{uuid.uuid4().hex[:12]}"
    postgres.create_user(owner, PASSWORD)
    database = postgres.create_database(owner=owner).database
    assert database is not None
    yield postgres.url(database, user=owner, password=PASSWORD)
    postgres.drop_database(database)
    postgres.drop_user(owner)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ProfileStoreHook]:
    """Define the default connection and make a hook."""

    def define(url: sa.URL, **changes: Any) -> ProfileStoreHook:
        connection = {
            "conn_type": "postgres",
            "host": url.host,
            "port": url.port,
            "login": url.username,
            "password": url.password,
            "schema": url.database,
        }
        monkeypatch.setenv("AIRFLOW_CONN_YOLO_PROFILES_DEFAULT", json.dumps(connection | changes))
        return ProfileStoreHook()

    return define


def ask(hook: ProfileStoreHook, question: str) -> Any:
    with hook.get_store().engine.connect() as connection:
        return connection.execute(sa.text(question)).scalar()


@pytest.mark.parametrize("conn_type", ["postgres", "yolo_profiles"])
def test_what_a_task_records_is_there_for_the_next(connect, url: sa.URL, conn_type: str):
    open_store(url)
    connect(url, conn_type=conn_type).get_store().record([ROW])
    hook = connect(url, conn_type=conn_type)
    assert [stored.row for stored in hook.get_store().measurements("dag", "run")] == [ROW]
    assert ask(hook, "SELECT session_user") == url.username
    ok, said = hook.test_connection()
    assert ok
    assert str(url.database) in said


def test_what_extra_says_reaches_the_server(connect, url: sa.URL):
    open_store(url)
    plain = connect(url)
    assert ask(plain, "SHOW application_name") == "yolo-airflow-provider"
    hook = connect(url, extra=json.dumps({"statement_timeout": 1.5, "application_name": "a b"}))
    assert ask(hook, "SHOW statement_timeout") == "1500ms"
    assert ask(hook, "SHOW application_name") == "a b"


def test_the_host_may_be_the_folder_of_a_socket(connect, postgres: PostgresServer | GivenServer, url: sa.URL):
    from postgres_server import PostgresServer

    if not isinstance(postgres, PostgresServer):
        pytest.skip("nobody knows where the socket of the server in TEST_POSTGRES_URL is")
    open_store(url)
    hook = connect(url, host=str(postgres.folder), port=postgres.port, password=None)
    hook.get_store().record([ROW])
    assert ask(hook, "SELECT inet_server_addr()") is None
    assert len(hook.get_store().measurements("dag", "run")) == 1


def test_missing_tables_are_left_to_the_upgrade(connect, url: sa.URL):
    hook = connect(url)
    with pytest.raises(StoreOutdatedError, match=r"has no tables yet.*`yolo-airflow db upgrade`"):
        hook.get_store()
    ok, said = hook.test_connection()
    assert not ok
    assert "`yolo-airflow db upgrade`" in said
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        assert sa.inspect(connection).get_table_names() == []
    open_store(url)
    assert hook.get_store().measurements("dag", "run") == []


def test_a_password_is_never_shown(connect, url: sa.URL, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    hook = connect(url)
    shown = [repr(hook.get_url()), str(hook.get_url()), hook.test_connection()[1]]
    wrong: list[tuple[dict[str, Any], type[StoreError]]] = [
        ({}, StoreOutdatedError),
        ({"schema": "yolo_test_none"}, StoreError),
        ({"password": "not hunter2"}, StoreError),
    ]
    for changes, error in wrong:
        with pytest.raises(error) as caught:
            connect(url, **changes).get_store()
        assert str(url.host) in str(caught.value)
        shown += [str(caught.value), repr(caught.value), repr(caught.value.__cause__)]
    open_store(url)
    hook = connect(url)
    store = hook.get_store()
    store.record([ROW])
    shown += [repr(store), repr(store.engine), hook.test_connection()[1], caplog.text]
    for text in shown:
        assert "hunter2" not in text
