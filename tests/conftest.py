"""Airflow gets a home of its own before anything imports it; data sets are drawn once a session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytest_plugins = ["store_fixtures"]

_HOME = Path(tempfile.mkdtemp(prefix="yolo-airflow-tests-"))
os.environ.update(
    {
        "AIRFLOW_HOME": str(_HOME),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME / 'airflow.db'}",
        "AIRFLOW__YOLO__WORKSPACE": str(_HOME / "workspace"),
    }
)
for _name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
    del os.environ[_name]


def pytest_configure(config: pytest.Config) -> None:
    """Not in pyproject.toml: pytest would import Airflow for it, before the home above is set."""
    config.addinivalue_line("filterwarnings", "error::airflow.exceptions.AirflowProviderDeprecationWarning")


@pytest.fixture(scope="session", autouse=True)
def airflow_home() -> Iterator[Path]:
    """AIRFLOW_HOME of the whole session, removed at its end."""
    yield _HOME
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_database(airflow_home: Path) -> Path:
    """Airflow's metadata database, migrated once."""
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)
    return airflow_home / "airflow.db"


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny data set of drawn shapes: 16 train and 4 val images of 96 pixels."""
    from yolo_airflow_provider.demo.shapes import draw_shapes

    return draw_shapes(tmp_path_factory.mktemp("shapes") / "shapes", train=16, val=4, size=96)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint of a real architecture, in Ultralytics' own format."""
    folder = tmp_path_factory.mktemp("weights")
    program = (
        "import sys; from pathlib import Path; from yolo_airflow_provider.worker import offline\n"
        "offline.prepare(Path(sys.argv[1])); offline.quieten()\n"
        "from ultralytics import YOLO; YOLO('yolov8n.yaml').save(sys.argv[1] + '/net.pt')"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, capture_output=True)
    return folder / "net.pt"


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A job specification as plain data, its workspace in a temporary folder."""

    def build(kind: str, *, try_number: int = 1, budget_bytes: int | None = None, **job: Any) -> dict[str, Any]:
        folder = tmp_path / "workspace" / "dag" / "run" / kind / "-1"
        accelerator: dict[str, Any] = {"kind": "cpu"}
        if budget_bytes:
            accelerator |= {"memory_budget_bytes": budget_bytes, "enforce_budget": True}
        return {
            "version": 1,
            "job": {"kind": kind, **job},
            "identity": {"dag_id": "dag", "run_id": "run", "task_id": kind, "try_number": try_number},
            "accelerator": accelerator,
            "workspace": str(tmp_path / "workspace"),
            "run_folder": str(folder),
            "result_path": str(tmp_path / f"answer-{try_number}.json"),
        }

    return build


class WorkerProcess:
    """A worker as the pod runs it: its own process, the job in its environment, its answer in a file."""

    def __init__(self, spec: dict[str, Any], **environment: str) -> None:
        self.spec = spec
        variables = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "yolo_airflow_provider.worker"],
            env=variables | {"YOLO_JOB": json.dumps(spec)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []

    def wait_for(self, text: str) -> None:
        """Read the log up to a line that contains `text`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return
        raise AssertionError(f"the worker ended without saying {text!r}:\n" + "\n".join(self.lines))

    def end(self) -> int:
        """Read the log to its end; returns the exit code."""
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip() for line in self.process.stdout)
        return self.process.wait()

    @property
    def log(self) -> str:
        """Everything that was said so far."""
        return "\n".join(self.lines)

    @property
    def answer(self) -> dict[str, Any]:
        """The job's result as plain data."""
        found: dict[str, Any] = json.loads(Path(self.spec["result_path"]).read_text())
        return found


@pytest.fixture
def start_worker() -> Iterator[Callable[..., WorkerProcess]]:
    """Start workers; what still runs at the end of the test is ended."""
    started: list[WorkerProcess] = []

    def start(spec: dict[str, Any], **environment: str) -> WorkerProcess:
        started.append(WorkerProcess(spec, **environment))
        return started[-1]

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.wait()
        if worker.process.stdout is not None:
            worker.process.stdout.close()
