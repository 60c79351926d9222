"""One task of benchmarks.pod_overhead in a process of its own, as Airflow gives each task one.

`python -m benchmarks.pod_task ORDER ANSWER`: two JSON files, an `Order` to read and the answer to write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

OURS, THEIRS, PLAN = "ours", "theirs", "plan"
DAG_ID = "bench"


@dataclass(frozen=True)
class Order:
    """What to run.

    Attributes:
        side: `ours`, `theirs`, or `plan` to build the pod of our operator and start nothing.
        task: preprocess or train.
        run_id: of the task instance, and so the name of its run folder.
        data: data.yaml.
        image_size: of the data, pixels.
        check_interval: seconds between two looks at a pod that starts.
        pod: for `theirs`, the pod to run, in the API's own JSON.
    """

    side: str
    task: str
    run_id: str
    data: str
    image_size: int
    check_interval: float
    pod: dict[str, Any] | None = None


def context_of(order: Order) -> dict[str, Any]:
    """What Airflow hands to `execute`, as far as the operators read it."""
    ti = SimpleNamespace(
        dag_id=DAG_ID,
        task_id=order.task,
        run_id=order.run_id,
        map_index=-1,
        try_number=1,
        max_tries=0,
        xcom_push=lambda key, value, **_: None,
    )
    return {"ti": ti, "run_id": order.run_id, "dag": SimpleNamespace()}


def operator_of(order: Order) -> Any:
    """The operator, made before the clock starts: a DAG file does that."""
    common: dict[str, Any] = {
        "task_id": order.task,
        "get_logs": True,
        "startup_check_interval_seconds": order.check_interval,
    }
    if order.side == THEIRS:
        from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
        from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator

        return KubernetesPodOperator(
            **common,
            full_pod_spec=PodGenerator.deserialize_model_dict(order.pod),
            do_xcom_push=False,
            # Its default would overwrite the pod's own.
            termination_message_policy="FallbackToLogsOnError",
        )
    from yolo_airflow_provider.operators import MigTrainOperator, PreprocessOperator

    if order.task == "preprocess":
        return PreprocessOperator(**common, data=order.data, imgsz=order.image_size)
    return MigTrainOperator(
        **common,
        data=order.data,
        imgsz=order.image_size,
        model="yolov8n",
        epochs=1,
        batch=4,
        accelerator="cpu",
    )


def note_first_call(owner: type, name: str) -> Callable[[], float]:
    """Let a method note when it is first called; returns what tells the time of it.

    The function that is returned raises an IndexError while there was no call.
    """
    original = getattr(owner, name)
    times: list[float] = []

    @wraps(original)
    def noting(*args: Any, **kwargs: Any) -> Any:
        times.append(perf_counter())
        return original(*args, **kwargs)

    setattr(owner, name, noting)
    return lambda: times[0]


def plain(pod: Any) -> dict[str, Any]:
    """A pod of the client's models as the API's own JSON, without the name that is made anew for each pod."""
    from kubernetes.client import ApiClient

    found: dict[str, Any] = ApiClient().sanitize_for_serialization(pod)
    found["metadata"].pop("name", None)
    return found


def execute(order: Order) -> dict[str, Any]:
    """Run the task to its end; returns its times and its pod."""
    operator, context = operator_of(order), context_of(order)
    if order.side == PLAN:
        return {"pod": plain(operator.build_pod_request_obj(context))}

    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from airflow.providers.cncf.kubernetes.utils.pod_manager import PodManager

    created = note_first_call(PodManager, "create_pod")
    ended = note_first_call(KubernetesPodOperator, "post_complete_action")
    start = perf_counter()
    operator.execute(context)
    end = perf_counter()
    return {
        "seconds": end - start,
        "before_seconds": created() - start,
        "after_seconds": end - ended(),
        "pod": plain(operator.pod_request_obj),
    }


def main(arguments: list[str]) -> int:
    order, answer = map(Path, arguments)
    found = execute(Order(**json.loads(order.read_text(encoding="utf-8"))))
    answer.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
