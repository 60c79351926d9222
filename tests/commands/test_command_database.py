from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from command_rows import ask, measurement, url_of

from yolo_airflow_provider.cli import main
from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.migrate import HEAD_REVISION, KNOWN_REVISIONS
from yolo_airflow_provider.profiles.store import ProfileStore


def change(store: ProfileStore, statement: str) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def db(url: str, *command: str) -> int:
    return main(["db", *command, "--url", url])


def test_upgrade_makes_a_store_and_check_agrees(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert db(store_url, "upgrade") == 0
    assert db(store_url, "upgrade") == 0
    assert capsys.readouterr().out.count("is up to date") == 2
    assert db(store_url, "check") == 0
    captured = capsys.readouterr()
    assert captured.out.endswith(f"is at revision {HEAD_REVISION}, and nothing differs\n")
    assert captured.out.count("\n") == 1
    assert captured.err == ""


def test_check_names_each_difference(store: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    change(store, "DROP VIEW model_spectrum")
    change(store, "DROP INDEX ix_measurement_model")
    assert db(url_of(store), "check") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert all(line.startswith("yolo-airflow db check: ") for line in lines)
    assert any("model_spectrum" in line for line in lines)
    assert any("ix_measurement_model" in line for line in lines)
    assert len(lines) == 2


def test_check_of_an_older_store_says_what_to_do(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    open_store(store_url)
    assert db(store_url, "downgrade", KNOWN_REVISIONS[0], "--yes") == 0
    assert db(store_url, "check") == 1
    error = capsys.readouterr().err
    assert f"is at revision {KNOWN_REVISIONS[0]}" in error
    assert "yolo-airflow db upgrade" in error


def test_a_downgrade_names_what_is_lost_and_waits_for_yes(
    store: ProfileStore, capsys: pytest.CaptureFixture[str]
) -> None:
    url = url_of(store)
    store.record([measurement()])
    assert db(url, "downgrade", "0001") == 1
    error = capsys.readouterr().err
    assert "nothing was changed" in error
    newest, oldest = error.index("0003: "), error.index("0002: What the container was given")
    assert newest < oldest
    assert "0001: " not in error
    assert db(url, "check") == 0

    assert db(url, "downgrade", "0002", "--yes") == 0
    assert "is at revision 0002" in capsys.readouterr().out
    assert ask(store, "history") == 1
    assert "run `yolo-airflow db upgrade`" in capsys.readouterr().err
    assert db(url, "upgrade") == 0
    assert ask(store, "history") == 0
    assert "yolov8n" in capsys.readouterr().out


def test_a_downgrade_to_nowhere_is_refused(store: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    url = url_of(store)
    for yes in ([], ["--yes"]):
        assert db(url, "downgrade", "9999", *yes) == 1
        assert f"there is no revision '9999'; expected one of {', '.join(KNOWN_REVISIONS)}" in capsys.readouterr().err
    assert db(url, "downgrade", HEAD_REVISION) == 1
    assert "nothing to undo" in capsys.readouterr().err
    assert db(url, "check") == 0


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_file_has_no_roles(store: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert db(url_of(store), "roles") == 1
    assert "which has no roles" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["check"], ["downgrade", "0001"], ["downgrade", "0001", "--yes"], ["roles"]])
def test_a_file_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert db(f"sqlite:///{tmp_path}/none.db", *command) == 1
    assert f"there is no profile store at {tmp_path}/none.db" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stranger = tmp_path / "stranger.db"
    with sqlite3.connect(stranger) as database:
        database.execute("CREATE TABLE measurement (x)")
    before = stranger.read_bytes()
    for command in (["upgrade"], ["check"], ["downgrade", "0001", "--yes"]):
        assert db(f"sqlite:///{stranger}", *command) == 1
        assert "it is not a profile store" in capsys.readouterr().err
    (tmp_path / "text.db").write_text("no database" * 100)
    assert db(f"sqlite:///{tmp_path}/text.db", "check") == 1
    assert "file is not a database" in capsys.readouterr().err
    assert stranger.read_bytes() == before


@pytest.mark.parametrize("command", [["db", "check"], ["profiles", "history"], ["profiles", "export", "-"]])
def test_passwords_are_not_repeated(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    # Nothing listens on port 1.
    url = "postgresql+psycopg://me:geheim@127.0.0.1:1/profiles"
    for wrong in ("mysql://me:geheim@host/db", "postgresql+psycopg://me:geheim@host:port/db", f"{url}?lock_timeout=x"):
        assert main([*command, "--url", wrong]) == 1
        captured = capsys.readouterr()
        assert captured.err.startswith(f"yolo-airflow {command[0]} {command[1]}: ")
        assert "geheim" not in captured.err + captured.out


def test_an_outage_is_told_and_not_sat_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from yolo_airflow_provider.commands import opening

    monkeypatch.setattr(opening, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("YOLO_PROFILES_URL", "postgresql+psycopg://me:geheim@127.0.0.1:1/profiles")
    assert main(["profiles", "usage"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("yolo-airflow profiles usage: cannot open the profile store")
    assert "me:***@127.0.0.1:1/profiles" in error


def test_the_command_line_imports_nothing_heavy() -> None:
    program = (
        "import sys; from yolo_airflow_provider.cli import _parser; _parser();"
        "print([n for n in ('airflow', 'sqlalchemy', 'pandas', 'pydantic', 'yaml', 'tabulate') if n in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_the_exports_on_offer_are_those_there_are() -> None:
    from yolo_airflow_provider.commands.transfer import _EXPORTS
    from yolo_airflow_provider.profiles.transfer import EXPORTS
    from yolo_airflow_provider.profiles.views import VIEWS

    assert tuple(EXPORTS) == _EXPORTS
    assert set(EXPORTS.values()) == set(VIEWS)


def test_without_a_url_it_is_the_store_of_the_tasks(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a process of its own, as Airflow says what it likes while it is imported: standard output is JSON alone."""
    url = f"sqlite:///{tmp_path / 'profiles.db'}"
    open_store(url).record([measurement()])
    monkeypatch.setenv("AIRFLOW__YOLO__PROFILE_STORE", url)
    monkeypatch.delenv("YOLO_PROFILES_URL", raising=False)
    command = [sys.executable, "-m", "yolo_airflow_provider.cli", "profiles", "history", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [row["dag_id"] for row in json.loads(ended.stdout)] == ["cells"]
