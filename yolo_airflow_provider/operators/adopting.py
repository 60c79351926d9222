"""One pod a task instance: the pod that an earlier try left is taken over, read, or waited for; a new one is made.

KubernetesPodOperator plans before it looks for its pod, takes over a pod that is being deleted, and deletes a finished
one unread (cncf-kubernetes 10.25.0, `get_or_create_pod`); so this looks first.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.pod import POD_IDENTIFIER_STATE_KEY
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException
from kubernetes.client.exceptions import ApiException

from yolo_airflow_provider.contract import Failure, FailureClass, JobResult
from yolo_airflow_provider.errors import BadInput, YoloError
from yolo_airflow_provider.operators import pods
from yolo_airflow_provider.operators.leftover import last_seen, state_of
from yolo_airflow_provider.operators.pod_defaults import label_value
from yolo_airflow_provider.operators.recording import RecordingPodOperator
from yolo_airflow_provider.operators.tries import recorded

if TYPE_CHECKING:
    from airflow.sdk import Context
    from kubernetes.client import models as k8s

_NOT_FOUND = 404
_REFUSED = (400, 403, 422)
_QUOTA_KEY = "yolo_waits_for_quota"
"""In the task's state store: the try that waits, and since when, seconds since the epoch."""
_QUOTA_CHECK_SECONDS = 60
_PATIENCE_SECONDS = 30
"""Beyond a pod's own grace period."""


class AdoptingPodOperator(RecordingPodOperator):
    """Sees to it that a task instance has one pod at a time."""

    def _adopted(self, context: Context) -> k8s.V1Pod | None:
        """A pod of this task instance that runs or has succeeded: the Airflow worker died, not the pod."""
        if not self.reattach_on_restart:
            return None
        found = self._left_behind(context)
        if found is None:
            self._record_vanished(context)
            return None
        state = state_of(found)
        if state in ("active", "succeeded"):
            self.log.info("Adopting pod %s of an earlier try, which is %s.", found.metadata.name, state)
            return found
        self.patch_already_checked(found, reraise=False)  # nobody adopts it any more
        if state == "leaving":
            found = self._await_gone(found)
        else:
            self.process_pod_deletion(found, reraise=False)
        self._record_unseen(found)
        return None

    def _left_behind(self, context: Context) -> k8s.V1Pod | None:
        """By its name, as KubernetesPodOperator keeps it, else by its labels."""
        store = context.get("task_state_store")
        stored = store.get(POD_IDENTIFIER_STATE_KEY) if store is not None else None
        if isinstance(stored, dict) and stored.get("name") and stored.get("namespace"):
            try:
                found = self.hook.get_pod(str(stored["name"]), str(stored["namespace"]))
            except ApiException as error:
                if error.status != _NOT_FOUND:
                    raise
            else:
                return None if (found.metadata.labels or {}).get(self.POD_CHECKED_KEY) == "True" else found
        # As KubernetesPodOperator finds its namespace, which it keeps to itself (10.25.0).
        namespace = self.namespace or self.hook.get_namespace() or self._incluster_namespace or "default"
        return self.find_pod(namespace, context=context)

    def _await_gone(self, pod: k8s.V1Pod) -> k8s.V1Pod:
        """Wait until a pod that is being deleted is gone, so that there are never two; returns its last state."""
        patience = _PATIENCE_SECONDS + (pod.metadata.deletion_grace_period_seconds or _PATIENCE_SECONDS)
        self.log.info("Waiting up to %d s until pod %s of an earlier try is gone.", patience, pod.metadata.name)
        last, gone = last_seen(self.client, pod, patience)
        if not gone:
            self.log.warning("Pod %s does not go; its worker is fenced off.", pod.metadata.name)
        return last

    def _record_unseen(self, pod: k8s.V1Pod) -> None:
        """What an earlier try ended with is evidence for this one, not its end."""
        self.log.info("Pod %s of an earlier try ended unseen.", pod.metadata.name)
        try:
            self._take_pod(pod, None, None)
        except YoloError as error:
            self.log.info("It is recorded, and this try plans with it: %s", error)
        finally:
            self._answer = None

    def _record_vanished(self, context: Context) -> None:
        """An earlier try that ended with its pod and its Airflow worker alike, so that nobody recorded it."""
        spec = self._remembered(context)
        if spec is None or spec.identity.try_number >= context["ti"].try_number:
            return
        tried = spec.identity.try_number
        if any(row.key.try_number == tried for row in recorded(self._store(), spec.identity)):
            return
        what = f"the pod of try {tried} is gone, and how it ended was not seen"
        failure = Failure(failure_class=FailureClass.LOST, message=what)
        self._record(spec, JobResult.unanswered(spec, failure), None)
        self.log.info("%s.", what)

    def get_or_create_pod(self, pod_request_obj: k8s.V1Pod, context: Context) -> k8s.V1Pod:
        """Make the pod, through KubernetesPodOperator.

        Raises:
            AirflowRescheduleException: a quota of the namespace is used up. The task gives its worker back and looks
                again, without using a try, for `schedule_timeout_seconds` in all.
            BadInput: the cluster refuses the pod.
        """
        if self._killed:
            raise AirflowException("the task was killed before its pod was made")
        try:
            pod = super().get_or_create_pod(pod_request_obj, context)
        except ApiException as error:
            said = _message(error)
            if "exceeded quota" in said:
                self._wait_for_quota(context, pod_request_obj, said)
            if error.status in _REFUSED:
                raise BadInput(f"the cluster refuses the pod of {self.task_id} ({error.status}): {said}") from error
            raise
        if self._killed:
            self.pod_manager.delete_pod(pod)  # on_kill came while there was none yet
            raise AirflowException("the task was killed while its pod was made; the pod is deleted")
        return pod

    def _wait_for_quota(self, context: Context, pod: k8s.V1Pod, said: str) -> None:
        store = context.get("task_state_store")
        waits: dict[str, Any] = {"try": context["ti"].try_number, "since": time.time()}
        stored = store.get(_QUOTA_KEY) if store is not None else None
        if isinstance(stored, dict) and stored.get("try") == waits["try"]:
            waits = stored
        if store is not None and time.time() - waits["since"] < self.schedule_timeout_seconds:
            store.set(_QUOTA_KEY, waits)
            self.log.info("Waiting for the namespace's quota, looking again in %d s: %s", _QUOTA_CHECK_SECONDS, said)
            raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=_QUOTA_CHECK_SECONDS))
        spec = pods.read_job(pod, container=self.base_container_name)
        if spec is not None:
            failure = Failure(failure_class=FailureClass.UNSCHEDULABLE, message=said)
            self._take(spec, JobResult.unanswered(spec, failure), context=context)

    @staticmethod
    def _get_ti_pod_labels(context: Context | None = None, include_try_number: bool = True) -> dict[str, str]:
        """Labels that identify the pod, valid for any id.

        cncf-kubernetes 10.25.0 makes `-<hash>` of an id in which no character can stay (a run id in Chinese), which
        the API refuses as a label; there is no public seam between its labels and its search by them.
        """
        labels = RecordingPodOperator._get_ti_pod_labels(context, include_try_number)
        return {name: label_value(value) for name, value in labels.items()}


def _message(error: ApiException) -> str:
    """The API's own words."""
    try:
        body: dict[str, Any] = json.loads(error.body or "{}")
        return str(body.get("message") or error.reason)
    except ValueError:
        return str(error.reason)
