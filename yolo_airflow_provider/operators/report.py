"""What the task's log says of an ended run: one block with what happened, the numbers, and what comes next."""

from __future__ import annotations

from kubernetes.client import models as k8s

from yolo_airflow_provider.contract import JobResult, JobSpec, Measurement
from yolo_airflow_provider.operators.pod_status import how_it_ended
from yolo_airflow_provider.operators.pods import memory_limit

_WIDTH = 12


def failure(spec: JobSpec, result: JobResult, pod: k8s.V1Pod | None, *, container: str, coming: str) -> str:
    """The block of a run that failed.

    Args:
        spec: the job.
        result: with its failure.
        pod: that ran it, None for a local run or where it is gone.
        container: name of the worker's container.
        coming: what the next try will do.
    """
    failed = result.failure
    ran = pod is None or (pod.status is not None and how_it_ended(pod, container) is not None)
    lines = [
        ("what", f"{failed.failure_class}: {failed.message}" if failed else "succeeded"),
        ("to do", failed.hint if failed else ""),
        ("ran", _what(spec)),
        *_numbers(spec, result),
        ("where", _where(pod, container)),
        ("log", f"{spec.run_folder}/worker-{spec.identity.try_number}.log, kept when the pod is gone" if ran else ""),
        ("next try", coming),
    ]
    return "The run failed.\n" + "\n".join(f"  {name:<{_WIDTH}}{text}" for name, text in lines if text)


def success(spec: JobSpec, result: JobResult, pod: k8s.V1Pod | None, *, container: str) -> str:
    """One line of a run that succeeded."""
    told = [_what(spec), *(f"{name} {text}" for name, text in _numbers(spec, result)), _where(pod, container)]
    return "Succeeded: " + "; ".join(text for text in told if text)


def _what(spec: JobSpec) -> str:
    job, given = spec.job, spec.accelerator
    on = given.kind if given.kind == "cpu" else f"{given.mig_profile or 'gpu'} of {given.product or 'an unnamed GPU'}"
    model = f"{job.model} at {job.imgsz}, " if hasattr(job, "model") else ""
    batch = f"batch {job.batch}, " if hasattr(job, "batch") else ""
    return f"{job.kind}: {model}{batch}on {on}, try {spec.identity.try_number}"


def _numbers(spec: JobSpec, result: JobResult) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for measured in result.measurements:
        lines.append((measured.part, ", ".join(_measured(measured)) or "nothing measured"))
    if result.train is not None:
        lines.append(("epochs", f"{result.train.epochs_done} of {result.train.epochs}"))
    if budget := spec.accelerator.memory_budget_bytes:
        lines.append(("budget", _gib(budget)))
    return lines


def _measured(measured: Measurement) -> list[str]:
    told = [("peak", measured.peak_device_bytes), ("process", measured.peak_rss_bytes)]
    numbers = [f"{name} {_gib(value)}" for name, value in told if value is not None]
    if measured.epoch_seconds is not None:
        numbers.append(f"{measured.epoch_seconds:.1f} s an epoch")
    if measured.data_wait_percent is not None:
        numbers.append(f"{measured.data_wait_percent:.0f} % waiting for data")
    return numbers


def _where(pod: k8s.V1Pod | None, container: str) -> str:
    if pod is None:
        return ""
    told = [f"pod {pod.metadata.name}"]
    if pod.spec.node_name:
        told.append(f"node {pod.spec.node_name}")
    if limit := memory_limit(pod, container=container):
        told.append(f"memory limit {limit}")
    ended = how_it_ended(pod, container)
    if ended is not None:
        told.append(f"{ended.reason or 'ended'}, exit code {ended.exit_code}")
        if ended.started_at and ended.finished_at:
            told.append(f"after {(ended.finished_at - ended.started_at).total_seconds():.0f} s")
    elif pod.status is not None and pod.status.phase:
        told.append(f"phase {pod.status.phase}")
    return ", ".join(told)


def _gib(memory_bytes: int) -> str:
    return f"{memory_bytes / 2**30:.2f} GiB"
