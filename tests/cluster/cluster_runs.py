"""Runs of DAGs in the test's own process, and what happens beside them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def run_dag(dag: Any, **arguments: Any) -> Any:
    """Run a DAG that lives in a test, with retries and triggers; returns the DAG run."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(dag_folder=os.devnull, collect_dags=False)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)
    return dag.test(**arguments)


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Do something beside what the block does; its failure fails the test."""
    failed: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(180)
    if thread.is_alive():
        raise AssertionError("what was to happen beside the run has not ended")
    if failed:
        raise failed[0]


def wait_until(question: Callable[[], T | None], what: str, seconds: float = 120, every: float = 0.2) -> T:
    """Poll what has no event to wait for: a file, an HTTP answer, a process.

    Raises:
        AssertionError: not within the time.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(every)


def epochs_done(workspace: Path, dag_id: str, task_id: str = "train") -> int:
    """Epochs that the run's folder lists, 0 before there is one."""
    files = list((workspace / dag_id).glob(f"*/{task_id}/*/epochs.jsonl"))
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
