"""Memory and time of models that the profile store has never seen, predicted before their first run, measured after.

Through the operators, Airflow and the store, on `cpu`: each model is trained twice on the same images; the batch is the
planner's. The first prediction stands on the architecture alone (and, from the second model on, on how the predictions
for the others fared), the second on the first run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import this_machine
from benchmarks.output import progress, report
from yolo_airflow_provider.demo.run import migrate_airflow, set_environment

DAG_ID = "first_sight"
RUNS = 2


def make_dag(model: str, options: argparse.Namespace) -> Any:
    """A DAG of preprocessing and one training, known to Airflow's database."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.sdk import DAG

    from yolo_airflow_provider.operators import MigTrainOperator, PreprocessOperator

    with DAG(f"{DAG_ID}_{model}", schedule=None) as dag:
        data = PreprocessOperator(task_id="preprocess", data=str(options.data.absolute()), imgsz=options.imgsz)
        MigTrainOperator(
            task_id="train",
            model=model,
            data=data.output,
            imgsz=options.imgsz,
            epochs=options.epochs,
            max_batch=options.max_batch,
            accelerator="cpu",
            memory_budget=options.memory_budget,
        )
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    bag = DagBag(dag_folder=os.devnull, collect_dags=False)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)
    return dag


def train(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train twice; each run's prediction and what came of it."""
    from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook

    dag = make_dag(model, options)
    found = []
    for number in range(1, RUNS + 1):
        progress(f"{model}: run {number} of {RUNS}")
        run = dag.test()
        if str(run.state) != "success":
            raise SystemExit(f"run {number} of {model} ended as {run.state}")
        store = ProfileStoreHook().get_store()
        (decision,) = store.decisions(dag.dag_id, run.run_id)
        (row,) = [one.row for one in store.measurements(dag.dag_id, run.run_id) if one.row.kind == "train"]
        predicted, measured = decision.predicted_bytes or 0, row.peak_device_bytes or 0
        seconds = decision.predicted_epoch_seconds
        found.append(
            {
                "model": model,
                "run": number,
                "basis": decision.basis,
                "batch": row.batch,
                "predicted_bytes": predicted,
                "measured_bytes": measured,
                "error_percent": 100 * (predicted / measured - 1),
                "within_interval": (decision.predicted_low_bytes or 0)
                <= measured
                <= (decision.predicted_high_bytes or 0),
                "predicted_epoch_seconds": seconds,
                "epoch_seconds": row.epoch_seconds,
            }
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_sight", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="a data.yaml")
    parser.add_argument("--models", nargs="+", default=["yolo11n", "yolov5s", "yolov10n"], help="(%(default)s)")
    parser.add_argument("--imgsz", type=int, default=320, help="pixels (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=2, help="of each training (default: %(default)s)")
    parser.add_argument("--max-batch", type=int, default=16, help="largest batch (default: %(default)s)")
    parser.add_argument("--memory-budget", default="4Gi", help="of each training (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="first-sight-") as folder:
        # What tasks log belongs beside the result, not into it.
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            set_environment(Path(folder))
            migrate_airflow(Path(folder))
            rows = [row for model in options.models for row in train(model, options)]
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
    worst = {number: max(abs(row["error_percent"]) for row in rows if row["run"] == number) for number in (1, 2)}
    table = [["model", "run", "stands on", "batch", "predicted, GiB", "measured, GiB", "error, %", "in interval"]]
    table += [
        [
            row["model"],
            str(row["run"]),
            row["basis"],
            str(row["batch"]),
            f"{row['predicted_bytes'] / 2**30:.2f}",
            f"{row['measured_bytes'] / 2**30:.2f}",
            f"{row['error_percent']:+.1f}",
            "yes" if row["within_interval"] else "no",
        ]
        for row in rows
    ]
    report(
        "first_sight",
        this_machine(),
        figures={"first_error_max_percent": worst[1], "second_error_max_percent": worst[2], "runs": rows},
        rows=table,
        closing=[f"largest error: {worst[1]:.1f} % at first sight, {worst[2]:.1f} % on the second run"],
        as_json=options.json,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
