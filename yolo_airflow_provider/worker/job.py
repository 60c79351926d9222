"""One job from its specification to its result: the only way out of the worker.

Whatever happens, a `JobResult` is written to the result path (the container's termination message) and kept in the
run's folder, before the process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from yolo_airflow_provider.contract import (
    EXIT_OUT_OF_MEMORY,
    EXIT_PREEMPTED,
    JOB_VARIABLE,
    MEMORY_FAILURES,
    PARENT_VARIABLE,
    ArchitectureFacts,
    ContractError,
    Failure,
    FailureClass,
    JobResult,
    JobSpec,
    Measurement,
    PreprocessJob,
    ProbeJob,
    TrainJob,
)
from yolo_airflow_provider.worker.failures import JobError, Stopped, classify, describe_failure
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.files import make_folder, write_atomically
from yolo_airflow_provider.worker.log import gib, kept, say

_DEFAULT_RESULT_PATH = "/dev/termination-log"
_PR_SET_PDEATHSIG = 1


def main(environment: Mapping[str, str] | None = None) -> int:
    """Do the job of the environment; returns the exit code.

    0 succeeded, 75 stopped from outside, 17 out of memory, 2 a specification that cannot be read, 1 any other failure.
    """
    variables = os.environ if environment is None else environment
    _end_with_parent(variables)
    try:
        # PID 1 of a container ignores SIGTERM unless it says otherwise. Jobs that go by batches wait for one to end.
        signal.signal(signal.SIGTERM, _stopped)
        return _main(variables)
    except Stopped:
        return EXIT_PREEMPTED  # before the job began; the exit code stands for the answer


def _main(variables: Mapping[str, str]) -> int:
    text = variables.get(JOB_VARIABLE, "")
    try:
        spec = JobSpec.from_json(text)
    except ContractError as error:
        failure = Failure(failure_class=FailureClass.CODE, message=str(error), stage="setup")
        _ignore_sigterm()
        _answer(JobResult(kind="unknown", failure=failure), _raw_result_path(text))
        return 2
    fence = Fence(Path(spec.run_folder), spec.identity.try_number, spec.identity.attempt)
    with kept(fence.folder / f"worker-{fence.try_number}.log"):
        result = _answer(run(spec, fence), Path(spec.result_path), fence=fence, on_cpu=_on_cpu(spec))
    return exit_code(result.failure)


def run(spec: JobSpec, fence: Fence) -> JobResult:
    """Do a job; every failure becomes part of the result. From its end on SIGTERM is ignored: the answer is next."""
    worker = _Work(spec, fence)
    try:
        make_folder(fence.folder)
        fence.take()
        result = worker.do()
        _ignore_sigterm()
        return result
    except BaseException as error:
        _ignore_sigterm()
        failure_class = classify(error)
        if failure_class is FailureClass.CODE:
            traceback.print_exc(file=sys.stdout)
        return worker.failed(worker.described(error))


def exit_code(failure: Failure | None) -> int:
    """The exit code that tells a failure's class when the result cannot be read."""
    if failure is None:
        return 0
    if failure.failure_class is FailureClass.PREEMPTED:
        return EXIT_PREEMPTED
    return EXIT_OUT_OF_MEMORY if failure.failure_class in MEMORY_FAILURES else 1


class _Work:
    """The running job and what it has measured so far, for an answer at any moment."""

    def __init__(self, spec: JobSpec, fence: Fence) -> None:
        self._spec = spec
        self._fence = fence
        self._measured: Callable[[FailureClass], tuple[Measurement, ...]] = lambda _: ()
        self._started: Callable[[], bool] = lambda: False
        self._context: Callable[[], JobResult] = lambda: JobResult(kind=spec.job.kind)

    def do(self) -> JobResult:
        with self._guarded():
            return self._do()

    def _do(self) -> JobResult:
        job = self._spec.job
        if job.kind == "preprocess":
            from yolo_airflow_provider.worker.dataset import preprocess

            summary = preprocess(self._spec, job, say, self._fence.check)
            analysed = self._analysed(job.model, job) if job.model else None
            return JobResult(
                kind="preprocess",
                try_number=self._spec.identity.try_number,
                dataset=summary,
                architecture=analysed,
            )
        from yolo_airflow_provider.worker import earlier, offline

        if isinstance(job, TrainJob) and (found := earlier.finished(self._spec, job)) is not None:
            say(found.notes[0])
            return found
        offline.prepare(Path(self._spec.run_folder), trusted_weights=job.trusted_weights)
        offline.quieten()
        if job.kind == "export":
            from yolo_airflow_provider.worker.export import export

            return export(self._spec, job, self._fence)
        # Before anything is measured: what it takes is given back, and is in no peak.
        analysed = self._analysed(job.model, job) if job.analyse else None
        return self._measure(job).model_copy(update={"architecture": analysed})

    def _analysed(self, model: str, job: PreprocessJob | TrainJob | ProbeJob) -> ArchitectureFacts | None:
        from yolo_airflow_provider.worker import offline

        offline.prepare(Path(self._spec.run_folder), trusted_weights=job.trusted_weights)
        offline.quieten()
        from yolo_airflow_provider.worker.analysis import attempt

        return attempt(model, task=job.task, trusted_weights=job.trusted_weights, say=say)

    def described(self, error: BaseException) -> Failure:
        """The failure that an exception is to this job."""
        budget = self._spec.accelerator.memory_budget_bytes
        return describe_failure(error, job=self._spec.job.kind, on_cpu=_on_cpu(self._spec), budget_bytes=budget)

    def failed(self, failure: Failure) -> JobResult:
        """The result of a failure with everything that was measured up to it."""
        try:
            context, measurements = self._context(), self._measured(failure.failure_class)
        except Exception as error:  # a lost GPU answers no question any more, and the failure must be told
            say(f"nothing more can be measured: {type(error).__name__}: {str(error)[:200]}")
            context, measurements = JobResult(kind=self._spec.job.kind), ()
        peaks = [m.peak_device_bytes for m in measurements if m.peak_device_bytes and m.failure_class]
        # Beside a GPU the host's memory ran out, of which the device's peak says nothing.
        of_device = failure.failure_class is FailureClass.GPU_OOM or _on_cpu(self._spec)
        if failure.failure_class in MEMORY_FAILURES and of_device and failure.needed_bytes is None and peaks:
            failure = failure.model_copy(update={"needed_bytes": max(peaks)})
        return context.model_copy(
            update={
                "kind": self._spec.job.kind,
                "try_number": self._spec.identity.try_number,
                "failure": failure,
                "measurements": measurements,
            }
        )

    def _measure(self, job: TrainJob | ProbeJob) -> JobResult:
        from yolo_airflow_provider.worker.measure.device import open_device
        from yolo_airflow_provider.worker.offline import place_amp_check_model
        from yolo_airflow_provider.worker.probe import Probe
        from yolo_airflow_provider.worker.train import Training
        from yolo_airflow_provider.worker.trainer import Preemption

        device = open_device(self._spec.accelerator)
        if job.amp and device.torch_name != "cpu":
            place_amp_check_model()
        work = (
            Training(self._spec, job, device, self._fence)
            if isinstance(job, TrainJob)
            else Probe(self._spec, job, device, self._fence)
        )
        self._measured = work.measured
        self._started = lambda: work.started
        self._context = lambda: JobResult(
            kind=job.kind, model=work.facts, environment=device.environment(), notes=work.advice()
        )
        return work.run(Preemption())

    @contextlib.contextmanager
    def _guarded(self):  # type: ignore[no-untyped-def]
        """Hold the process to its budget where no container does."""
        accelerator = self._spec.accelerator
        if accelerator.kind != "cpu" or not accelerator.enforce_budget or not accelerator.memory_budget_bytes:
            yield
            return
        from yolo_airflow_provider.worker.measure.budget import BudgetGuard

        with BudgetGuard(accelerator.memory_budget_bytes, self._over_budget):
            yield

    def _over_budget(self, used_bytes: int) -> None:
        """Called from the guard's thread: answer and end at once, as the kernel would, but with the numbers."""
        budget = self._spec.accelerator.memory_budget_bytes or 0
        batch = getattr(self._spec.job, "batch", None)
        what = f"batch {batch}" if batch else f"the {self._spec.job.kind}"
        if self._started():
            error = JobError(
                FailureClass.HOST_OOM,
                f"{what} reached {gib(used_bytes)} of memory, over its budget of {gib(budget)}",
                stage=self._spec.job.kind,
                needed_bytes=used_bytes,
            )
        else:
            error = JobError(
                FailureClass.DATA,
                f"the budget of {gib(budget)} is smaller than what {what} needs before its first image"
                f" ({gib(used_bytes)} and rising)",
                hint="give the task more memory (memory_budget), or use a smaller model",
                stage="setup",
                needed_bytes=used_bytes,
            )
        result = self.failed(self.described(error))
        if result.kind == "probe" and any(point.failure_class is None for point in result.measurements):
            # What fits and what does not is what a probe is for; the batch that does not is its last point.
            result = result.model_copy(update={"failure": None, "notes": (str(error),)})
        try:
            result = _answer(result, Path(self._spec.result_path), fence=self._fence, on_cpu=True)
        finally:
            sys.stdout.flush()
            os._exit(exit_code(result.failure))


def _stopped(number: int, frame: FrameType | None) -> None:
    raise Stopped(stage="setup")


def _ignore_sigterm() -> None:
    """What is left is to answer, which takes less than any grace period."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _on_cpu(spec: JobSpec) -> bool:
    return spec.accelerator.kind == "cpu"


def _answer(result: JobResult, result_path: Path, *, fence: Fence | None = None, on_cpu: bool = False) -> JobResult:
    """Write the result where the operator reads it, and a copy beside what the run made; returns what was written."""
    if fence is not None:
        result = _own(result, fence, on_cpu=on_cpu)
    try:
        message = result.to_message()
    except ContractError as error:
        # Names that no field bounds in bytes (24 faults in Chinese, say) must not swallow how the run ended.
        failure = Failure(failure_class=FailureClass.CODE, message=str(error), stage=result.kind)
        result = JobResult(kind=result.kind, try_number=result.try_number, failure=result.failure or failure)
        message = result.to_message()
    if fence is not None and fence.holds and fence.folder.is_dir():
        with contextlib.suppress(OSError):  # a full disk must not hide the failure that it caused
            write_atomically(fence.folder / f"result-{result.try_number}.json", message)
    if result.failure is not None:
        failure = result.failure
        say(f"{failure.failure_class}: {failure.message}" + (f" ({failure.hint})" if failure.hint else ""))
    try:
        # The termination message is a bind-mounted file: it cannot be replaced, only written.
        result_path.parent.mkdir(parents=True, exist_ok=True)
        result_path.write_text(message, encoding="utf-8")
    except OSError as error:
        say(f"the answer cannot be written to {result_path}: {error.strerror}; the exit code stands for it")
    return result


def _own(result: JobResult, fence: Fence, *, on_cpu: bool) -> JobResult:
    """The result, unless a later try has the folder: then what this one did, or failed of, is not the run's."""
    try:
        fence.check()
    except JobError as error:
        return result.model_copy(update={"failure": describe_failure(error, job=result.kind, on_cpu=on_cpu)})
    except OSError:
        return result  # a folder that cannot be read is what the failure tells
    return result


def _raw_result_path(text: str) -> Path:
    try:
        return Path(json.loads(text)["result_path"])
    except (ValueError, KeyError, TypeError):
        return Path(_DEFAULT_RESULT_PATH)


def _end_with_parent(variables: Mapping[str, str]) -> None:
    """In local execution: SIGKILL to the task must not leave a training behind (prctl(2), PR_SET_PDEATHSIG)."""
    parent = variables.get(PARENT_VARIABLE)
    if not parent:
        return
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        raise SystemExit(EXIT_PREEMPTED)  # the parent ended before the request took effect
