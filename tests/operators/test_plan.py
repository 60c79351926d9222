"""Which measurements count as evidence, and that the store takes every choice."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from yolo_airflow_provider.contract import Accelerator as Given, Identity, JobSpec, TrainJob
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators.plan import decision_row, observations
from yolo_airflow_provider.planner.choice import Choice, Question, Why
from yolo_airflow_provider.profiles.records import EvidenceRow


def known(**changes: Any) -> EvidenceRow:
    row = EvidenceRow(
        id=1,
        kind="train",
        outcome="succeeded",
        finished_at=datetime(2026, 12, 1, tzinfo=UTC),
        accelerator_kind="cpu",
        imgsz=640,
        batch=16,
        train_images=None,
        workers=None,
        cache=None,
        budget_bytes=None,
        container_limit_bytes=None,
        peak_device_bytes=2**31,
        peak_rss_bytes=None,
        peak_container_bytes=None,
        epoch_seconds=None,
        images_per_second=None,
        mig_profile=None,
    )
    return row._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"outcome": "host_oom"}, True),
        ({"outcome": "host_oom", "accelerator_kind": "mig"}, False),
        ({"outcome": "gpu_oom", "accelerator_kind": "mig"}, True),
        ({"outcome": "preempted"}, False),
        ({"outcome": "code"}, False),
        ({"batch": None}, False),
        ({"cache": "ram"}, False),
        ({"cache": "ram", "accelerator_kind": "gpu"}, True),
        ({"cache": "disk"}, True),
    ],
)
def test_what_counts(changes: dict[str, Any], counts: bool) -> None:
    assert bool(observations([known(**changes)])) is counts


def test_on_cpu_images_in_memory_come_on_top_of_what_was_measured_without_them() -> None:
    kept = 100 * 320 * 320 * 3
    without = known(budget_bytes=2**32)
    (read,) = observations([without], cached=kept)
    assert (read.peak_bytes, read.budget_bytes) == (2**31 + kept, 2**32 + kept)
    measured = known(cache="ram", train_images=100, imgsz=320)
    assert observations([measured], cached=kept)[0].peak_bytes == 2**31
    assert observations([measured])[0].peak_bytes == 2**31 - kept


def test_on_a_gpu_images_in_memory_are_the_nodes_matter() -> None:
    (read,) = observations([known(accelerator_kind="mig")], cached=2**33)
    assert read.peak_bytes == 2**31


@pytest.mark.parametrize("why", get_args(Why))
def test_the_store_takes_every_choice(why: Why) -> None:
    accelerator = Accelerator(kind="cpu", memory_bytes=2**32)
    question = Question(model="yolov8n", imgsz=320, accelerator=accelerator)
    choice = Choice(batch=8, why=why, memory=None, epoch_seconds=None, candidates=(), evidence=(1,), sentence="batch 8")
    spec = JobSpec(
        job=TrainJob(model="yolov8n", data="d", imgsz=320, epochs=1, batch=8),
        identity=Identity(dag_id="d", run_id=why, task_id="t"),
        accelerator=Given(kind="cpu"),
        workspace="/ws",
        run_folder="/ws/r",
        result_path="/x",
    )
    store = ProfileStoreHook().get_store()
    store.decide(decision_row(question, choice, spec, amp=True))
    (read,) = store.decisions("d", why)
    assert (read.basis, read.batch, read.precision, read.evidence) == (why, 8, "fp32", [1])
