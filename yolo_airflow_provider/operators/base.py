"""The base of the four operators: plan, run in a pod or as a child process; how it ends is in recording.py."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError

from yolo_airflow_provider.contract import Failure, FailureClass, Identity, Job, JobResult, JobSpec, describe
from yolo_airflow_provider.errors import BadInput, DoesNotFit, YoloError
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.cluster import ClusterOffer
from yolo_airflow_provider.gpus.matching import refusal, waiting_reason
from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.operators import offers, parameters, pod_defaults, pods
from yolo_airflow_provider.operators.adopting import AdoptingPodOperator
from yolo_airflow_provider.operators.discovery import read_cluster
from yolo_airflow_provider.operators.local import LocalRun
from yolo_airflow_provider.operators.offers import Candidate
from yolo_airflow_provider.operators.plan import decision_row, identity_of, run_folder, to_contract
from yolo_airflow_provider.operators.tries import EarlierTries, earlier_tries

if TYPE_CHECKING:
    from airflow.sdk import Context
    from kubernetes.client import models as k8s

    from yolo_airflow_provider.planner.choice import Choice, Question
    from yolo_airflow_provider.planner.host import HostNeed

_NOT_FOUND = 404
WEEK_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True)
class Proposal:
    """What a subclass wants to run on an accelerator.

    Attributes:
        job: for the worker.
        need: what it takes of the node beside the accelerator.
        choice: the planner's, where there was one.
        amp: mixed precision.
        objective: of the choice among accelerators.
    """

    job: Job
    need: HostNeed
    choice: tuple[Question, Choice] | None = None
    amp: bool = False
    objective: str | None = None


@dataclass(frozen=True)
class Fit:
    """A proposal for a candidate, and why no node can ever run it, if none can."""

    proposal: Proposal
    refused: str | None = None


Refusal = Callable[[Candidate, Proposal], str | None]


class YoloPodOperator(AdoptingPodOperator):
    """Runs one job of the worker and records what it measured.

    Every parameter of KubernetesPodOperator stays usable. Parameters that are listed here with a default of their
    own differ from it on purpose.

    :param workspace: folder on the shared volume for runs and prepared data sets; default `[yolo] workspace`.
        (templated)
    :param execution: `kubernetes` or `local` (a child process of the task); default `[yolo] execution`. (templated)
    :param memory_budget: memory that the run may use, such as `4Gi`: on `cpu` the container's limit (a local run is
        ended when it outgrows it), on a GPU what the planner counts on. Default: what the device has. (templated)
    :param profile_store_conn_id: connection of the profile store; SQLite in AIRFLOW_HOME where it does not exist. What
        it does not take when a run has ended waits in the folder `[yolo] spool`, and a later task loads it.
    :param workspace_claim: PersistentVolumeClaim to mount at `workspace` in pods; default `[yolo] workspace_claim`.
        (templated)
    :param data_claim: PersistentVolumeClaim to mount read-only at `data_path`; default `[yolo] data_claim`.
        (templated)
    :param data_path: where pods see it (`/data`). (templated)
    :param preflight: refuse at once what no node offers or can hold. Set False where nodes are added on demand.
    :param schedule_timeout_seconds: how long a pod may wait for a free slice (24 h).
    :param startup_timeout_seconds: how long its image may take to start once it has a node (10 min).
    :param termination_grace_period: seconds between SIGTERM and SIGKILL; a training ends its batch and answers (120).
    :param active_deadline_seconds: after which the node ends the pod, whatever became of Airflow (7 days).
    :param logging_interval: in deferrable mode, seconds between two looks at the log (30).
    :param do_xcom_push: push what the task returns as its XCom (True).
    """

    template_fields: Sequence[str] = (
        *AdoptingPodOperator.template_fields,
        "workspace",
        "execution",
        "memory_budget",
        "workspace_claim",
        "data_claim",
        "data_path",
    )

    def __init__(
        self,
        *,
        workspace: str | None = None,
        execution: str | None = None,
        memory_budget: str | int | None = None,
        profile_store_conn_id: str = ProfileStoreHook.default_conn_name,
        workspace_claim: str | None = None,
        data_claim: str | None = None,
        data_path: str = "/data",
        preflight: bool = True,
        schedule_timeout_seconds: int = 24 * 3600,
        startup_timeout_seconds: int = 600,
        termination_grace_period: int = 120,
        termination_message_policy: str = "FallbackToLogsOnError",
        active_deadline_seconds: int = WEEK_SECONDS,
        logging_interval: int | None = 30,
        log_pod_spec_on_failure: bool = False,
        log_events_on_failure: bool = True,
        automount_service_account_token: bool | None = False,
        random_name_suffix: bool = True,
        do_xcom_push: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            # True would add a sidecar that waits for a file which the worker does not write.
            do_xcom_push=False,
            schedule_timeout_seconds=schedule_timeout_seconds,
            startup_timeout_seconds=startup_timeout_seconds,
            termination_grace_period=termination_grace_period,
            termination_message_policy=termination_message_policy,
            active_deadline_seconds=active_deadline_seconds,
            logging_interval=logging_interval,
            log_pod_spec_on_failure=log_pod_spec_on_failure,
            log_events_on_failure=log_events_on_failure,
            automount_service_account_token=automount_service_account_token,
            random_name_suffix=random_name_suffix,
            **kwargs,
        )
        self.workspace = workspace
        self.execution = execution
        self.memory_budget = memory_budget
        self.profile_store_conn_id = profile_store_conn_id
        self.workspace_claim = workspace_claim
        self.data_claim = data_claim
        self.data_path = data_path
        self.preflight = preflight
        self._pushes_xcom = do_xcom_push
        self._earlier = EarlierTries()
        self._local_run: LocalRun | None = None
        if self.reattach_on_restart and not random_name_suffix:
            raise ValueError(
                f"{self.task_id}: random_name_suffix=False with durable=True could adopt the pod of another run:"
                " Airflow finds its pod again by its name (apache/airflow#71743); leave the suffix on"
            )

    # What a subclass adds.

    @abstractmethod
    def _propose(self, accelerator: Accelerator) -> Proposal:
        """The job for this accelerator. Raises BadInput before anything is spent, DoesNotFit if another may do."""

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
        self.pod = self._adopted(context)
        if self.pod is not None:
            self.pod_request_obj = self.pod
        try:
            super().execute(context)
        except (YoloError, AirflowSkipException, AirflowRescheduleException):
            raise
        except ApiException as error:
            if self._answer is None and error.status == _NOT_FOUND and self.pod is not None:
                raise self._lost(context, f"pod {self.pod.metadata.name} is gone") from error
            return self._finish_in_spite_of(error)
        except Exception as error:
            return self._finish_in_spite_of(error)
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
        budget = parameters.memory("memory_budget", self.memory_budget)
        found = offers.on_this_machine(self._asked_accelerator(), budget)
        spec, _, _ = self._plan(context, [Candidate(found)], enforce_budget=budget is not None)
        if self._killed:
            raise AirflowException("the task was killed before its worker was started")
        self._local_run = LocalRun(spec, self.log.info)
        result = self._local_run.wait()
        if self._killed:
            raise AirflowException("the task was killed, and its worker with it; nothing is recorded")
        self._take(spec, result, context=context)
        return self._finish()

    # In a pod.

    def build_pod_request_obj(self, context: Context | None = None, *, dry_run: bool = False) -> k8s.V1Pod:
        """The pod with the job in it; without a context (a dry run) the pod as the parameters say it.

        Raises:
            BadInput: a parameter is wrong, or no image is named anywhere.
            Unschedulable: no node offers what is asked for.
        """
        self.image = self.image or conf.get("yolo", "image", fallback=None)
        pod = super().build_pod_request_obj(context, dry_run=dry_run)
        if context is None:
            return pod
        container = self.base_container_name
        if not pod_defaults.container_of(pod, container).image:
            raise BadInput(f"{self.task_id}: no worker image: pass image=, or set [yolo] image (AIRFLOW__YOLO__IMAGE)")
        if self._asked_accelerator() != "cpu":
            pod_defaults.tolerate_gpu_taint(pod)
        self._mount_claims(pod)
        cluster = read_cluster(self.client, pod, self.log.warning, with_pods=self._asked_accelerator() != "cpu")
        spec, candidate, fit = self._plan(context, self._candidates(cluster, pod), self._refusal_by(cluster, pod))
        pods.put_job(
            pod,
            spec,
            candidate.accelerator,
            fit.proposal.need,
            container=container,
            node_selector=candidate.node_selector,
        )
        self._remember(context, spec)
        if fit.refused:
            self._refuse(fit.refused, spec, context)
        elif cluster is not None and candidate.offer is not None and (why := waiting_reason(cluster, candidate.offer)):
            self.log.info("The pod will wait for a slice, up to %d s: %s", self.schedule_timeout_seconds, why)
        return pod

    def _mount_claims(self, pod: k8s.V1Pod) -> None:
        claims = (
            ("yolo-workspace", self.workspace_claim or conf.get("yolo", "workspace_claim", fallback=None), False),
            ("yolo-data", self.data_claim or conf.get("yolo", "data_claim", fallback=None), True),
        )
        for name, claim, read_only in claims:
            if claim:
                path = self.data_path if read_only else self._workspace()
                pod_defaults.mount_claim(
                    pod, name=name, claim=claim, path=path, container=self.base_container_name, read_only=read_only
                )

    def _candidates(self, cluster: ClusterOffer | None, pod: k8s.V1Pod) -> list[Candidate]:
        """What there is to run on, best first."""
        asked = self._asked_accelerator()
        budget = parameters.memory("memory_budget", self.memory_budget)
        if asked == "cpu" and budget is None:
            budget = pods.memory_limit_bytes(pod, container=self.base_container_name)
        return offers.in_cluster(asked, budget, self._listed() if asked != "cpu" else [], cluster)

    def _listed(self) -> list[Accelerator]:
        try:
            connection = BaseHook.get_connection(self.kubernetes_conn_id or KubernetesHook.default_conn_name)
            return offers.from_extra(connection.extra_dejson)
        except AirflowNotFoundException:
            return []

    def _refusal_by(self, cluster: ClusterOffer | None, pod: k8s.V1Pod) -> Refusal | None:
        """The question why no node can ever run the pod with a proposal."""
        if cluster is None:
            return None

        def refused(candidate: Candidate, proposal: Proposal) -> str | None:
            accelerator = candidate.accelerator
            asked = pods.requests(pod, accelerator, proposal.need, container=self.base_container_name)
            return refusal(
                cluster,
                accelerator if accelerator.kind != "cpu" else None,
                cpu_millicores=asked.get("cpu", 0),
                memory_bytes=asked.get("memory", 0),
            )

        return refused

    def _refuse(self, why: str, spec: JobSpec, context: Context) -> None:
        if not self.preflight:
            self.log.warning("preflight=False, so the pod waits for a node that can take it: %s", why)
            return
        hint = "name something that is offered; preflight=False waits for nodes that are added on demand"
        failure = Failure(failure_class=FailureClass.UNSCHEDULABLE, message=why, hint=hint)
        self._take(spec, JobResult.unanswered(spec, failure), context=context)

    # The plan.

    def _plan(
        self,
        context: Context,
        candidates: Sequence[Candidate],
        refused: Refusal | None = None,
        *,
        enforce_budget: bool = False,
    ) -> tuple[JobSpec, Candidate, Fit]:
        """Decide what this try runs; the decision is on record and in the log before anything starts.

        Raises:
            StoreUnavailable: what is known cannot be read; nothing is spent yet.
        """
        store = self._store()  # a store that cannot take the result is refused before anything is spent
        identity = identity_of(context)
        try:
            self._earlier = earlier_tries(store, identity)
            candidate, fit = self._one_that_fits(candidates, refused)
            spec = self._spec(identity, candidate.accelerator, fit.proposal.job, enforce_budget=enforce_budget)
            if fit.proposal.choice is not None:
                question, choice = fit.proposal.choice
                self.log.info("Plan: %s", choice.sentence)
                proposal = fit.proposal
                self._recorder.decide(
                    decision_row(question, choice, spec, amp=proposal.amp, objective=proposal.objective)
                )
        except ValidationError as error:
            raise BadInput(f"{self.task_id}: {describe(error)}") from None
        finally:
            self._recorder.release()
        if (need := fit.proposal.need).memory_bytes is not None:
            self.log.info("Memory of the pod: %.2f GiB; %s", need.memory_bytes / 2**30, need.why)
        return spec, candidate, fit

    def _preferred(self, fitting: Sequence[tuple[Candidate, Fit]]) -> tuple[Candidate, Fit]:
        """Of candidates in which something fits and that a node can run, the one to take."""
        return fitting[0]

    def _one_that_fits(self, candidates: Sequence[Candidate], refused: Refusal | None) -> tuple[Candidate, Fit]:
        """The best candidate in which something fits and that a node can run; one that fits, if none can be run.

        One that an earlier try had, and whose size was not at fault, is kept.
        """
        kept = [candidate for candidate in candidates if self._earlier.ran_on(candidate.accelerator)]
        unfit: DoesNotFit | None = None
        nowhere: tuple[Candidate, Fit] | None = None
        fitting: list[tuple[Candidate, Fit]] = []
        for candidate in [*kept, *(c for c in candidates if c not in kept)]:
            try:
                proposal = self._propose(candidate.accelerator)
            except DoesNotFit as error:
                self.log.info("%s", error)
                unfit = error
                continue
            why = refused(candidate, proposal) if refused is not None else None
            if why is not None:
                nowhere = nowhere or (candidate, Fit(proposal, refused=why))
            elif candidate in kept:
                return candidate, Fit(proposal)
            else:
                fitting.append((candidate, Fit(proposal)))
        if fitting:
            return self._preferred(fitting)
        if nowhere is not None:
            return nowhere
        raise unfit or BadInput(f"{self.task_id}: there is nothing to run on")

    def _spec(self, identity: Identity, accelerator: Accelerator, job: Job, *, enforce_budget: bool) -> JobSpec:
        workspace = self._workspace()
        return JobSpec(
            job=job,
            identity=identity,
            accelerator=to_contract(accelerator, enforce_budget=enforce_budget),
            workspace=workspace,
            run_folder=run_folder(workspace, identity),
            result_path=pods.TERMINATION_MESSAGE_PATH,
        )
