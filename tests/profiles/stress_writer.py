"""Tasks that plan and record at the same time, each in a process of its own, as Airflow's workers do.

A program, so that its processes can be forked from one that has imported everything and holds no connection, and fifty
of them start on two cores in a second. Its argument is a `Plan` as JSON. It prints `half` when half of the rounds
that are planned are done, and leaves a `Report` of each process as JSON in the plan's folder.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import random
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from profile_rows import MODEL, PROFILE, decision, epoch, measurement, run_key

from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.errors import StoreUnavailable
from yolo_airflow_provider.profiles.recorder import Recorder
from yolo_airflow_provider.profiles.records import EpochRow, MeasurementRow, RunKey
from yolo_airflow_provider.profiles.spool import Spool
from yolo_airflow_provider.profiles.store import ProfileStore

MOST_TRIES_OF_A_PLAN = 1000
"""A plan that an outage fails is tried again, as Airflow would; not for ever, should the database never return."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the processes do.

    Attributes:
        url: of the store.
        folder: where the reports and the spool are.
        processes: how many.
        rounds: tasks that each process runs, one after the other; without `seconds`.
        seconds: after which no process begins another task.
        patience_seconds: of the processes in turn, the first one's first.
    """

    url: str
    folder: str
    processes: int
    rounds: int = 0
    seconds: float = 0
    patience_seconds: list[float] = field(default_factory=lambda: [120.0])


@dataclass
class Report:
    """What a process recorded, without an error as far as it knows.

    Attributes:
        measurements: key and part of each.
        epochs: key and number of each.
        decided: the key and the time of each decision, ISO 8601.
        spooled: calls that went into the spool.
        failed_plans: plans that an outage failed, and that were tried again.
        error: what ended it before its time.
    """

    measurements: list[list[str | int]] = field(default_factory=list)
    epochs: list[list[str | int]] = field(default_factory=list)
    decided: list[list[str | int]] = field(default_factory=list)
    spooled: int = 0
    failed_plans: int = 0
    error: str | None = None


class Task:
    """One task after the other: plan, decide, record, all through a recorder with a spool."""

    def __init__(self, plan: Plan, number: int) -> None:
        self._plan = plan
        self._number = number
        self._random = random.Random(number)
        self._opened: ProfileStore | None = None
        self.report = Report()

    def run(self, round_: int) -> None:
        """Plan and record one task, which is this process's, and one that its neighbours report too."""
        own = run_key(dag_id=f"dag{self._number % 5}", task_id=f"task{self._number}", map_index=round_)
        shared = run_key(dag_id="shared", task_id=f"shared{self._number // 5}", map_index=round_)
        log = logging.getLogger("stress")
        recorder = Recorder(self._open, Spool([Path(self._plan.folder) / "spool"], log), log)
        self._read(recorder, own)
        for key in (own, shared):
            row = decision(key=key, decided_at=datetime.now(UTC))
            self.report.spooled += recorder.decide(row) is not None
            self.report.decided.append([*_values(key), row.decided_at.isoformat()])
        recorder.release()
        self._record(recorder, own, shared)
        recorder.release()

    def _open(self) -> ProfileStore:
        if self._opened is None:
            patience = self._plan.patience_seconds[self._number % len(self._plan.patience_seconds)]
            self._opened = open_store(self._plan.url, upgrade=False, patience_seconds=patience)
        return self._opened

    def _read(self, recorder: Recorder, key: RunKey) -> None:
        for _ in range(MOST_TRIES_OF_A_PLAN):
            try:
                store = recorder.store()
                store.evidence(PROFILE)
                store.tries(key.dag_id, key.run_id, key.task_id, key.map_index)
                return
            except StoreUnavailable:
                self.report.failed_plans += 1
        raise RuntimeError(f"no plan in {MOST_TRIES_OF_A_PLAN} tries")

    def _record(self, recorder: Recorder, own: RunKey, shared: RunKey) -> None:
        """Rows in any order, some of which others write at the same time, in an order of their own."""
        rows = [_row(key, part) for key in (own, shared) for part in ("train", "batch-8", "batch-16")]
        epochs = [epoch(number, key=key) for key in (own, shared) for number in (1, 2, 3)]
        self._random.shuffle(rows)
        self._random.shuffle(epochs)
        for _ in range(self._random.choice((1, 1, 2))):  # a result that is reported twice is one result
            self.report.spooled += recorder.record(rows, epochs, [MODEL]) is not None
        self._note(rows, epochs)

    def _note(self, rows: list[MeasurementRow], epochs: list[EpochRow]) -> None:
        self.report.measurements += [[*_values(row.key), row.part] for row in rows]
        self.report.epochs += [[*_values(row.key), row.epoch] for row in epochs]


def _row(key: RunKey, part: str) -> MeasurementRow:
    kind = "train" if part == "train" else "probe"
    outcome = "gpu_oom" if part == "batch-16" else "succeeded"
    finished = datetime.now(UTC)
    return measurement(key=key, part=part, kind=kind, outcome=outcome, finished_at=finished, read_bytes=2**20)


def _values(key: RunKey) -> list[str | int]:
    return list(asdict(key).values())


def _work(plan: Plan, number: int, ended: Synchronized[int], half: Event) -> None:
    task = Task(plan, number)
    deadline = time.monotonic() + plan.seconds
    round_ = 0
    try:
        while round_ < plan.rounds or time.monotonic() < deadline:
            task.run(round_)
            round_ += 1
            with ended.get_lock():
                ended.value += 1
                if ended.value == plan.processes * plan.rounds // 2:
                    half.set()
    except BaseException:
        task.report.error = traceback.format_exc()
    (Path(plan.folder) / f"report-{number}.json").write_text(json.dumps(asdict(task.report)))


def main(argument: str) -> int:
    """Run the processes of a plan to their end."""
    plan = Plan(**json.loads(argument))
    logging.basicConfig(level=logging.ERROR)
    fork = multiprocessing.get_context("fork")
    ended, half = fork.Value("i", 0), fork.Event()
    processes = [fork.Process(target=_work, args=(plan, number, ended, half)) for number in range(plan.processes)]
    for process in processes:
        process.start()
    if plan.rounds:
        half.wait()
        print("half", flush=True)
    for process in processes:
        process.join()
    return max(process.exitcode or 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
