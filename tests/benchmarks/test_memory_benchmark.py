from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks import memory, timing
from benchmarks.memory_points import read
from yolo_airflow_provider.planner.catalogue import architecture
from yolo_airflow_provider.planner.need import Workload, needed

COLUMN_NAMES = (
    "id,source,framework,version,date,kind,use,model,task,nc,imgsz,batch_total,batch_gpu,gpus,precision,optimizer,gpu,"
    "gpu_total_bytes,memory_bytes,printed,unit,instances,epoch,its_per_s,epoch_seconds,images,outcome,note"
)
COLUMNS = COLUMN_NAMES.split(",")


def line(number: int, **changes: object) -> dict[str, object]:
    name = str(changes.get("model", "yolov8n"))
    batch = int(str(changes.get("batch_gpu") or 16))
    known = architecture(name)
    need = needed(Workload(known, 640, "amp"), batch).reserved if known else 1
    row: dict[str, object] = dict.fromkeys(COLUMNS, "")
    return row | {
        "id": f"p{number}", "source": f"thread-{number}", "framework": "ultralytics", "kind": "epoch_row",
        "use": "need", "model": name, "nc": known.classes if known else "", "imgsz": 640, "batch_gpu": batch, "gpus": 1,
        "precision": "amp", "gpu": "Tesla T4", "gpu_total_bytes": 15636365312, "memory_bytes": need, "images": 1600,
        "its_per_s": 5.0, "epoch": "1/10", "outcome": "ok",
    } | changes  # fmt: skip


@pytest.fixture
def points(tmp_path: Path) -> Path:
    rows = [line(number, model=name) for number, name in enumerate(("yolov8n", "yolov8m", "yolo11s", "yolov5s"))]
    rows += [
        line(10, model="detectron"),
        line(11, use="crowded", instances=1600, memory_bytes=9e9),
        line(12, use="limit", outcome="oom", batch_gpu=281, memory_bytes=8e9, gpu_total_bytes=8_000_000_000),
        line(13, batch_gpu=""),
    ]
    with (tmp_path / "points.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path / "points.csv"


def test_a_table_of_other_sources_is_predicted_by_what_is_shipped(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memory.main(["--points", str(points), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["need"]["rows"] == 4
    assert found["need"]["median_abs_error_percent"] == pytest.approx(0, abs=0.01)
    assert found["need"]["bound_coverage_percent"] == 100
    assert found["need"]["bound_over_value_median"] > 1.05
    assert found["crowded"]["rows"] == 1
    assert found["fitted"] == {"rows": 5, "refused_percent": 0, "refused": []}
    (limit,) = found["limit"]
    assert 0 < limit["planned_batch"] < 281


def test_rows_that_cannot_be_asked_about_are_named(points: Path) -> None:
    rows, left_out = read(points)
    assert left_out == ["p10", "p13"]
    assert {row.id for row in rows} == {"p0", "p1", "p2", "p3", "p11", "p12"}


def test_no_source_calibrates_its_own_prediction(points: Path) -> None:
    """Of two sources one measured half, the other twice of what is shipped: each is predicted by the other."""
    rows, _ = read(points)
    base = [row for row in rows if row.use == "need"]
    halves = [
        memory.replace(row, source=source, point=memory.replace(row.point, measured_bytes=row.point.measured_bytes * f))
        for source, f in (("low", 0.5), ("high", 2.0))
        for row in base * 5
    ]
    found = memory.cross_validated(halves, frozenset(map(memory.digest, ("low", "high"))))
    for one in found:
        assert one.error_percent > 100 if one.row.source == "low" else one.error_percent < -50


def test_a_table_too_small_to_calibrate_says_what_predicts_it(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = read(points)
    found = memory.cross_validated(rows, frozenset(memory.digest(row.source) for row in rows))
    assert len(found) == 6
    assert "thread-0 calibrated what predicts it: only 3 rows of others" in capsys.readouterr().err


def test_the_shipped_constants_are_of_these_sources() -> None:
    assert len(memory.SOURCES.read_text().split()) > 100
    assert all(len(digest) == 12 for digest in memory.SOURCES.read_text().split())


def test_times_are_compared_as_factors(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert timing.main(["--points", str(points), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 6
    assert found["median_factor"] >= 1
    assert set(found["by_card"]) == {"Tesla T4"}
