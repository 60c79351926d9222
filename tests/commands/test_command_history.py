from __future__ import annotations

import json
from typing import Any

import pytest
from command_rows import GIB, LATELY, ask, measurement, run

from yolo_airflow_provider.profiles.store import ProfileStore
from yolo_airflow_provider.profiles.views import VIEWS


@pytest.fixture
def filled(store: ProfileStore) -> ProfileStore:
    store.record(
        [
            measurement(key=run(run_id="a", map_index=3), hours_ago=50, model="yolo11n"),
            measurement(key=run(run_id="b", dag_id="cars"), hours_ago=10),
            measurement(key=run(run_id="c"), hours_ago=5, outcome="gpu_oom", message="out of\nmemory"),
            measurement(key=run(run_id="d"), hours_ago=4, kind="export", part="end", outcome="data", model=None),
            measurement(key=run(run_id="e"), epoch_seconds=200.0),
        ]
    )
    return store


def runs(store: ProfileStore, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert ask(store, "history", "--json", *options) == 0
    return [row["run_id"] for row in json.loads(capsys.readouterr().out)]


def test_programs_get_every_column(filled: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(filled, "history", "--json", "--limit", "1") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert set(row) == {column.name for column in VIEWS["run_history"].c}
    assert (row["peak_device_bytes"], row["finished_at"]) == (3 * GIB, LATELY.isoformat())
    assert row["message"] is None


def test_people_get_a_table_newest_first(filled: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(filled, "history") == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("finished (UTC)")
    assert [row.split()[3] for row in rows] == ["e", "d", "c", "b", "a"]
    assert rows[0].startswith(f"{LATELY:%Y-%m-%d %H:%M}")
    assert "3.00 GiB" in rows[0]
    assert "3.3 min" in rows[0]
    assert " train[3] " in rows[-1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--limit", "2"], "ed"),
        (["--model", "yolov8n"], "ecb"),
        (["--dag", "cars"], "b"),
        (["--dag", "cars", "--model", "yolo11n"], ""),
        (["--since", "1d"], "edcb"),
        (["--failed"], "dc"),
        (["--failed", "--limit", "1"], "d"),
        (["--failed", "--model", "yolov8n", "--since", "8h"], "c"),
        (["--since", "1h"], ""),
    ],
)
def test_history_is_narrowed(
    filled: ProfileStore, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    assert runs(filled, capsys, *options) == list(expected)


def test_failures_are_shown_with_their_message(filled: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(filled, "history", "--failed", "--model", "yolov8n") == 0
    *_, row = capsys.readouterr().out.splitlines()
    assert "gpu_oom" in row
    assert row.rstrip().endswith("out of")


def test_an_empty_store_says_so(store: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("history", "usage", "spectrum"):
        assert ask(store, command) == 0
        assert "matches" in capsys.readouterr().out
        assert ask(store, command, "--json") == 0
        assert json.loads(capsys.readouterr().out) == []
    assert ask(store, "errors") == 0
    said = capsys.readouterr().out
    assert "no prediction since" in said
    assert "none" in said


def test_wrong_arguments_are_errors_of_usage(store: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["history", "--limit", "0"], ["history", "--limit", "x"], ["card", "yolov8n"], ["nothing"]):
        with pytest.raises(SystemExit) as ended:
            ask(store, *arguments)
        assert ended.value.code == 2
    assert "'0' is no whole number above 0" in capsys.readouterr().err


class ClosedPipe:
    """Standard output whose reader is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError

    def fileno(self) -> int:
        return self._descriptor


def test_a_reader_that_has_seen_enough_is_no_traceback(
    filled: ProfileStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr("sys.stdout", ClosedPipe(file.fileno()))
        assert ask(filled, "history") == 1
