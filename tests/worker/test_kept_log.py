"""The worker's own copy of its log, for when the pod and Airflow's copy are gone."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.worker import job
from yolo_airflow_provider.worker.log import kept, say

MakeJob = Callable[..., dict[str, Any]]


def test_d6_what_is_printed_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run" / "worker-1.log"
    with kept(path):
        say("epoch 1/3: grün ✅")
        assert path.read_text() == "epoch 1/3: grün ✅\n"  # at once, and a kill may come
        print("to stderr", file=sys.stderr)
        sys.stdout.writelines(["two\n", "lines\n"])
        logging.StreamHandler(sys.stdout).emit(logging.makeLogRecord({"msg": "logged"}))
    say("after")
    text = path.read_text()
    assert text.endswith("to stderr\ntwo\nlines\nlogged\n")
    out, err = capsys.readouterr()
    assert out.endswith("two\nlines\nlogged\nafter\n")
    assert err == "to stderr\n"


def test_d6_a_pod_that_restarts_appends(tmp_path: Path) -> None:
    for line in ("first", "second"):
        with kept(tmp_path / "worker-1.log"):
            say(line)
    assert (tmp_path / "worker-1.log").read_text() == "first\nsecond\n"


def test_d6_the_streams_are_as_before_to_who_asks_them(tmp_path: Path) -> None:
    encoding, terminal = sys.stdout.encoding, sys.stdout.isatty()
    with kept(tmp_path / "worker-1.log"):
        assert (sys.stdout.encoding, sys.stdout.isatty()) == (encoding, terminal)


@pytest.mark.parametrize("place", ["/dev/full", "/proc/no/such/worker-1.log"])
def test_d6_a_full_disk_or_an_unwritable_folder_is_no_matter(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    with kept(Path(place)):
        say("epoch 1/3")
        say("epoch 2/3")
    assert capsys.readouterr().out == "epoch 1/3\nepoch 2/3\n"


def test_d6_a_traceback_is_in_the_runs_folder(make_job: MakeJob, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from yolo_airflow_provider.worker import dataset

    def broken(*_: Any) -> None:
        raise KeyError("names")

    monkeypatch.setattr(dataset, "preprocess", broken)
    spec = make_job("preprocess", try_number=2, data=str(shapes), imgsz=64)
    assert job.main({"YOLO_JOB": json.dumps(spec)}) == 1
    text = (Path(spec["run_folder"]) / "worker-2.log").read_text()
    assert "Traceback (most recent call last)" in text
    assert "in broken" in text
    assert text.splitlines()[-1] == "code: KeyError: 'names'"
