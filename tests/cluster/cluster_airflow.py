"""A whole Airflow: scheduler, DAG processor, API server and triggerer, each a process that a test may kill."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from cluster_runs import wait_until
from cluster_settings import HERE

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
HEARTBEAT_SECONDS = 20
"""After which a task without a heartbeat is taken for dead."""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Airflow:
    """Starts and ends the four processes, and talks to their API."""

    def __init__(self, home: Path, store: str) -> None:
        self.home = home
        port, logs, trigger_logs = _free_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(HERE / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "64",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # the files do not change
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(logs),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
            # Deaths are noticed within half a minute instead of five.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_SECONDS),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
            "AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN": ".*",
            "AIRFLOW__YOLO__PROFILE_STORE": store,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "no_proxy": "127.0.0.1,localhost",
            "NO_PROXY": "127.0.0.1,localhost",
        }
        self._http = requests.Session()
        self._http.trust_env = False

    # Processes.

    def start(self) -> None:
        subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=self._environment, check=True)
        for component in COMPONENTS:
            self.start_component(component)
        wait_until(self._healthy, "a healthy Airflow", 120, every=0.5)
        token = self._http.get(f"{self.url}/auth/token", timeout=30).json()["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def start_component(self, component: str) -> None:
        log = (self.home / f"{component}.log").open("ab")
        self._processes[component] = subprocess.Popen(
            [sys.executable, "-m", "airflow", component],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill_component(self, component: str) -> None:
        """SIGKILL to the process and all that it started."""
        process = self._processes.pop(component)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _healthy(self) -> bool:
        dead = [name for name, process in self._processes.items() if process.poll() is not None]
        if dead:
            tail = "\n".join((self.home / f"{dead[0]}.log").read_text(errors="replace").splitlines()[-20:])
            raise AssertionError(f"Airflow's {dead[0]} has ended:\n{tail}")
        try:
            health = self._http.get(f"{self.url}/api/v2/monitor/health", timeout=10).json()
        except (requests.RequestException, ValueError):
            return False
        return all(
            (health.get(part) or {}).get("status") == "healthy"
            for part in ("metadatabase", "scheduler", "triggerer", "dag_processor")
        )

    # The API.

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._http.request(method, f"{self.url}/api/v2/{path}", json=body, timeout=60)
        if not answer.ok:
            raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json() if answer.content else None

    def trigger(self, dag_id: str, run_id: str | None = None) -> str:
        """Start a run as soon as the DAG is known; returns its id."""
        known = f"{self.url}/api/v2/dags/{quote(dag_id)}"
        wait_until(lambda: self._http.get(known, timeout=30).ok, f"the DAG {dag_id} to be parsed", 120, every=0.5)
        self.call("PATCH", f"dags/{quote(dag_id)}", {"is_paused": False})
        body = {"logical_date": None, "conf": {}} | ({"dag_run_id": run_id} if run_id else {})
        return str(self.call("POST", f"dags/{quote(dag_id)}/dagRuns", body)["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}")
        return found

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        path = f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances?limit=100"
        found: list[dict[str, Any]] = self.call("GET", path)["task_instances"]
        return found

    def task(self, dag_id: str, run_id: str, task_id: str = "train") -> dict[str, Any]:
        return next(task for task in self.tasks(dag_id, run_id) if task["task_id"] == task_id)

    def wait_for_task(self, dag_id: str, run_id: str, *states: str, seconds: float = 120) -> dict[str, Any]:
        """The task `train` once it is in one of the states."""

        def there() -> dict[str, Any] | None:
            task = self.task(dag_id, run_id)
            return task if task["state"] in states else None

        return wait_until(there, f"{dag_id}.train to be {' or '.join(states)}", seconds, every=0.5)

    def wait_for_end(self, dag_id: str, run_id: str, seconds: float = 180) -> str:
        """The state in which the run ended."""

        def ended() -> str | None:
            state = str(self.run(dag_id, run_id)["state"])
            return state if state in ("success", "failed") else None

        return wait_until(ended, f"the run of {dag_id} to end", seconds, every=0.5)

    def set_state(self, dag_id: str, run_id: str, state: str, task_id: str = "train") -> None:
        """What `Mark as ...` does in the UI."""
        path = f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{task_id}"
        self.call("PATCH", path, {"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_id: str = "train") -> None:
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
        self.call("POST", f"dags/{quote(dag_id)}/clearTaskInstances", body)

    def log(self, dag_id: str, run_id: str, try_number: int, task_id: str = "train", map_index: int = -1) -> str:
        """The task's log as the UI shows it."""
        path = (
            f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/logs/{try_number}"
            f"?full_content=true&map_index={map_index}"
        )
        lines = self.call("GET", path)["content"]
        return "\n".join(line if isinstance(line, str) else f"{line.get('event')} {line}" for line in lines)

    def answer(self, dag_id: str, run_id: str, task_id: str = "train", map_index: int = -1) -> Any:
        """What the task returned."""
        import json

        path = (
            f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/xcomEntries/return_value"
            f"?map_index={map_index}&deserialize=true"
        )
        value = self.call("GET", path)["value"]
        return json.loads(value) if isinstance(value, str) else value
