"""Everything that happens to the pods of the session's namespace, from the watch API, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from cluster_settings import SLICE
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

T = TypeVar("T")
DAG, RUN, TASK, TRY = (f"yolo-airflow.io/{name}" for name in ("dag", "run", "task", "try"))


@dataclass
class SeenPod:
    """One pod from its creation to its removal."""

    pod: client.V1Pod
    phases: list[str] = field(default_factory=list)
    gone: bool = False
    first: client.V1Pod | None = None

    @property
    def name(self) -> str:
        return str(self.pod.metadata.name)

    @property
    def phase(self) -> str:
        return str(self.pod.status.phase)

    @property
    def task(self) -> str:
        return str((self.pod.metadata.annotations or {}).get(TASK, ""))

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.pod.metadata.annotations or {})

    @property
    def requests(self) -> dict[str, str]:
        return dict(self.pod.spec.containers[0].resources.requests or {})

    @property
    def limits(self) -> dict[str, str]:
        return dict(self.pod.spec.containers[0].resources.limits or {})

    @property
    def unschedulable(self) -> str:
        """The scheduler's words, empty while it has said none."""
        conditions = self.pod.status.conditions or []
        return next((c.message or "" for c in conditions if c.type == "PodScheduled" and c.status == "False"), "")

    @property
    def holds_slice(self) -> bool:
        """It is bound to a node, asks for a slice and has not ended."""
        placed = self.pod.spec.node_name and self.phase in ("Pending", "Running") and not self.gone
        return bool(placed and SLICE in self.limits)


class PodWatch(threading.Thread):
    """Follows all pods of a namespace; `wait_for` returns as soon as an event makes its question true."""

    def __init__(self, core: client.CoreV1Api, namespace: str) -> None:
        super().__init__(name="pod-watch", daemon=True)
        self._core = core
        self._namespace = namespace
        self._seen: dict[str, SeenPod] = {}
        self._changed = threading.Condition(threading.RLock())
        self._ended = False
        self.most_slices: dict[str, int] = {}
        """By DAG, the largest number of slices that its pods held at one moment."""

    def run(self) -> None:
        version = None
        while not self._ended:
            try:
                if version is None:
                    listed = self._core.list_namespaced_pod(self._namespace)
                    version = listed.metadata.resource_version
                    for pod in listed.items:
                        self._note("ADDED", pod)
                stream = watch.Watch().stream(
                    self._core.list_namespaced_pod,
                    self._namespace,
                    resource_version=version,
                    timeout_seconds=30,
                )
                for event in stream:
                    version = event["object"].metadata.resource_version
                    self._note(event["type"], event["object"])
            except ApiException as error:
                if error.status != 410:
                    raise
                version = None

    def stop(self) -> None:
        self._ended = True

    def pods(self, dag_id: str, task_id: str | None = None, run_id: str | None = None) -> list[SeenPod]:
        """All pods of a DAG that ever were, oldest first."""
        with self._changed:
            return [
                seen
                for seen in self._seen.values()
                if seen.annotations.get(DAG) == dag_id
                and task_id in (None, seen.task)
                and run_id in (None, seen.annotations.get(RUN))
            ]

    def wait_for(self, question: Callable[[], T | None], what: str, seconds: float = 120) -> T:
        """The first true answer; `question` is asked again at each event.

        Raises:
            AssertionError: not within the time; says what was waited for and what there was.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                answer = question()
                if answer:
                    return answer
                left = deadline - time.monotonic()
                if left <= 0:
                    there = "\n".join(f"  {s.name}: {s.phases} gone={s.gone}" for s in list(self._seen.values())[-12:])
                    raise AssertionError(f"waited {seconds:.0f} s in vain for {what}; pods:\n{there}")
                self._changed.wait(min(left, 1.0))

    def wait_for_pod(
        self, dag_id: str, task_id: str, what: str, true: Callable[[SeenPod], object], *, seconds: float = 120
    ) -> SeenPod:
        """The first pod of a task for which something is true."""

        def question() -> SeenPod | None:
            return next((seen for seen in self.pods(dag_id, task_id) if true(seen)), None)

        return self.wait_for(question, f"a pod of {dag_id}.{task_id} that {what}", seconds)

    def _note(self, kind: str, pod: client.V1Pod) -> None:
        with self._changed:
            seen = self._seen.setdefault(pod.metadata.uid, SeenPod(pod, first=pod))
            seen.pod, seen.gone = pod, kind == "DELETED"
            if not seen.phases or seen.phases[-1] != pod.status.phase:
                seen.phases.append(pod.status.phase)
            dag_id = seen.annotations.get(DAG, "")
            held = sum(1 for other in self._seen.values() if other.holds_slice and other.annotations.get(DAG) == dag_id)
            self.most_slices[dag_id] = max(self.most_slices.get(dag_id, 0), held)
            self._changed.notify_all()
