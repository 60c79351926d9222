from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone

import pandas as pd
import pytest

from yolo_airflow_provider.commands import tables


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (tables.memory_text(3 * 2**30), "3.00 GiB"),
        (tables.memory_text(512 * 2**20), "512.0 MiB"),
        (tables.memory_text(0), "0.0 MiB"),
        (tables.seconds_text(7.46), "7.5 s"),
        (tables.seconds_text(180), "3.0 min"),
        (tables.seconds_text(12_240), "3.4 h"),
        (tables.moment_text(datetime(2026, 5, 4, 1, 30, tzinfo=timezone(timedelta(hours=2)))), "2026-05-03 23:30"),
        (tables.moment_text(date(2026, 5, 4)), "2026-05-04"),
        (tables.device_text({"accelerator_kind": "cpu"}), "cpu"),
        (tables.device_text({"accelerator_kind": None}), ""),
        (
            tables.device_text({"accelerator_kind": "mig", "product": "NVIDIA-A30", "mig_profile": "1g.6gb"}),
            "1x 1g.6gb of NVIDIA-A30",
        ),
        (tables.device_text({"accelerator_kind": "gpu", "product": None, "mig_profile": None}), "1x an unnamed GPU"),
    ],
)
def test_values_have_the_units_of_people(shown: str, text: str) -> None:
    assert shown == text


def test_a_cell_is_one_line_without_escape_sequences() -> None:
    assert tables.printable("\x1b[31mred\x1b[0m\nsecond") == "?[31mred?[0m"
    assert tables.printable("  \n") == ""
    assert len(tables.printable("x" * 500)) == 60
    assert tables.printable("Zellen-Größe é 細胞") == "Zellen-Größe é 細胞"


def test_records_are_plain_values() -> None:
    frame = pd.DataFrame(
        {
            "count": pd.array([2**53 + 1, None], dtype="Int64"),
            "share": pd.array([0.1, None], dtype="Float64"),
            "name": pd.array(["a", None], dtype="string"),
            "at": pd.to_datetime(pd.Series(["2026-05-04T12:00:00.000001Z", None]), utc=True),
            "data": pd.Series([{"a": [1]}, []], dtype=object),
        }
    )
    first, second = tables.records(frame)
    at = datetime(2026, 5, 4, 12, 0, 0, 1, tzinfo=UTC)
    assert first == {"count": 2**53 + 1, "share": 0.1, "name": "a", "at": at, "data": {"a": [1]}}
    assert type(first["at"]) is datetime
    assert second == {"count": None, "share": None, "name": None, "at": None, "data": []}
    assert json.dumps([first["count"], first["share"]]) == "[9007199254740993, 0.1]"


def test_a_table_says_when_it_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table({"a": tables.text("a")}, [], empty="nothing there")
    assert capsys.readouterr().out == "nothing there\n"


def test_a_text_that_looks_like_a_number_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_table({"run": tables.text("run"), "n": tables.count("n")}, [{"run": "007", "n": None}], empty="")
    assert "007" in capsys.readouterr().out.splitlines()[2]
