from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command_rows import LATELY, ask, decision, epoch, measurement, run

from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.records import MeasurementRow
from yolo_airflow_provider.profiles.store import ProfileStore
from yolo_airflow_provider.profiles.views import VIEWS

AWKWARD = 'a "quoted",\r\ntext; with \\, ünïcödé 🎯 and\ttabs\rprogress'


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def exported(store: ProfileStore, file: Path, *options: str) -> list[dict[str, str]]:
    assert ask(store, "export", str(file), *options) == 0
    return rows_of(file.read_bytes().decode())


def imported(store: ProfileStore, run_id: str, origin: str = "site-b") -> list[MeasurementRow]:
    return [item.row for item in store.measurements(f"{origin}:cells", run_id)]


@pytest.fixture
def other(tmp_path: Path) -> ProfileStore:
    return open_store(f"sqlite:///{tmp_path / 'other.db'}")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> ProfileStore:
    """A store for tests after which there is still nothing in it."""
    return open_store(f"sqlite:///{tmp_path_factory.mktemp('empty') / 'profiles.db'}")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_was_exported_is_imported_as_it_was(
    store: ProfileStore, other: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    at = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
    originals = [
        measurement(part="a", finished_at=at, logical_date=at, message=AWKWARD),
        measurement(part="b", message="", node="\\", epoch_seconds=0.1 + 0.2, images_per_second=1e-300),
        measurement(part="c", message="\\N", outcome="gpu_oom", peak_device_bytes=2**62, mig_profile=""),
        measurement(part="d", message="NULL", map50=0.0, batch=None, imgsz=None),
        measurement(part="e", kind="probe", model="-1", dataset="=1+1", node="00012", cache="True"),
        MeasurementRow(key=run(run_id="manual__1"), part="f", kind="train", outcome="lost", finished_at=LATELY),
    ]
    store.record([*originals, measurement(part="g", kind="export"), measurement(part="h", kind="preprocess")])
    file = tmp_path / f"profiles.{suffix}"
    assert ask(store, "export", str(file)) == 0
    assert "wrote 8 rows of run_history" in capsys.readouterr().err

    assert ask(other, "import", str(file), "--origin", "site-b") == 0
    said = capsys.readouterr().out
    assert "imported 6 rows of site-b; 0 were there already" in said
    assert "left out 2 rows" in said
    expected = {
        row.part: replace(row, origin="site-b", key=replace(row.key, dag_id="site-b:cells")) for row in originals
    }
    assert {row.part: row for row in imported(other, "manual__1")} == expected

    before = other.frame("run_history"), other.frame("resource_card"), other.frame("usage_by_dag")
    assert ask(other, "import", str(file), "--origin", "site-b") == 0
    assert "imported 0 rows of site-b; 6 were there already" in capsys.readouterr().out
    for one, again in zip(
        before, (other.frame(n) for n in ("run_history", "resource_card", "usage_by_dag")), strict=True
    ):
        assert one.equals(again)


def test_imported_rows_never_meet_our_own(
    store: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store.record([measurement()])
    file = tmp_path / "profiles.csv"
    exported(store, file)
    assert ask(store, "import", str(file), "--origin", "a") == 0
    assert ask(store, "import", str(file), "--origin", "b") == 0
    capsys.readouterr()
    assert ask(store, "history", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert sorted((row["dag_id"], row["origin"]) for row in rows) == [
        ("a:cells", "a"),
        ("b:cells", "b"),
        ("cells", None),
    ]


@pytest.mark.parametrize(
    ("what", "view"),
    [
        ("measurements", "run_history"),
        ("epochs", "epoch_history"),
        ("decisions", "decision_history"),
        ("cards", "resource_card"),
        ("spectrum", "model_spectrum"),
        ("usage", "usage_by_dag"),
        ("errors", "prediction_error"),
        ("oom", "oom_history"),
    ],
)
def test_everything_can_be_exported(
    store: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path, what: str, view: str
) -> None:
    old = run(run_id="old")
    store.record(
        [
            measurement(),
            measurement(part="end", outcome="gpu_oom"),
            measurement(key=old, hours_ago=100, imgsz=320),
            measurement(key=old, part="end", hours_ago=100, outcome="gpu_oom"),
        ],
        [epoch(1, losses={"box": 1.5}), epoch(1, key=old)],
    )
    store.decide(decision(candidates=[{"batch": 16}], evidence=[1, 2]))
    store.decide(decision(key=old, hours_ago=100))
    rows = exported(store, tmp_path / "rows.csv", "--what", what)
    assert list(rows[0]) == [column.name for column in VIEWS[view].c]
    recent = exported(store, tmp_path / "rows.csv", "--what", what, "--since", "2d")
    assert 0 < len(recent) < len(rows)
    if what == "epochs":
        assert [json.loads(row["losses"]) for row in recent] == [{"box": 1.5}]
    if what == "decisions":
        assert json.loads(recent[0]["candidates"]) == [{"batch": 16}]
    if what == "usage":
        assert recent[0]["day"] == f"{LATELY:%Y-%m-%d}"
        assert datetime.fromisoformat(recent[0]["last_at"]) == LATELY
    assert [path.name for path in tmp_path.glob("*rows*")] == ["rows.csv"]


def test_csv_goes_to_standard_output(store: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.record([measurement(message="a\nb")])
    assert ask(store, "export", "-") == 0
    (row,) = rows_of(capsys.readouterr().out)
    assert (row["message"], row["finished_at"], row["map50"]) == ("a\nb", LATELY.isoformat(), "")


def test_a_history_is_read_in_chunks(store: ProfileStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from yolo_airflow_provider.profiles import transfer

    monkeypatch.setattr(transfer, "READ_ROWS", 3)
    store.record([measurement(part=f"{number:02}") for number in range(10)])
    chunks = [len(chunk) for chunk in transfer.stream(store, transfer.statement("measurements"))]
    assert chunks == [3, 3, 3, 1]
    parts = [row["part"] for row in exported(store, tmp_path / "rows.csv")]
    assert parts == [f"{number:02}" for number in reversed(range(10))]


def test_an_export_that_fails_leaves_the_file_of_before(
    store: ProfileStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from yolo_airflow_provider.commands.files import CsvWriter

    file = tmp_path / "rows.csv"
    file.write_text("of before")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    store.record([measurement()])
    monkeypatch.setattr(CsvWriter, "write", full)
    assert ask(store, "export", str(file)) == 1
    assert f"cannot write {file}: No space left on device" in capsys.readouterr().err
    assert file.read_text() == "of before"
    assert [path.name for path in tmp_path.glob("*rows*")] == ["rows.csv"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "rows.xlsx"], "rows.xlsx is neither CSV nor Parquet by its name"),
        (["export", "/nowhere/rows.csv"], "cannot write /nowhere/rows.csv: No such file or directory"),
        (["import", "rows.xlsx", "--origin", "b"], "neither CSV nor Parquet"),
        (["import", "none.csv", "--origin", "b"], "there is no file none.csv"),
        (["import", "none.csv", "--origin", "b:c"], "the origin 'b:c' is no name"),
    ],
)
def test_what_cannot_be_a_file_is_refused(
    empty: ProfileStore, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert ask(empty, *arguments) == 1
    assert said in capsys.readouterr().err


def test_parquet_without_pyarrow_names_the_extra(
    empty: ProfileStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert ask(empty, "export", str(tmp_path / "rows.parquet")) == 1
    assert "yolo-airflow-provider[parquet]" in capsys.readouterr().err
    assert not list(tmp_path.glob("*rows*"))


HEAD = "dag_id,run_id,task_id,map_index,try_number,part,kind,outcome,finished_at"
KEY = "cells,r,train,-1,1"
GOOD = f"{KEY},good,train,succeeded,2026-05-04T12:00:00+00:00"


def written(folder: Path, *lines: str, head: str = HEAD) -> str:
    file = folder / "foreign.csv"
    file.write_text("\n".join((head, *lines)) + "\n", encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{KEY},a,train,fine,2026-05-04T12:00:00+00:00", "outcome is 'fine': expected one of succeeded, gpu_oom"),
        (f"{KEY},a,training,succeeded,2026-05-04T12:00:00+00:00", "kind is 'training': expected one of train"),
        (f"{KEY},a,train,succeeded,2026-05-04T12:00:00", "finished_at is"),
        # Pydantic would take it for seconds since 1970.
        (f"{KEY},a,train,succeeded,20260504", "a naive time"),
        (f"{KEY},a,train,succeeded,yesterday", "finished_at is 'yesterday': expected a time such as"),
        (f"{KEY},a,train,succeeded,", "finished_at is missing"),
        (",r,train,-1,1,a,train,succeeded,2026-05-04T12:00:00Z", "dag_id is missing"),
        (
            "cells,r,train,x,1,a,train,succeeded,2026-05-04T12:00:00Z",
            "map_index is 'x': Input should be a valid integer",
        ),
    ],
)
def test_a_refused_row_is_named_and_refuses_all(
    empty: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, said: str
) -> None:
    file = written(tmp_path, GOOD, line, GOOD.replace("good", "another"))
    assert ask(empty, "import", file, "--origin", "site-b") == 1
    error = capsys.readouterr().err
    assert "1 rows are refused:\n  line 3: " in error
    assert said in error
    assert imported(empty, "r") == []


def test_refused_rows_can_be_left_out(store: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path, GOOD, GOOD.replace("succeeded", "fine"), GOOD.replace("good", "another"))
    assert ask(store, "import", file, "--origin", "site-b", "--skip-invalid") == 0
    captured = capsys.readouterr()
    assert "line 3: " in captured.err
    assert "imported 2 rows" in captured.out
    assert [row.part for row in imported(store, "r")] == ["good", "another"]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("batch", "0", "batch is 0: expected at least 1"),
        ("batch", "2.5", "batch is '2.5'"),
        ("peak_device_bytes", "-1", "peak_device_bytes is -1: expected at least 0"),
        ("peak_device_bytes", str(2**63), "outside the 64 bits"),
        ("epoch_seconds", "nan", "expected a finite number"),
        ("iowait_percent", "101", "expected at most 100"),
        ("model", "x" * 200, "200 characters, expected at most"),
    ],
)
def test_a_value_is_refused_as_the_store_would(
    empty: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path, column: str, value: str, said: str
) -> None:
    file = written(tmp_path, f"{GOOD},{value}", head=f"{HEAD},{column}")
    assert ask(empty, "import", file, "--origin", "site-b") == 1
    assert said in capsys.readouterr().err


def test_many_refused_rows_are_counted(empty: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = GOOD.replace("succeeded", "fine")
    assert ask(empty, "import", written(tmp_path, *[bad] * 30), "--origin", "site-b") == 1
    error = capsys.readouterr().err
    assert "30 rows are refused" in error
    assert error.count("  line ") == 20
    assert "and 10 more" in error


def test_a_row_after_one_of_several_lines_has_its_own_line(
    empty: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = written(tmp_path, f'{GOOD},"a\nb\nc"', f"{GOOD.replace('succeeded', 'fine')},x", head=f"{HEAD},message")
    assert ask(empty, "import", file, "--origin", "site-b") == 1
    assert "  line 5: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "line", "said"),
    [
        (HEAD.replace("dag_id,", ""), GOOD, "the columns dag_id are missing"),
        (f"{HEAD},peak_bytes", f"{GOOD},1", "the column 'peak_bytes' is no column of a measurement"),
        (f"{HEAD},peak_device_byte", f"{GOOD},1", "did you mean peak_device_bytes?"),
        (f"{HEAD},batch,batch", f"{GOOD},1,2", "the column batch is there more than once"),
        (HEAD, f"{GOOD},1", "line 2 has 10 cells, and the header 9"),
        (HEAD, f'{GOOD},"unended', "as CSV in UTF-8"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    empty: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path, head: str, line: str, said: str
) -> None:
    assert ask(empty, "import", written(tmp_path, line, head=head), "--origin", "site-b") == 1
    assert said in capsys.readouterr().err
    assert imported(empty, "r") == []


def test_files_that_are_no_tables_are_refused(
    empty: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nothing, binary = tmp_path / "nothing.csv", tmp_path / "binary.csv"
    nothing.touch()
    binary.write_bytes(b"\xff\xfe\x00")
    assert ask(empty, "import", str(nothing), "--origin", "b") == 1
    assert "nothing.csv is empty" in capsys.readouterr().err
    assert ask(empty, "import", str(binary), "--origin", "b") == 1
    assert "binary.csv as CSV in UTF-8" in capsys.readouterr().err


def test_rows_are_imported_chunk_by_chunk(
    store: ProfileStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from yolo_airflow_provider.profiles import transfer

    monkeypatch.setattr(transfer, "WRITTEN_ROWS", 4)
    lines = [GOOD.replace("good", f"{number:02}") for number in range(10)]
    # A file that has a row twice has it once in the store.
    assert ask(store, "import", written(tmp_path, *lines, lines[0], lines[9]), "--origin", "site-b") == 0
    assert "imported 10 rows of site-b; 2 were there already" in capsys.readouterr().out
    assert len(imported(store, "r")) == 10


def test_an_imported_profile_is_evidence(store: ProfileStore, tmp_path: Path) -> None:
    from yolo_airflow_provider.profiles.records import ProfileKey

    elsewhere = open_store(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    elsewhere.record([measurement()])
    exported(elsewhere, tmp_path / "rows.csv")
    assert ask(store, "import", str(tmp_path / "rows.csv"), "--origin", "site-b") == 0
    key = ProfileKey(
        model="yolov8n", imgsz=640, precision="amp", accelerator_kind="mig", product="NVIDIA-A100-SXM4-40GB"
    )
    (found,) = store.evidence(key)
    (stored,) = store.measurements("site-b:cells", "manual__1")
    assert found.id == stored.id


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_what_pandas_makes_of_an_export_is_still_one(store: ProfileStore, tmp_path: Path) -> None:
    """Where a value is missing pandas writes integers as 16.0, and times with a space."""
    import pandas as pd

    store.record([measurement(part="a"), measurement(part="b", batch=None, logical_date=LATELY)])
    exported(store, tmp_path / "rows.csv")
    pd.read_csv(tmp_path / "rows.csv", parse_dates=["finished_at"]).to_csv(tmp_path / "again.csv", index=False)
    assert "16.0" in (tmp_path / "again.csv").read_text()
    assert ask(store, "import", str(tmp_path / "again.csv"), "--origin", "notebook") == 0
    found = {row.part: row for row in imported(store, "manual__1", "notebook")}
    assert (found["a"].batch, found["b"].batch) == (16, None)
    assert found["b"].logical_date == found["a"].finished_at == LATELY
