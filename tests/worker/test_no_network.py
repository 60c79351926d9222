"""No job asks the network for anything: no font, no weights, no check model, no package, no analytics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

# Runs at the start of every Python process of the worker, loader processes included.
_DENY = """
import sys
def deny(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        with open({log!r}, "a") as file:
            file.write(f"{{event}} {{args}}\\n")
        raise OSError(f"no network here: {{event}} {{args}}")
sys.addaudithook(deny)
"""


@pytest.mark.parametrize(
    ("kind", "job"),
    [
        ("preprocess", {"imgsz": 64}),
        ("probe", {"model": "yolov8n", "imgsz": 64, "batches": [2], "steps": 1}),
        ("train", {"model": "yolov8n", "imgsz": 64, "epochs": 1, "batch": 4, "overrides": {"plots": True}}),
        ("export", {"weights": "", "imgsz": 64, "images": 1}),
    ],
)
def test_nothing_is_asked_for(
    kind: str,
    job: dict[str, Any],
    make_job: Callable[..., dict[str, Any]],
    start_worker: Callable[..., Any],
    shapes: Path,
    weights: Path,
    tmp_path: Path,
) -> None:
    log, site = tmp_path / "network.log", tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_DENY.format(log=str(log)))
    job = {"data": str(shapes)} | job | ({"weights": str(weights)} if "weights" in job else {})
    worker = start_worker(make_job(kind, **job), PYTHONPATH=str(site))
    assert worker.end() == 0, worker.log
    assert not log.exists(), log.read_text()


def test_the_hook_would_notice(
    make_job: Callable[..., dict[str, Any]], start_worker: Callable[..., Any], tmp_path: Path
) -> None:
    """The same hook on a process that does ask."""
    import subprocess
    import sys

    log = tmp_path / "network.log"
    program = _DENY.format(log=str(log)) + "import socket\nsocket.getaddrinfo('localhost', 80)\n"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 1
    assert "socket.getaddrinfo" in log.read_text()
