"""The demo: an Airflow of its own under one folder, the example DAG run through `dag.test()`, a table at the end."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yolo_airflow_provider.demo.report import print_report
from yolo_airflow_provider.demo.shapes import draw_shapes

DAG_ID = "yolo_train"


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why and where to look."""


@dataclass(frozen=True)
class DemoOptions:
    """What the command line asked for."""

    home: Path
    data: Path | None
    model: str
    imgsz: int
    epochs: int
    memory_budget: str
    export_format: str
    runs: int
    batch: str = "auto"


def demo(options: DemoOptions) -> int:
    """Run the example DAG as often as asked and report.

    Returns:
        0 when every run succeeded, 1 otherwise.

    Raises:
        DemoError: Airflow could not be set up, or the data set does not exist.
    """
    started = time.monotonic()
    if options.data is not None and not options.data.is_file():
        raise DemoError(f"the data set {options.data} does not exist; give the path of a data.yaml")
    if missing := [name for name in ("torch", "ultralytics", "PIL") if importlib.util.find_spec(name) is None]:
        raise DemoError(f"{', '.join(missing)} not installed: pip install 'yolo-airflow-provider[worker]'")
    options.home.mkdir(parents=True, exist_ok=True)
    if (options.home / "yolo_profiles.db").exists():
        _say(f"measurements of earlier demos are in {options.home}; the first run plans from them too")
    set_environment(options.home)
    _say(f"Airflow's home, database, logs and the workspace are under {options.home}")
    migrate_airflow(options.home)
    data = options.data or draw_shapes(options.home / "shapes", size=options.imgsz)
    dag = _load_dag()
    run_ids = []
    for number in range(1, options.runs + 1):
        _say(f"run {number} of {options.runs}: {options.model} on {data}, {options.epochs} epochs at {options.imgsz}")
        run = dag.test(run_conf=_parameters(options, data))
        run_ids.append(run.run_id)
        if str(run.state) != "success":
            _say(f"run {number} ended as {run.state}; its log is above")
            return 1
    print_report(DAG_ID, run_ids, home=options.home, seconds=time.monotonic() - started)
    return 0


def dags_folder() -> Path:
    """The example DAGs: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return next(folder for folder in (package / "_dags", package.parent / "dags") if folder.is_dir())


def _parameters(options: DemoOptions, data: Path) -> dict[str, Any]:
    batch: str | int = int(options.batch) if options.batch.isdigit() else options.batch
    return {
        "model": options.model,
        "data": str(data),
        "imgsz": options.imgsz,
        "epochs": options.epochs,
        "batch": batch,
        "accelerator": "cpu",
        "memory_budget": options.memory_budget,
        "format": options.export_format,
    }


def set_environment(home: Path) -> None:
    """Everything that Airflow reads when it is imported; nothing outside `home` is written."""
    os.environ.update(
        {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder()),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            # Of Airflow itself only warnings; of the tasks every line, epoch by epoch.
            "AIRFLOW__LOGGING__NAMESPACE_LEVELS": "airflow.task.operators=INFO",
            "AIRFLOW__YOLO__EXECUTION": "local",
            "AIRFLOW__YOLO__WORKSPACE": str(home / "workspace"),
            # The store is the demo's own, whatever connection the user's shell defines.
            "AIRFLOW__YOLO__PROFILE_STORE": f"sqlite:///{home / 'yolo_profiles.db'}",
        }
    )
    os.environ.pop("AIRFLOW_CONN_YOLO_PROFILES_DEFAULT", None)


def migrate_airflow(home: Path) -> None:
    """Make or upgrade Airflow's database, in a process of its own.

    Raises:
        DemoError: it could not be made.
    """
    log = home / "migrate.log"
    _say("creating Airflow's database" if not (home / "airflow.db").exists() else "checking Airflow's database")
    with log.open("w", encoding="utf-8") as file:
        ended = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if ended.returncode:
        raise DemoError(f"`airflow db migrate` ended with {ended.returncode}; see {log}")


def _load_dag() -> Any:
    """The example DAG, known to Airflow's database as `dag.test()` needs it."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(dag_folder=str(dags_folder() / f"{DAG_ID}.py"))
    if bag.import_errors:
        raise DemoError(f"the example DAG does not load: {bag.import_errors}")
    sync_bag_to_db(bag, "dags-folder", None)
    return bag.dags[DAG_ID]


def _say(line: str) -> None:
    print(f"demo: {line}", flush=True)
