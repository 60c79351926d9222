"""What a failure's hint promises is what the next try does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.contract import Failure, FailureClass, JobSpec, Measurement
from yolo_airflow_provider.worker.failures import JobError, Stopped, describe_failure, hint_of
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.job import _Work

MakeJob = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("job", "on_cpu", "said"),
    [
        ("train", True, "takes a smaller batch"),
        ("train", False, "keeps the batch and is given more host memory"),
        ("probe", False, "keeps the batch and is given more host memory"),
        ("preprocess", True, "give the task more memory"),
        ("export", False, "give the task more memory"),
    ],
)
def test_host_memory_is_a_matter_of_the_batch_only_on_cpu(job: str, on_cpu: bool, said: str) -> None:
    hint = hint_of(FailureClass.HOST_OOM, job=job, on_cpu=on_cpu)
    assert said in hint
    assert ("smaller batch" in hint) == (job == "train" and on_cpu)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("train", "resumes from the last whole epoch"),
        ("probe", "keeps the points that were measured"),
        ("export", "does it again"),
        ("preprocess", "does it again"),
    ],
)
def test_only_a_training_resumes_from_an_epoch(job: str, said: str) -> None:
    assert said in describe_failure(Stopped(), job=job, on_cpu=True).hint
    assert said in hint_of(FailureClass.GPU_LOST, job=job, on_cpu=False)


def test_an_errors_own_hint_comes_first() -> None:
    error = JobError(FailureClass.PREEMPTED, "m", hint="nothing to do")
    assert describe_failure(error, job="train", on_cpu=True).hint == "nothing to do"


@pytest.mark.parametrize(
    ("kind", "failure_class", "needed_bytes"),
    [("gpu", "host_oom", None), ("gpu", "gpu_oom", 2**32), ("cpu", "host_oom", 2**32), ("cpu", "disk_full", None)],
)
def test_the_peak_is_what_was_needed_of_the_memory_that_it_is_a_peak_of(
    kind: str, failure_class: str, needed_bytes: int | None, make_job: MakeJob
) -> None:
    raw = make_job("train", model="yolov8n", data="d.yaml", imgsz=64, epochs=1, batch=4) | {
        "accelerator": {"kind": kind}
    }
    spec = JobSpec.from_json(json.dumps(raw))
    work = _Work(spec, Fence(Path(spec.run_folder), 1))
    work._measured = lambda failure: (
        Measurement(
            part="train",
            failure_class=failure,
            batch=4,
            precision="fp32",
            optimizer="SGD",
            workers=0,
            peak_device_bytes=2**32,
        ),
    )
    result = work.failed(Failure(failure_class=FailureClass(failure_class), message="m"))
    assert result.failure is not None
    assert result.failure.needed_bytes == needed_bytes
