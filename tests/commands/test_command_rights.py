"""What each role of the store can do from the command line."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_rows import MODEL, ask, decision, epoch, measurement, url_of
from psycopg import sql

from yolo_airflow_provider.cli import main
from yolo_airflow_provider.profiles.store import ProfileStore

if TYPE_CHECKING:
    from postgres_server import GivenServer, PostgresServer

pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)


@pytest.fixture
def log_in(
    store: ProfileStore, postgres: PostgresServer | GivenServer, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], str]]:
    """URL of the store for a new login that is a member of a role."""
    assert main(["db", "roles", "--url", url_of(store)]) == 0
    assert "has the roles yolo_writer and yolo_reader" in capsys.readouterr().out
    store.record([measurement(), measurement(part="end", outcome="gpu_oom")], [epoch(1)], [MODEL])
    store.decide(decision())
    made: list[str] = []

    def make(role: str) -> str:
        name = f"yolo_test_{uuid.uuid4().hex[:12]}"
        postgres.create_user(name, "secret")
        made.append(name)
        postgres.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(name)))
        database = store.engine.url.database
        assert database is not None
        return postgres.url(database, user=name, password="secret").render_as_string(hide_password=False)

    yield make
    for name in made:
        postgres.drop_user(name)


def test_a_reader_reads_everything(
    store: ProfileStore, log_in: Callable[[str], str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    reader = log_in("yolo_reader")
    for command in (
        ["card", "yolov8n", "--imgsz", "640"],
        ["card", "yolov8n", "--imgsz", "640", "--batch", "16", "--all"],
        ["history", "--failed"],
        ["usage"],
        ["errors"],
        ["errors", "--rows"],
        ["spectrum"],
    ):
        assert ask(reader, *command) == 0, command
        assert ask(reader, *command, "--json") == 0, command
    for what in ("measurements", "epochs", "decisions", "cards", "spectrum", "usage", "errors", "oom"):
        assert ask(reader, "export", str(tmp_path / "rows.csv"), "--what", what, "--since", "7d") == 0, what
    capsys.readouterr()
    assert ask(reader, "card", "yolov8n", "--imgsz", "320") == 1
    assert "measured sizes of yolov8n: 640" in capsys.readouterr().err
    assert main(["db", "check", "--url", reader]) == 0


def test_what_a_role_may_not_is_told_without_a_traceback(
    store: ProfileStore, log_in: Callable[[str], str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    reader, writer = log_in("yolo_reader"), log_in("yolo_writer")
    assert ask(reader, "export", str(tmp_path / "rows.csv")) == 0
    capsys.readouterr()
    assert ask(reader, "import", str(tmp_path / "rows.csv"), "--origin", "site-b") == 1
    error = capsys.readouterr().err
    assert "permission denied for table measurement" in error
    assert "GRANT yolo_writer TO" in error

    for url, command in (
        (writer, ["profiles", "prune", "--older-than", "1h", "--yes"]),
        (reader, ["profiles", "prune", "--older-than", "1h", "--dry-run"]),
        (reader, ["db", "roles"]),
        (writer, ["db", "roles"]),
        (writer, ["db", "downgrade", "0001", "--yes"]),
    ):
        assert main([*command, "--url", url]) == 1, command
        error = capsys.readouterr().err
        assert error.startswith(f"yolo-airflow {command[0]} {command[1]}: cannot ")
        assert "this takes the role that owns the tables" in error
        assert "secret" not in error
    assert len(store.frame("epoch_history")) == 1


def test_a_writer_imports(
    store: ProfileStore, log_in: Callable[[str], str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    writer = log_in("yolo_writer")
    assert ask(writer, "export", str(tmp_path / "rows.csv")) == 0
    assert ask(writer, "import", str(tmp_path / "rows.csv"), "--origin", "site-b") == 0
    capsys.readouterr()
    assert ask(writer, "history", "--dag", "site-b:cells", "--json") == 0
    assert {row["origin"] for row in json.loads(capsys.readouterr().out)} == {"site-b"}


def test_a_wrong_password_is_no_missing_right(
    store: ProfileStore, log_in: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = log_in("yolo_writer").replace(":secret@", ":guess@")
    for command in (["profiles", "usage"], ["db", "check"], ["db", "roles"], ["db", "upgrade"]):
        assert main([*command, "--url", wrong]) == 1
        error = capsys.readouterr().err
        assert "authentication failed" in error, command
        assert "owns the tables" not in error
        assert "guess" not in error
