"""A retry policy for the operators' failures: soon where a retry is a new plan, as usual where it is not."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from yolo_airflow_provider import errors

YOLO_RETRY_POLICY = ExceptionRetryPolicy(
    [
        RetryRule(
            [errors.GpuOutOfMemory, errors.HostOutOfMemory, errors.SharedMemoryTooSmall],
            RetryAction.RETRY,
            timedelta(seconds=5),
            "what was too small is a measurement: the next try plans with it",
        ),
        RetryRule(
            [errors.GpuLost, errors.Preempted, errors.ResultLost],
            RetryAction.RETRY,
            timedelta(seconds=30),
            "nothing the run did: the next try resumes",
        ),
    ]
)
"""For `retry_policy=` of a training (Airflow 3.3). It uses the task's `retries`, and cannot add to them. Bad input is
never retried, with or without it."""
