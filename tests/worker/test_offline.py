"""Ultralytics' switches, in processes of their own: they are read while it is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_PREPARED = """
import json, sys
from pathlib import Path
from yolo_airflow_provider.worker import offline
offline.prepare(Path(sys.argv[1]))
offline.quieten()
"""


def run(program: str, folder: Path) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", _PREPARED + program, str(folder)], capture_output=True, text=True, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.slow
def test_settings_hold_before_the_import_and_nothing_is_said(tmp_path: Path) -> None:
    program = """
from ultralytics.utils import ONLINE, SETTINGS, USER_CONFIG_DIR
from ultralytics.utils.events import events
from ultralytics.nn.tasks import SAFE_LOAD
print(json.dumps([ONLINE, dict(SETTINGS), str(USER_CONFIG_DIR), events.enabled, SAFE_LOAD]))
"""
    (line,) = run(program, tmp_path)
    online, settings, folder, analytics, safe = json.loads(line)
    assert (online, analytics, safe) == (False, False, True)
    assert not any(settings[name] for name in ("sync", "clearml", "comet", "dvc", "mlflow", "raytune", "wandb"))
    assert Path(folder) == tmp_path / ".ultralytics" / "Ultralytics"
    assert all(Path(settings[place]).is_relative_to(tmp_path) for place in ("weights_dir", "runs_dir", "datasets_dir"))


@pytest.mark.slow
def test_the_fonts_and_the_amp_checks_weights_are_found_not_downloaded(tmp_path: Path) -> None:
    program = """
import sys
sys.addaudithook(lambda event, args: sys.exit(f"network: {args}") if event == "socket.getaddrinfo" else None)
from ultralytics import YOLO
from ultralytics.utils import WEIGHTS_DIR
from ultralytics.utils.checks import check_font
path = offline.place_amp_check_model()
model = YOLO(Path(WEIGHTS_DIR) / "yolo26n.pt")
print(check_font("Arial.ttf"), check_font("Arial.Unicode.ttf"), path, len(model.names))
"""
    latin, every, weights, classes = run(program, tmp_path)[-1].split()
    assert all(Path(path).is_relative_to(tmp_path) for path in (latin, every, weights))
    assert int(classes) == 80


def test_too_late_is_an_error(tmp_path: Path) -> None:
    program = "try:\n    offline.prepare(Path(sys.argv[1]))\nexcept RuntimeError as error:\n    print(error)\n"
    assert run(program, tmp_path) == ["offline.prepare() must run before ultralytics is imported"]
