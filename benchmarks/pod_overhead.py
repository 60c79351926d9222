"""What a task in a pod pays for our operator: its wall time against a plain KubernetesPodOperator's.

Both sides run the same worker command on the cluster of KUBECONFIG. The plain side gets the whole pod that our
operator builds (job, image, mounts, resources, security context) as `full_pod_spec`, follows the log and deletes the
pod as ours does, and neither plans, reads the cluster, nor records anything. `same_pod` says whether all pods were
the same but for the paths in their jobs.

Each run is `operator.execute(context)` in a fresh interpreter, timed from within: Airflow gives each task a process,
so what an operator imports only when it runs counts on either side; importing the operator and making it does not
(that is the DAG file's; benchmarks.imports). The context is made by hand: what ours sends to Airflow's API and plain
KubernetesPodOperator does not (its job into the task's state store, its XCom), two calls of some milliseconds, is not
in it. The sides take turns, and before each run of either our operator builds one pod in another process, so that
both start with the same things in the page cache. A first run of each is thrown away.

No run finds another's result: each has a run id, and so a run folder, of its own, and a data set of its own, drawn
again from the same seed in another folder, by whose name a prepared data set is kept.

Two medians are compared, `extra_seconds` and `ratio`, and the bar is an extra second or 5 % of the plain side's time,
whichever is larger. KubernetesPodOperator looks at a starting pod every 5 s and at an ending one every 1 to 2 s, which
quantises both sides and can hide or invent as much; the first of them can be set and is set alike on both
(--check-interval). What remains of it, and how long this cluster takes to start a pod, lies between the creation of
the pod and the call of `post_complete_action`, where both sides run the same code of KubernetesPodOperator.
`extra_outside_pod_seconds` leaves that out: the difference of the medians of what lies before and after, which is all
that our operator adds to.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import this_machine
from benchmarks.output import progress, report
from benchmarks.pairs import measure_in_turns, ratio_of_medians
from benchmarks.pod_cluster import HOOK_VARIABLE, NO_HOOK, ROOT, cluster_for_tasks
from benchmarks.pod_task import OURS, PLAN, THEIRS, Order
from benchmarks.processes import run_measured
from yolo_airflow_provider.contract import JOB_VARIABLE
from yolo_airflow_provider.demo.shapes import draw_shapes

TASKS = ("preprocess", "train")
_TRAIN_IMAGES, _VAL_IMAGES, _IMAGE_SIZE = 8, 4, 64


@dataclass(frozen=True)
class Run:
    """One task.

    Attributes:
        seconds: of `execute`.
        before_seconds: of them, until the pod was asked for.
        after_seconds: of them, since the pod had ended and KubernetesPodOperator had seen it.
        pod: that was run.
    """

    seconds: float
    before_seconds: float
    after_seconds: float
    pod: dict[str, Any]

    @property
    def outside_pod_seconds(self) -> float:
        """Before and after."""
        return self.before_seconds + self.after_seconds


class Tasks:
    """The two sides; `run` runs a task under one of them.

    Args:
        workspace: the shared volume's folder.
        environment: of the processes that run the tasks.
        task: preprocess or train.
        check_interval: seconds between two looks at a pod that starts.
    """

    def __init__(self, workspace: Path, environment: Mapping[str, str], *, task: str, check_interval: float) -> None:
        self._workspace = workspace
        self._environment = environment
        self._task = task
        self._check_interval = check_interval
        self._number = 0

    def run(self, side: str) -> Run:
        """Run one task to its end.

        Raises:
            RuntimeError: it failed; with the end of its log.
        """
        self._number += 1
        planned = self._process(PLAN, THEIRS)["pod"]
        return Run(**self._process(side, side, pod=planned if side == THEIRS else None))

    def _process(self, action: str, side: str, *, pod: dict[str, Any] | None = None) -> dict[str, Any]:
        run_id = f"{self._number}-{side}"
        data = draw_shapes(self._workspace / f"shapes-{run_id}", train=_TRAIN_IMAGES, val=_VAL_IMAGES, size=_IMAGE_SIZE)
        order = Order(
            side=action,
            task=self._task,
            run_id=run_id,
            data=str(data),
            image_size=_IMAGE_SIZE,
            check_interval=self._check_interval,
            pod=pod,
        )
        home = Path(self._environment["AIRFLOW_HOME"])
        files = [home / f"{run_id}-{action}.{kind}" for kind in ("order", "answer", "log")]
        files[0].write_text(json.dumps(asdict(order)), encoding="utf-8")
        # The pod of the plain side has what the hook mounts in it already.
        hook = {HOOK_VARIABLE: NO_HOOK} if action == THEIRS else {}
        run_measured(
            [sys.executable, "-m", "benchmarks.pod_task", *map(str, files[:2])],
            environment={**self._environment, **hook},
            folder=ROOT,
            log=files[2],
        )
        found: dict[str, Any] = json.loads(files[1].read_text(encoding="utf-8"))
        return found


def without_job(pod: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be the same in two pods that are compared: their spec, without the job and its paths."""
    spec: dict[str, Any] = json.loads(json.dumps(pod["spec"]))
    for container in spec["containers"]:
        container["env"] = [variable for variable in container.get("env", []) if variable["name"] != JOB_VARIABLE]
    return spec


def allowed_extra_seconds(theirs: Sequence[float]) -> float:
    """The bar: a second, or 5 % of the plain side's median where that is more."""
    return max(1.0, 0.05 * statistics.median(theirs))


def figures(ours: Sequence[Run], theirs: Sequence[Run]) -> dict[str, Any]:
    """What the JSON object says about the runs."""
    our_seconds, their_seconds = [run.seconds for run in ours], [run.seconds for run in theirs]
    extra = statistics.median(our_seconds) - statistics.median(their_seconds)
    outside = [statistics.median(run.outside_pod_seconds for run in runs) for runs in (ours, theirs)]
    first = without_job(ours[0].pod)
    return {
        "extra_seconds": round(extra, 3),
        "ratio": round(ratio_of_medians(our_seconds, their_seconds), 4),
        "allowed_extra_seconds": round(allowed_extra_seconds(their_seconds), 3),
        "within_bar": extra <= allowed_extra_seconds(their_seconds),
        "extra_outside_pod_seconds": round(outside[0] - outside[1], 3),
        "same_pod": all(without_job(run.pod) == first for run in (*ours, *theirs)),
        **{
            side: {
                name: [round(getattr(run, name), 3) for run in runs]
                for name in ("seconds", "before_seconds", "after_seconds")
            }
            for side, runs in ((OURS, ours), (THEIRS, theirs))
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    # An end from outside removes the namespace too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with cluster_for_tasks(os.environ["KUBECONFIG"]) as (workspace, environment):
        tasks = Tasks(workspace, environment, task=options.task, check_interval=options.check_interval)
        for side in (OURS, THEIRS):
            progress(f"warming up: {side}")
            tasks.run(side)
        ours, theirs = measure_in_turns(
            (OURS, THEIRS),
            options.rounds,
            tasks.run,
            lambda number, side, run: progress(
                f"round {number + 1}/{options.rounds} {side}: {run.seconds:.2f} s,"
                f" {run.outside_pod_seconds:.2f} s of them outside of the pod"
            ),
        )
    _report(ours, theirs, options)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pod_overhead", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=7, help="tasks a side (default %(default)s)")
    parser.add_argument("--task", choices=TASKS, default=TASKS[0], help="what to run (default %(default)s)")
    parser.add_argument(
        "--check-interval",
        type=float,
        default=1,
        metavar="SECONDS",
        help="startup_check_interval_seconds of both sides (default %(default)s; KubernetesPodOperator's own is 5)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.check_interval <= 0:
        parser.error("--rounds must be at least 1 and --check-interval more than 0")
    if not Path(os.environ.get("KUBECONFIG") or "/nonexistent").is_file():
        parser.error(
            "this runs pods on a real Kubernetes: set KUBECONFIG to an administrator's kubeconfig"
            f" (one file; it is {os.environ.get('KUBECONFIG')!r})"
        )
    return options


def _report(ours: Sequence[Run], theirs: Sequence[Run], options: argparse.Namespace) -> None:
    found = figures(ours, theirs)
    report(
        "pod_overhead",
        this_machine(),
        figures={**found, "arguments": {name: getattr(options, name) for name in ("task", "rounds", "check_interval")}},
        rows=[
            ["seconds", "median", "min", "max", "before the pod", "after it"],
            *([name, *_medians(runs)] for name, runs in (("our operator", ours), ("KubernetesPodOperator", theirs))),
        ],
        closing=[
            f"{options.task}: extra_seconds {found['extra_seconds']:.2f}"
            f" (allowed {found['allowed_extra_seconds']:.2f}), ratio {found['ratio']:.3f};"
            f" outside of the pod {found['extra_outside_pod_seconds']:.2f} s"
            f" (medians of {options.rounds} tasks a side, pods looked at every {options.check_interval:g} s)",
            "both sides ran the same pod" if found["same_pod"] else "NOT COMPARABLE: the sides' pods differ",
        ],
        as_json=options.json,
    )


def _medians(runs: Sequence[Run]) -> list[str]:
    seconds = [run.seconds for run in runs]
    return [
        *(f"{number:.2f}" for number in (statistics.median(seconds), min(seconds), max(seconds))),
        f"{statistics.median(run.before_seconds for run in runs):.2f}",
        f"{statistics.median(run.after_seconds for run in runs):.2f}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
