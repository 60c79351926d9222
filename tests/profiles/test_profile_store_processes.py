from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from profile_rows import MODEL, decision, epoch, measurement, run_key

from yolo_airflow_provider.profiles.engine import open_store

PROCESSES = 8
ROWS = 50


def write(url: str, number: int, barrier: Any, errors: Any) -> None:
    try:
        barrier.wait(60)
        store = open_store(url)
        for row in range(ROWS):
            key = run_key(task_id=f"task{number}", map_index=row)
            store.decide(decision(key=key))
            store.record([measurement(key=key)], [epoch(1, key=key)], [MODEL])
        errors.put(None)
    except BaseException as error:
        errors.put(f"process {number}: {error!r}")
        raise


def test_processes_that_start_together_share_a_fresh_store(store_url: str):
    spawn = multiprocessing.get_context("spawn")
    barrier, errors = spawn.Barrier(PROCESSES), spawn.Queue()
    processes = [spawn.Process(target=write, args=(store_url, n, barrier, errors)) for n in range(PROCESSES)]
    for process in processes:
        process.start()
    assert [errors.get(timeout=120) for _ in processes] == [None] * PROCESSES
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    store = open_store(store_url)
    keys = {stored.row.key for stored in store.measurements("yolo", "manual__1")}
    assert len(keys) == PROCESSES * ROWS
    assert len(store.decisions("yolo", "manual__1")) == PROCESSES * ROWS
    assert len(store.frame("epoch")) == PROCESSES * ROWS
    assert len(store.frame("model")) == 1


def test_threads_that_start_together_share_a_fresh_store(store_url: str):
    def one(number: int) -> None:
        open_store(store_url).record([measurement(key=run_key(map_index=number))])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(24)))
    assert len(open_store(store_url).measurements("yolo", "manual__1")) == 24
