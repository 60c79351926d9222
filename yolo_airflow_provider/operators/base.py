"""The base of the four operators: plan, run in a pod or as a child process, read the result, record, return."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException, AirflowSkipException
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError

from yolo_airflow_provider.contract import (
    ContractError,
    DatasetSummary,
    Job,
    JobResult,
    JobSpec,
    describe,
)
from yolo_airflow_provider.errors import BadInput, ResultLost, error_of
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators import offers, parameters, pods
from yolo_airflow_provider.operators.local import LocalRun
from yolo_airflow_provider.operators.plan import decision_row, identity_of, run_folder, to_contract

if TYPE_CHECKING:
    from airflow.sdk import Context
    from kubernetes.client import models as k8s

    from yolo_airflow_provider.planner.choice import Choice, Question
    from yolo_airflow_provider.profiles.store import ProfileStore

_NOT_FOUND = 404


@dataclass(frozen=True)
class Proposal:
    """What a subclass wants to run on an accelerator, with the choice that led to it, where there was one."""

    job: Job
    choice: tuple[Question, Choice] | None = None
    amp: bool = False
    shared_bytes: int = 0
    """Size of /dev/shm in a pod."""


class YoloPodOperator(KubernetesPodOperator):
    """Runs one job of the worker and records what it measured.

    Every parameter of KubernetesPodOperator stays usable. Parameters that are listed here with a default of their
    own differ from it on purpose.

    :param workspace: folder on the shared volume for runs and prepared data sets; default `[yolo] workspace`.
        (templated)
    :param execution: `kubernetes` or `local` (a child process of the task); default `[yolo] execution`. (templated)
    :param memory_budget: memory that the run may use, such as `4Gi`: on `cpu` the container's limit (a local run is
        ended when it outgrows it), on a GPU what the planner counts on. Default: what the device has. (templated)
    :param profile_store_conn_id: connection of the profile store; SQLite in AIRFLOW_HOME where it does not exist.
    :param workspace_claim: PersistentVolumeClaim to mount at `workspace` in pods. (templated)
    :param schedule_timeout_seconds: how long a pod may wait for a free slice (24 h).
    :param do_xcom_push: push what the task returns as its XCom (True).
    :param startup_timeout_seconds: how long its image may take to start once it has a node (10 min).
    """

    template_fields: Sequence[str] = (
        *KubernetesPodOperator.template_fields,
        "workspace",
        "execution",
        "memory_budget",
        "workspace_claim",
    )

    def __init__(
        self,
        *,
        workspace: str | None = None,
        execution: str | None = None,
        memory_budget: str | int | None = None,
        profile_store_conn_id: str = ProfileStoreHook.default_conn_name,
        workspace_claim: str | None = None,
        schedule_timeout_seconds: int = 24 * 3600,
        startup_timeout_seconds: int = 600,
        log_pod_spec_on_failure: bool = False,
        log_events_on_failure: bool = True,
        automount_service_account_token: bool | None = False,
        do_xcom_push: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            # True would add a sidecar that waits for a file which the worker does not write.
            do_xcom_push=False,
            schedule_timeout_seconds=schedule_timeout_seconds,
            startup_timeout_seconds=startup_timeout_seconds,
            log_pod_spec_on_failure=log_pod_spec_on_failure,
            log_events_on_failure=log_events_on_failure,
            automount_service_account_token=automount_service_account_token,
            **kwargs,
        )
        self.workspace = workspace
        self.execution = execution
        self.memory_budget = memory_budget
        self.profile_store_conn_id = profile_store_conn_id
        self.workspace_claim = workspace_claim
        self._pushes_xcom = do_xcom_push
        self._answer: dict[str, Any] | None = None
        self._local_run: LocalRun | None = None

    # What a subclass adds.

    @abstractmethod
    def _propose(self, accelerator: Accelerator) -> Proposal:
        """The job for this accelerator. Raises BadInput before anything is spent."""

    @abstractmethod
    def _returned(self, spec: JobSpec, result: JobResult) -> dict[str, Any]:
        """What the task returns (its XCom) for a result that succeeded."""

    def _dataset(self) -> DatasetSummary | None:
        """The data set that the run is recorded with."""
        return None

    def _asked_accelerator(self) -> str:
        return "cpu"

    # Both ways to run.

    def execute(self, context: Context) -> Any:
        """Run the job; returns the task's XCom.

        Raises:
            YoloError: the run failed, by its class.
        """
        if self._runs_locally():
            return self._execute_locally(context)
        super().execute(context)
        return self._finish()

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after deferral."""
        super().trigger_reentry(context, event)
        return self._finish()

    def on_kill(self) -> None:
        """End the child process with its children, or delete the pod."""
        if self._local_run is not None:
            self._killed = True
            self._local_run.kill()
            return
        super().on_kill()

    def _runs_locally(self) -> bool:
        execution = self.execution or conf.get("yolo", "execution", fallback="kubernetes")
        if execution not in ("local", "kubernetes"):
            raise BadInput(f"execution={execution!r} is neither 'local' nor 'kubernetes'")
        return execution == "local"

    def _execute_locally(self, context: Context) -> Any:
        spec, _ = self._plan(context, local=True)
        if self._killed:
            raise AirflowException("the task was killed before its worker was started")
        self._local_run = LocalRun(spec, self.log.info)
        result = self._local_run.wait()
        if self._killed:
            raise AirflowException("the task was killed, and its worker with it; nothing is recorded")
        self._take(spec, result)
        return self._finish()

    def build_pod_request_obj(self, context: Context | None = None, *, dry_run: bool = False) -> k8s.V1Pod:
        """The pod with the job in it; without a context (a dry run) the pod as the parameters say it.

        Raises:
            BadInput: a parameter is wrong, or no image is named anywhere.
        """
        self.image = self.image or conf.get("yolo", "image", fallback=None)
        pod = super().build_pod_request_obj(context, dry_run=dry_run)
        if context is None:
            return pod
        if not pod.spec.containers[0].image:
            raise BadInput(f"{self.task_id}: no worker image: pass image=, or set [yolo] image (AIRFLOW__YOLO__IMAGE)")
        spec, (accelerator, proposal) = self._plan(context, local=False)
        if self.workspace_claim:
            pods.mount_workspace(
                pod, claim=self.workspace_claim, workspace=spec.workspace, container=self.base_container_name
            )
        return pods.put_job(
            pod, spec, accelerator, container=self.base_container_name, shared_bytes=proposal.shared_bytes
        )

    def _plan(self, context: Context, *, local: bool) -> tuple[JobSpec, tuple[Accelerator, Proposal]]:
        """Decide what this try runs; the decision is in the store and in the log before anything starts."""
        self._store()  # a store that cannot take the result is refused before anything is spent
        identity = identity_of(context)
        workspace = os.path.abspath(self.workspace or conf.get("yolo", "workspace", fallback="/workspace"))
        folder = run_folder(workspace, identity)
        budget = parameters.memory("memory_budget", self.memory_budget)
        accelerator = self._accelerator(budget, local=local)
        try:
            proposal = self._propose(accelerator)
            spec = JobSpec(
                job=proposal.job,
                identity=identity,
                accelerator=to_contract(accelerator, enforce_budget=local and budget is not None),
                workspace=workspace,
                run_folder=folder,
                result_path=pods.TERMINATION_MESSAGE_PATH,
            )
        except ValidationError as error:
            raise BadInput(f"{self.task_id}: {describe(error)}") from None
        if proposal.choice is not None:
            question, choice = proposal.choice
            self.log.info("Plan: %s", choice.sentence)
            self._store().decide(decision_row(question, choice, spec, amp=proposal.amp))
        return spec, (accelerator, proposal)

    def _accelerator(self, budget: int | None, *, local: bool) -> Accelerator:
        asked = self._asked_accelerator()
        if local:
            return offers.on_this_machine(asked, budget)
        if budget is None and asked == "cpu":
            limits = (self.container_resources.limits if self.container_resources else None) or {}
            budget = parameters.memory("container_resources.limits.memory", limits.get("memory"))
        return offers.in_cluster(asked, budget, self._offered() if asked != "cpu" else ())

    def _offered(self) -> list[Accelerator]:
        try:
            connection = BaseHook.get_connection(self.kubernetes_conn_id or KubernetesHook.default_conn_name)
            return offers.from_extra(connection.extra_dejson)
        except AirflowNotFoundException:
            return []

    # How it ended.

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
            StoreError: it could not be recorded; the pod is dealt with all the same.
        """
        original = sys.exception()
        failed: Exception | None = None
        if remote_pod is not None and not self._killed:
            remote_pod = self._reread(remote_pod)
            spec = pods.read_job(remote_pod, container=self.base_container_name)
            if spec is not None:
                try:
                    self._take(spec, self._read_pod(remote_pod, spec, original))
                except Exception as error:  # also a store that cannot be reached: the pod must be dealt with first
                    failed = error
        try:
            super().cleanup(pod=pod, remote_pod=remote_pod, xcom_result=xcom_result, context=context)
        except AirflowSkipException:
            raise
        except AirflowException as error:
            raise (failed or error) from (original or error)
        if failed is not None:
            raise failed from original

    def _reread(self, remote_pod: k8s.V1Pod) -> k8s.V1Pod:
        try:
            return self.pod_manager.read_pod(remote_pod)
        except ApiException as error:
            if error.status != _NOT_FOUND:
                raise
            return remote_pod  # evicted or collected: the snapshot is all there is

    def _read_pod(self, pod: k8s.V1Pod, spec: JobSpec, original: BaseException | None) -> JobResult:
        ended = pods.how_it_ended(pod, self.base_container_name)
        if ended is not None and ended.message:
            try:
                return JobResult.from_json(ended.message)
            except ContractError as error:
                self.log.warning("The pod's answer cannot be read: %s", error)
        failure = pods.failure_of(pod, spec, container=self.base_container_name, original=original)
        return JobResult(kind=spec.job.kind, try_number=spec.identity.try_number, failure=failure)

    def _take(self, spec: JobSpec, result: JobResult) -> None:
        """Record a result; keep what the task returns, or raise what went wrong."""
        from yolo_airflow_provider.operators.record import epoch_rows, measurement_rows, model_rows

        for note in result.notes:
            self.log.info("%s", note)
        self._store().record(
            measurement_rows(spec, result, self._dataset()),
            epochs=epoch_rows(spec),
            models=model_rows(spec, result),
        )
        if result.failure is not None:
            identity = spec.identity
            error = error_of(result.failure, where=f"{identity.dag_id}.{identity.task_id}, try {identity.try_number}")
            self.log.error("%s", error)
            raise error
        self._answer = self._returned(spec, result)

    def _finish(self) -> dict[str, Any]:
        """The task's return value. No success without a result.

        Raises:
            ResultLost: the pod is gone and nothing was read from it (KubernetesPodOperator 10.25.0 would succeed).
        """
        if self._answer is None:
            raise ResultLost(
                f"lost: the pod of {self.task_id} is gone and its result was not read; the next try finds a finished"
                " run in its folder and reports it again"
            )
        # Set only now that the pod is gone, for the task runner, which pushes what is returned.
        self.do_xcom_push = self._pushes_xcom
        return self._answer

    def _store(self) -> ProfileStore:
        """The profile store.

        Raises:
            BadInput: it is of another version of this package; no retry changes that.
        """
        from yolo_airflow_provider.profiles.errors import StoreOutdatedError, StoreVersionError

        try:
            return self._profile_hook.get_store()
        except (StoreVersionError, StoreOutdatedError) as error:
            raise BadInput(str(error)) from error

    @cached_property
    def _profile_hook(self) -> ProfileStoreHook:
        return ProfileStoreHook(self.profile_store_conn_id)
