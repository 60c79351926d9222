"""`execution="local"`: the same worker as a child process of the task, its output in the task's log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from yolo_airflow_provider.contract import (
    JOB_VARIABLE,
    PARENT_VARIABLE,
    ContractError,
    Failure,
    FailureClass,
    JobResult,
    JobSpec,
    failure_of_exit_code,
)
from yolo_airflow_provider.operators.pod_status import resumes

GRACE_SECONDS = 4
"""Between SIGTERM and SIGKILL. Airflow's supervisor kills a task 5 s after it asked it to end."""

_SIGNALS = {
    signal.SIGBUS: (FailureClass.SHM, "Bus error: /dev/shm is probably too small for the data loader"),
    signal.SIGKILL: (
        FailureClass.LOST,
        "killed by SIGKILL without a result; `dmesg` tells whether the machine was out of memory",
    ),
    signal.SIGTERM: (FailureClass.PREEMPTED, "stopped by SIGTERM before it could answer"),
}


class LocalRun:
    """One worker process. `wait` streams its output and returns its result; `kill` ends it with its children."""

    def __init__(self, spec: JobSpec, log: Callable[[str], None]) -> None:
        self._spec = spec
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def wait(self) -> JobResult:
        """Run the worker to its end.

        Returns:
            Its result; where it ended without one, a result that says how it ended.
        """
        # Not in the workspace: a full or unwritable one is what an answer may have to tell.
        with tempfile.TemporaryDirectory(prefix="yolo-airflow-") as folder:
            answer = Path(folder) / "answer.json"
            return self._run(self._spec.model_copy(update={"result_path": str(answer)}))

    def _run(self, spec: JobSpec) -> JobResult:
        variables = {JOB_VARIABLE: spec.to_json(), PARENT_VARIABLE: str(os.getpid())}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "yolo_airflow_provider.worker"],
            env=worker_environment(os.environ) | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a process group of its own, to be killed as one
        )
        try:
            if self._process.stdout is not None:
                for line in self._process.stdout:
                    self._log(line.rstrip())
            return_code = self._process.wait()
        finally:
            self.kill()
        return self._read(Path(spec.result_path), return_code)

    def kill(self) -> None:
        """End the worker and everything that it started: SIGTERM, then SIGKILL. Does nothing when it has ended."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            self._signal_group(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        self._signal_group(signal.SIGKILL)  # also what outlived the worker, such as loader processes
        # A limit, since a signal handler may run this while the same thread already waits for the process.
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _read(self, answer: Path, return_code: int) -> JobResult:
        text = answer.read_text(encoding="utf-8") if answer.exists() else ""
        if not text:
            return self._without_result(return_code)
        try:
            return JobResult.from_json(text)
        except ContractError as error:
            return self._failed(FailureClass.LOST, f"its answer {answer} cannot be read: {error}")

    def _without_result(self, return_code: int) -> JobResult:
        if return_code < 0:
            number = signal.Signals(-return_code)
            found, message = _SIGNALS.get(number, (FailureClass.CODE, f"ended by {number.name} without a result"))
            return self._failed(found, f"the worker was {message}" if found is FailureClass.LOST else message)
        found = failure_of_exit_code(return_code, on_cpu=self._spec.accelerator.kind == "cpu")
        return self._failed(
            found, f"the worker ended with exit code {return_code} and without a result; see its log above"
        )

    def _failed(self, failure_class: FailureClass, message: str) -> JobResult:
        failure = Failure(failure_class=failure_class, message=message, hint=resumes(self._spec))
        return JobResult.unanswered(self._spec, failure)


def worker_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The task's environment without Airflow's own: connections and keys are no business of the worker."""
    return {name: value for name, value in variables.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
