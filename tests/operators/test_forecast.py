"""What the planner is told of a training that never ran."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from yolo_airflow_provider.contract import ArchitectureFacts, DatasetSummary, JobResult, JobSpec, ModelFacts
from yolo_airflow_provider.gpus.cards import offered
from yolo_airflow_provider.operators.forecast import (
    architecture_of,
    constants_of,
    epoch_time,
    known_architecture,
    workload,
)
from yolo_airflow_provider.operators.record import model_rows
from yolo_airflow_provider.planner.catalogue import architecture, for_classes
from yolo_airflow_provider.planner.need import CONTEXT_BYTES, GPU, needed
from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.records import EvidenceRow, RelativeRow
from yolo_airflow_provider.profiles.store import ProfileStore

SLICE = offered("2g.10gb@a100-40gb")[0]
CPU = offered("cpu:8Gi")[0]
CELLS = DatasetSummary(
    name="cells",
    fingerprint="f" * 64,
    classes=3,
    train_images=2000,
    val_images=200,
    size_bytes=10**9,
    objects_mean=12.0,
    objects_p95=25.0,
    objects_max=30,
    data_yaml="datasets/cells/data.yaml",
    report="report.json",
)


def relative(**changes: Any) -> RelativeRow:
    row = RelativeRow(
        id=1, model="yolov8m", classes=3, imgsz=640, precision="amp", optimizer="SGD", batch=16, objects_mean=12.0,
        objects_p95=25.0, objects_max=30, cache=None, peak_device_bytes=8 * 2**30,
    )  # fmt: skip
    return row._replace(**changes)


@pytest.mark.parametrize(
    ("model", "known"),
    [("yolov8m", True), ("yolov8m.pt", True), ("/data/yolov8m.pt", True), ("/data/yolov8m.yaml", False), ("x", False)],
)
def test_a_file_may_hold_anything_under_any_name(model: str, known: bool) -> None:
    assert (known_architecture(model) is not None) is known


def test_the_data_set_is_part_of_the_workload() -> None:
    found = workload(architecture("yolov8m"), 640, amp=True, optimizer="SGD", accelerator=SLICE, dataset=CELLS)
    assert found is not None
    assert (found.classes, found.precision, found.on_cpu) == (3, "amp", False)
    assert found.objects is not None
    assert found.objects.largest == 30
    on_cpu = workload(architecture("yolov8m"), 640, amp=True, optimizer="SGD", accelerator=CPU, dataset=None)
    assert on_cpu is not None
    assert (on_cpu.precision, on_cpu.on_cpu, on_cpu.objects) == ("fp32", True, None)


def test_trainings_of_other_models_correct_the_prediction() -> None:
    asked = workload(architecture("yolov8s"), 640, amp=True, optimizer="SGD", accelerator=SLICE, dataset=CELLS)
    ran = workload(architecture("yolov8m"), 640, amp=True, optimizer="SGD", accelerator=SLICE, dataset=CELLS)
    assert asked is not None
    assert ran is not None
    took = needed(ran, 16).reserved * 1.15 + CONTEXT_BYTES
    taught = constants_of([relative(id=number, peak_device_bytes=int(took)) for number in range(12)], SLICE)
    assert 1.05 < needed(asked, 16, taught).reserved / needed(asked, 16).reserved < 1.15


def test_what_cannot_teach_is_left_out() -> None:
    odd = [relative(model="/data/mine.yaml"), relative(peak_device_bytes=CONTEXT_BYTES // 2)]
    assert constants_of(odd, SLICE) == GPU
    kept = constants_of([relative(precision="fp32", cache="ram")], CPU)
    assert kept == constants_of([], CPU)


def test_the_time_of_an_epoch_is_told_from_what_ran() -> None:
    ran = EvidenceRow(
        id=7, kind="train", outcome="succeeded", finished_at=None, accelerator_kind="mig", imgsz=640, batch=16,
        train_images=1000, workers=8, cache=None, budget_bytes=None, container_limit_bytes=None,
        peak_device_bytes=2**33, peak_rss_bytes=None, peak_container_bytes=None, epoch_seconds=50.0,
        images_per_second=20.0, mig_profile="2g.10gb",
    )  # type: ignore[arg-type]  # fmt: skip
    given = {"amp": True, "workers": 8, "cached": False, "accelerator": SLICE}
    times = epoch_time(architecture("yolov8m"), 640, **given, dataset=CELLS, known=[ran])  # type: ignore[arg-type]
    assert times is not None
    measured, scaled = times(16), times(8)
    assert measured is not None
    assert scaled is not None
    assert (measured.expected_seconds, measured.basis) == (100.0, "measured")
    assert scaled.basis == "scaled"
    cold = epoch_time(architecture("yolov8m"), 640, **given, dataset=CELLS, known=[])  # type: ignore[arg-type]
    assert cold is not None
    told = cold(16)
    assert told is not None
    assert told.basis == "predicted"
    assert epoch_time(architecture("yolov8m"), 640, **given, dataset=None, known=[]) is None  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return open_store(sa.URL.create("sqlite", database=str(tmp_path / "forecast.db")))


def facts_of(name: str, as_name: str) -> ArchitectureFacts:
    known = architecture(name)
    assert known is not None
    return ArchitectureFacts(**(asdict(known) | {"name": as_name}))


def spec_of(model: str) -> JobSpec:
    return JobSpec.model_validate(
        {
            "job": {"kind": "train", "model": model, "data": "d.yaml", "imgsz": 320, "epochs": 1, "batch": 4},
            "identity": {"dag_id": "d", "run_id": "r", "task_id": "t"},
            "accelerator": {"kind": "cpu"},
            "workspace": "/ws",
            "run_folder": "/ws/d",
            "result_path": "/ws/result",
        }
    )


def test_an_architecture_of_ones_own_is_known_from_preprocessing_and_then_from_the_store(store: ProfileStore) -> None:
    mine = facts_of("yolov8n", "mine")
    assert architecture_of("/data/mine.yaml", "detect", None, store) is None
    assert architecture_of("/data/other.yaml", "detect", mine, store) is None
    given = architecture_of("/data/mine.yaml", "detect", mine, store)
    store.record([], models=model_rows(spec_of("/data/mine.yaml"), JobResult(kind="train", architecture=mine)))
    assert given is not None
    assert architecture_of("/data/mine.yaml", "detect", None, store) == given
    assert architecture_of("/data/mine.yaml", "segment", None, store) is None


def test_the_newest_analysis_is_taken(store: ProfileStore) -> None:
    for name in ("yolov8n", "yolov8s"):
        result = JobResult(kind="train", architecture=facts_of(name, "mine"))
        store.record([], models=model_rows(spec_of("/data/mine.yaml"), result))
    found = architecture_of("/data/mine.yaml", "detect", None, store)
    assert found is not None
    assert found.parameters == facts_of("yolov8s", "mine").parameters


@pytest.mark.parametrize(("parameters", "is_known"), [(0, True), (500_000, False)])
def test_a_known_architecture_is_recorded_with_its_analysis(parameters: int, is_known: bool) -> None:
    known = architecture("yolov8n")
    assert known is not None
    mine = for_classes(known, 3)
    facts = ModelFacts(
        name="yolov8n", task="detect", parameters=mine.parameters + parameters, stride=32, classes=3, gflops=2.0
    )
    (row,) = model_rows(spec_of("yolov8n"), JobResult(kind="train", model=facts))
    assert (row.classes, row.gflops, row.gflops_imgsz) == (3, 2.0, 320)
    assert (row.amp_bytes_per_pixel == mine.amp_bytes_per_pixel) is is_known


def test_the_analysis_of_the_trained_classes_is_one_row() -> None:
    mine = facts_of("yolov8n", "mine")
    facts = ModelFacts(name="mine", task="detect", parameters=mine.parameters, stride=32, classes=80)
    rows = model_rows(spec_of("/data/mine.yaml"), JobResult(kind="train", model=facts, architecture=mine))
    assert [row.kernels for row in rows] == [mine.kernels]
