"""How a run ended, in both modes: read the answer, record it, say what happened, return it or raise a typed error."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.utils.pod_manager import OnFinishAction
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException, AirflowSkipException
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException

from yolo_airflow_provider.contract import (
    ContractError,
    DatasetSummary,
    Failure,
    FailureClass,
    JobResult,
    JobSpec,
)
from yolo_airflow_provider.errors import BadInput, ResultLost, YoloError, error_of
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators import pod_status, pods, report

if TYPE_CHECKING:
    from airflow.sdk import Context

    from yolo_airflow_provider.profiles.recorder import Recorder
    from yolo_airflow_provider.profiles.store import ProfileStore

_NOT_FOUND = 404
_JOB_KEY = "yolo_job"
"""In the task's state store: the job of the try, for the case that its pod is gone when it is asked for."""


class RecordingPodOperator(KubernetesPodOperator):
    """Reads the result of a run from its pod, records it, and returns it or raises what went wrong."""

    profile_store_conn_id: str
    workspace: str | None
    _pushes_xcom: bool
    _answer: dict[str, Any] | None = None

    # What a subclass adds.

    @abstractmethod
    def _returned(self, spec: JobSpec, result: JobResult) -> dict[str, Any]:
        """What the task returns (its XCom) for a result that succeeded."""

    def _dataset(self) -> DatasetSummary | None:
        """The data set that the run is recorded with."""
        return None

    def _next_try(self, spec: JobSpec, try_number: int) -> str:
        """What another try would run, in one line."""
        return "runs the same again"

    # Both modes come here with the finished pod.

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after deferral.

        Raises:
            YoloError: the run failed, by its class; ResultLost where its pod is gone.
        """
        try:
            super().trigger_reentry(context, event)
        except (AirflowSkipException, AirflowNotFoundException, YoloError):
            raise
        except AirflowException as error:
            # Gone at re-entry, or between that and the last look (cncf-kubernetes 10.25.0, `_clean`).
            if self.pod is None and self._answer is None:
                raise self._lost(context, f"pod {event['name']}: {error}") from error
            return self._finish_in_spite_of(error)
        if self._answer is None:
            # cncf-kubernetes 10.25.0 returns without calling cleanup() when a pod that succeeded is gone.
            raise self._lost(context, f"pod {event['name']} was gone before its result was read")
        return self._finish()

    def cleanup(
        self,
        pod: k8s.V1Pod,
        remote_pod: k8s.V1Pod,
        xcom_result: dict[str, Any] | None = None,
        context: Context | None = None,
    ) -> None:
        """Read the result of the finished pod and record it, before KubernetesPodOperator deletes the pod.

        Called with the finished pod in both modes. In synchronous mode the snapshot may be from before the start
        (cncf-kubernetes 10.25.0), so the pod is read again.

        Raises:
            YoloError: the run failed; its cause is the exception that KubernetesPodOperator raised.
            SpoolError: neither the store nor the spool took what was measured; the pod is dealt with all the same.
        """
        original = sys.exception()
        failed: Exception | None = None
        if remote_pod is not None and not self._killed:
            try:
                remote_pod = self._reread(remote_pod)
                self._take_pod(remote_pod, original, context)
            except Exception as error:  # also what could not be recorded: the pod must be dealt with first
                failed = error
        try:
            super().cleanup(pod=pod, remote_pod=remote_pod, xcom_result=xcom_result, context=context)
        except AirflowSkipException:
            raise
        except AirflowException as error:
            if failed is None and self._answer is not None:
                self.log.warning("The run succeeded, whatever became of its pod: %s", error)
                return
            raise (failed or error) from (original or error)
        finally:
            self._end_active(remote_pod)
        if failed is not None:
            raise failed from original

    def _reread(self, remote_pod: k8s.V1Pod) -> k8s.V1Pod:
        try:
            return self.pod_manager.read_pod(remote_pod)
        except ApiException as error:
            if error.status != _NOT_FOUND:
                raise
            # Evicted or collected. The snapshot may be from before the start: only an end in it is to be trusted.
            if pod_status.how_it_ended(remote_pod, self.base_container_name) is None:
                remote_pod.status = k8s.V1PodStatus(phase="Unknown", message="the pod is gone")
            return remote_pod

    def _end_active(self, pod: k8s.V1Pod | None) -> None:
        """A pod that Airflow gave up must not go on: keeping pods is for looking at ended ones."""
        if pod is None or pod.status is None or self._killed or self.on_finish_action == OnFinishAction.DELETE_POD:
            return
        phase = pod.status.phase
        if phase in ("Pending", "Running"):
            self.log.info("Deleting pod %s, which is %s and nobody's any more.", pod.metadata.name, phase)
            self.pod_manager.delete_pod(pod)

    def _take_pod(self, pod: k8s.V1Pod, original: BaseException | None, context: Context | None) -> None:
        spec = pods.read_job(pod, container=self.base_container_name)
        if spec is not None:
            self._take(spec, self._read_pod(pod, spec, original), pod=pod, context=context)

    def _read_pod(self, pod: k8s.V1Pod, spec: JobSpec, original: BaseException | None) -> JobResult:
        ended = pod_status.how_it_ended(pod, self.base_container_name)
        if ended is not None and ended.message and ended.message.lstrip().startswith("{"):
            try:
                return JobResult.from_json(ended.message)
            except ContractError as error:
                self.log.warning("The pod's answer cannot be read: %s", error)
        failure = pod_status.failure_of(pod, spec, container=self.base_container_name, original=original)
        return JobResult.unanswered(spec, failure)

    # What is made of an answer.

    def _take(
        self, spec: JobSpec, result: JobResult, *, pod: k8s.V1Pod | None = None, context: Context | None = None
    ) -> None:
        """Record a result; keep what the task returns, or say and raise what went wrong."""
        for note in result.notes:
            self.log.info("%s", note)
        try:
            is_stored = self._record(spec, result, pod)
            if result.failure is not None:
                identity = spec.identity
                ran_as = f"{identity.dag_id}.{identity.task_id}, try {identity.try_number}"
                self._answer = None
                error = error_of(result.failure, where=ran_as)
                self.log.error("%s", self._report(spec, result, pod, context, is_stored=is_stored))
                raise error
        finally:
            self._recorder.release()
        self.log.info("%s", report.success(spec, result, pod, container=self.base_container_name))
        self._answer = self._returned(spec, result)

    def _record(self, spec: JobSpec, result: JobResult, pod: k8s.V1Pod | None) -> bool:
        """Write what was measured; whether it is in the store, or waits in the spool for it.

        Raises:
            SpoolError: neither took it.
        """
        from yolo_airflow_provider.operators.record import epoch_rows, measurement_rows, model_rows

        limit = pods.memory_limit_bytes(pod, container=self.base_container_name) if pod is not None else None
        spooled = self._recorder.record(
            measurement_rows(spec, result, self._dataset(), container_limit_bytes=limit),
            epochs=epoch_rows(spec),
            models=model_rows(spec, result),
        )
        return spooled is None

    def _report(
        self, spec: JobSpec, result: JobResult, pod: k8s.V1Pod | None, context: Context | None, *, is_stored: bool
    ) -> str:
        tried, tries = spec.identity.try_number, None
        if context is not None:
            ti = context["ti"]
            tried, tries = max(ti.try_number, tried), ti.max_tries + 1
        if result.failure is not None and result.failure.failure_class is FailureClass.DATA:
            coming = "none: no retry mends this"
        elif tries is not None and tried >= tries:
            coming = f"none: this was try {tried} of {tries}"
        else:
            count = f"{tried + 1} of {tries}" if tries else str(tried + 1)
            # Without the store it would be a guess, and another wait for the database.
            foreseen = self._foreseen(spec, tried + 1) if is_stored else "plans again when the profile store takes this"
            coming = f"({count}, if the task's retry policy agrees) {foreseen}"
        return report.failure(spec, result, pod, container=self.base_container_name, coming=coming)

    def _foreseen(self, spec: JobSpec, try_number: int) -> str:
        try:
            return self._next_try(spec, try_number)
        except Exception as error:  # a look ahead must not take the place of what happened
            return f"plans again (what it will run is not known: {type(error).__name__}: {error})"

    def _finish(self) -> dict[str, Any]:
        """The task's return value. No success without a result.

        Raises:
            ResultLost: the pod is gone and nothing was read from it.
        """
        if self._answer is None:
            raise ResultLost(_lost_message(self.task_id, "its pod is gone and its result was not read"))
        # Set only now that the pod is gone, for the task runner, which pushes what is returned.
        self.do_xcom_push = self._pushes_xcom
        return self._answer

    def _finish_in_spite_of(self, error: Exception) -> dict[str, Any]:
        """The return value of a run whose result is recorded, though Airflow stumbled over its pod or log.

        Raises:
            Exception: `error`, where there is no result.
        """
        if self._answer is None or self._killed:
            raise error
        self.log.warning("The run succeeded and is recorded; passed over: %s: %s", type(error).__name__, error)
        return self._finish()

    def _remember(self, context: Context, spec: JobSpec) -> None:
        if (store := context.get("task_state_store")) is not None:
            store.set(_JOB_KEY, spec.to_json())

    def _lost(self, context: Context, what: str) -> Exception:
        """The error for a pod that is gone, recorded as far as its job is remembered."""
        spec = self._remembered(context)
        if spec is not None:
            failure = Failure(failure_class=FailureClass.LOST, message=what, hint=_FINDS_IT)
            try:
                self._take(spec, JobResult.unanswered(spec, failure), context=context)
            except Exception as error:
                return error
        return ResultLost(_lost_message(self.task_id, what))

    def _remembered(self, context: Context) -> JobSpec | None:
        store = context.get("task_state_store")
        remembered = store.get(_JOB_KEY) if store is not None else None
        try:
            return JobSpec.from_json(remembered) if isinstance(remembered, str) else None
        except ContractError:
            return None

    def _store(self) -> ProfileStore:
        """The profile store, for planning.

        Raises:
            BadInput: it is of another version of this package; no retry changes that.
            StoreUnavailable: it cannot be reached; nothing is spent yet, and another try finds it again.
            StoreError: it cannot be opened.
        """
        from yolo_airflow_provider.profiles.errors import StoreOutdatedError, StoreVersionError

        try:
            return self._recorder.store()
        except (StoreVersionError, StoreOutdatedError) as error:
            raise BadInput(str(error)) from error

    @cached_property
    def _recorder(self) -> Recorder:
        from yolo_airflow_provider.profiles.recorder import Recorder
        from yolo_airflow_provider.profiles.spool import Spool

        spool = Spool(spool_folders(self._workspace()), self.log, store=self.profile_store_conn_id)
        return Recorder(self._profile_hook.get_store, spool, self.log)

    @cached_property
    def _profile_hook(self) -> ProfileStoreHook:
        return ProfileStoreHook(self.profile_store_conn_id)

    def _workspace(self) -> str:
        return os.path.abspath(self.workspace or conf.get("yolo", "workspace", fallback="/workspace"))


def spool_folders(workspace: str) -> list[Path]:
    """Where rows wait that the store did not take, the best place first.

    `[yolo] spool` if it is set, else beside the runs on the shared volume, where the next task finds them on whichever
    machine it runs. Where that cannot be written from here, AIRFLOW_HOME, which is lost with the machine if the machine
    is a pod.
    """
    configured = conf.get("yolo", "spool", fallback=None)
    home = Path(os.path.expandvars(os.environ.get("AIRFLOW_HOME") or "~/airflow")).expanduser().absolute()
    first = Path(configured).expanduser().absolute() if configured else Path(workspace) / ".profile-spool"
    return [first, home / "yolo_profile_spool"]


_FINDS_IT = "the next try finds a finished run in its folder and reports it again"


def _lost_message(task_id: str, what: str) -> str:
    return f"lost: {task_id}: {what}; {_FINDS_IT}"
