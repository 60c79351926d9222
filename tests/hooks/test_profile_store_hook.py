from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.get_provider_info import get_provider_info
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.profiles.errors import StoreError, StoreOutdatedError

PASSWORD = "hunter2 /@:%p"
POSTGRES: dict[str, Any] = {
    "conn_type": "postgres",
    "host": "db.example",
    "login": "yolo",
    "password": PASSWORD,
    "schema": "profiles",
    "port": 5433,
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW_CONN_YOLO_PROFILES_DEFAULT", raising=False)
    monkeypatch.delenv("AIRFLOW__YOLO__PROFILE_STORE", raising=False)
    return tmp_path


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch):
    def define(value: dict[str, Any] | str, name: str = "yolo_profiles_default") -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", text)

    return define


def test_without_a_connection_the_store_is_a_file_in_airflow_home(home: Path):
    hook = ProfileStoreHook()
    store = hook.get_store()
    assert (home / "yolo_profiles.db").exists()
    assert store.decisions("dag", "run") == []
    assert hook.get_store() is store
    assert hook.get_conn() is store


def test_the_embedded_store_can_be_configured(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIRFLOW__YOLO__PROFILE_STORE", f"sqlite:///{home / 'elsewhere' / 'p.db'}")
    ProfileStoreHook().get_store()
    assert (home / "elsewhere" / "p.db").exists()
    assert not (home / "yolo_profiles.db").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("nonsense hunter2", "option \\[yolo\\] profile_store cannot be read"),
        ("sqlite:///relative.db", "absolute path"),
    ],
)
def test_a_wrong_option_is_named(value: str, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIRFLOW__YOLO__PROFILE_STORE", value)
    with pytest.raises(StoreError, match=said) as caught:
        ProfileStoreHook().get_store()
    assert "hunter2" not in str(caught.value)


def test_a_connection_that_someone_named_has_to_exist(home: Path):
    from airflow.sdk.exceptions import AirflowNotFoundException

    with pytest.raises(AirflowNotFoundException, match="mine"):
        ProfileStoreHook(profile_store_conn_id="mine").get_store()
    ok, said = ProfileStoreHook("mine").test_connection()
    assert not ok
    assert "mine" in said
    assert not (home / "yolo_profiles.db").exists()


@pytest.mark.parametrize("conn_type", ["postgres", "yolo_profiles"])
def test_a_postgres_connection_becomes_a_url_by_its_parts(connect, conn_type: str):
    extra = {
        "sslmode": "require",
        "connect_timeout": 3,
        "statement_timeout": 1.5,
        "retry_seconds": "30",
        "host": "evil",
        "cursor": "dictcursor",
        "sslcert": None,
        "sslkey": "",
    }
    connect(POSTGRES | {"conn_type": conn_type, "extra": json.dumps(extra)}, "mine")
    url = ProfileStoreHook("mine").get_url()
    assert url.drivername == "postgresql+psycopg"
    assert (url.username, url.password, url.host, url.port, url.database) == (
        "yolo",
        PASSWORD,
        "db.example",
        5433,
        "profiles",
    )
    assert dict(url.query) == {
        "connect_timeout": "3",
        "retry_seconds": "30",
        "sslmode": "require",
        "statement_timeout": "1.5",
    }
    assert "hunter2" not in repr(url)


def test_a_postgres_connection_may_be_a_uri(connect):
    connect("postgresql://yolo:hunter2@db.example/profiles?sslmode=disable")
    url = ProfileStoreHook().get_url()
    assert (url.host, url.database, url.query["sslmode"]) == ("db.example", "profiles", "disable")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host": ""}, "the field host is empty"),
        ({"schema": None}, r"the field database \(schema\) is empty"),
        ({"conn_type": "mysql"}, "is of type 'mysql'"),
        ({"extra": "[1]"}, "extra is no JSON object"),
        ({"extra": '{"statement_timeout": "soon"}'}, "statement_timeout is 'soon'; give a number of seconds"),
        ({"extra": '{"statement_timeout": -1}'}, "statement_timeout is -1; give a number of seconds"),
        ({"extra": '{"retry_seconds": NaN}'}, "retry_seconds is nan; give a number of seconds"),
        ({"extra": '{"connect_timeout": 2.5}'}, "connect_timeout is 2.5; give a whole number of seconds from 1 to"),
        ({"extra": '{"max_overflow": "many"}'}, "max_overflow is 'many'; give a whole number of connections"),
        ({"extra": '{"sslmode": "on"}'}, "sslmode is 'on'; give disable, allow, prefer, require, verify-ca or"),
    ],
)
def test_an_incomplete_connection_is_named(connect, changes: dict[str, Any], said: str):
    connect(POSTGRES | changes)
    with pytest.raises(StoreError, match=said) as caught:
        ProfileStoreHook().get_url()
    assert "yolo_profiles_default" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_sqlite_connection_is_a_file(connect, tmp_path: Path):
    connect({"conn_type": "sqlite", "host": str(tmp_path / "a.db")})
    ProfileStoreHook().get_store()
    connect(f"sqlite:///{tmp_path / 'b.db'}", "by_uri")
    ProfileStoreHook("by_uri").get_store()
    assert (tmp_path / "a.db").exists()
    assert (tmp_path / "b.db").exists()
    connect({"conn_type": "sqlite", "host": "a.db"}, "relative")
    with pytest.raises(StoreError, match=r"host is 'a\.db'; give the absolute path"):
        ProfileStoreHook("relative").get_store()


def test_postgres_is_never_upgraded_from_a_task(connect, monkeypatch: pytest.MonkeyPatch):
    from yolo_airflow_provider.profiles import engine

    asked = []

    def refuse(url: object, *, upgrade: bool, patience_seconds: float | None) -> None:
        asked.append(upgrade)
        raise StoreOutdatedError("run `yolo-airflow db upgrade`")

    monkeypatch.setattr(engine, "open_store", refuse)
    connect(POSTGRES)
    with pytest.raises(StoreOutdatedError):
        ProfileStoreHook().get_store()
    assert asked == [False]


def test_the_patience_is_given_on(connect, monkeypatch: pytest.MonkeyPatch):
    from yolo_airflow_provider.profiles import engine

    asked = []
    monkeypatch.setattr(engine, "open_store", lambda url, **options: asked.append(options["patience_seconds"]))
    connect(POSTGRES)
    ProfileStoreHook().get_store()
    ProfileStoreHook().get_store(patience_seconds=0)
    assert asked == [None, 0]


def test_testing_the_connection_of_a_file(home: Path):
    ok, said = ProfileStoreHook().test_connection()
    assert ok
    assert said.startswith(f"profile store {home / 'yolo_profiles.db'}: SQLite 3.")
    assert said.endswith("this user may read and write")


def _form() -> dict[str, dict[str, Any]]:
    (declared,) = get_provider_info()["connection-types"]
    return {name: field["schema"] for name, field in declared["conn-fields"].items()}


@pytest.mark.parametrize(("name", "schema"), _form().items())
def test_what_the_form_offers_is_taken(connect, name: str, schema: dict[str, Any]):
    free_text = ["/etc/ssl/a.pem"] if schema["type"][0] == "string" else []
    offered = schema.get("enum", free_text) + [schema[limit] for limit in ("minimum", "maximum") if limit in schema]
    for value in offered:
        connect(POSTGRES | {"extra": json.dumps({name: value})})
        assert ProfileStoreHook().get_url().query.get(name) == (None if value is None else str(value))


def test_airflow_shows_the_form():
    from airflow.providers_manager import ProvidersManager

    fields = {
        name.removeprefix("extra__yolo_profiles__"): widget
        for name, widget in ProvidersManager().connection_form_widgets.items()
        if name.startswith("extra__yolo_profiles__")
    }
    assert fields["sslmode"].field["schema"]["enum"][-2:] == ["verify-full", None]
    assert fields["retry_seconds"].field["schema"]["title"] == "Retry for (s)"


def test_importing_the_hook_loads_nothing_heavy(tmp_path: Path):
    code = (
        "import sys\nfrom airflow.sdk import BaseHook\nbefore = set(sys.modules)\n"
        "import yolo_airflow_provider.hooks.profile_store\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\nprint(sorted(new))"
    )
    root = Path(__file__).resolve().parents[2]
    output = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=os.environ | {"AIRFLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sqlalchemy" not in output.stdout
    assert "pandas" not in output.stdout
    assert "alembic" not in output.stdout
