"""Ultralytics without the network: no font, weight or AMP-check download, no analytics, no integrations.

Ultralytics 8.4 reads its switches while it is imported, so `prepare` has to run before the first import of it. All
of it uses public switches: environment variables, its settings file, and files that it looks for before a download.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from pathlib import Path

from yolo_airflow_provider.worker.files import make_folder

_SWITCHES = {
    # ultralytics/utils/__init__.py: is_online() answers False, which turns analytics and update checks off.
    "YOLO_OFFLINE": "true",
    "YOLO_AUTOINSTALL": "false",
    "YOLO_VERBOSE": "false",
    # ultralytics/nn/tasks.py: load .pt with weights_only=True and an allow-list of known classes.
    "ULTRALYTICS_SAFE_LOAD": "true",
    "NO_ALBUMENTATIONS_UPDATE": "1",
    "MPLBACKEND": "Agg",
}

# Analytics and integrations report to servers or write elsewhere; a run's results are the provider's to keep.
_SETTINGS_OFF = (
    "sync",
    "clearml",
    "comet",
    "dvc",
    "mlflow",
    "raytune",
    "tensorboard",
    "wandb",
    "vscode_msg",
    "openvino_msg",
)

# Ultralytics' own places, which would otherwise be the current folder or the checkout that it is installed in.
_PLACES = ("weights_dir", "runs_dir", "datasets_dir")

# The names that ultralytics/data/utils.py and utils/plotting.py look for in the configuration folder, and download
# when they are absent. Matplotlib ships a font that covers both alphabets.
_FONTS = ("Arial.ttf", "Arial.Unicode.ttf")

# The weights that utils/checks.py:check_amp() runs in both precisions, downloaded when absent.
_AMP_CHECK_MODEL = "yolo26n"


def prepare(run_folder: Path, *, trusted_weights: bool = False) -> None:
    """Set every switch; call before Ultralytics is imported.

    Raises:
        RuntimeError: Ultralytics was imported already, so that the switches would come too late.
        JobError: the run's folder is not writable.
    """
    if "ultralytics" in sys.modules:
        raise RuntimeError("offline.prepare() must run before ultralytics is imported")
    os.environ.update(_SWITCHES)
    _know_cores()
    if trusted_weights:
        os.environ["ULTRALYTICS_SAFE_LOAD"] = "false"
    configuration = make_folder(run_folder / ".ultralytics")
    os.environ["YOLO_CONFIG_DIR"] = str(configuration)
    user_folder = make_folder(configuration / "Ultralytics")
    _place_fonts(user_folder)
    # A settings file that lacks keys is completed with defaults when it is read, and keeps what it has.
    settings: dict[str, object] = dict.fromkeys(_SETTINGS_OFF, False)
    settings |= {place: str(configuration / place.removesuffix("_dir")) for place in _PLACES}
    (user_folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")


def quieten() -> None:
    """Import Ultralytics and turn its log down to warnings.

    Its progress bars follow the log's level. One line an epoch is written by the worker itself.
    """
    from ultralytics.utils import LOGGER

    LOGGER.setLevel(logging.WARNING)


def place_amp_check_model() -> Path:
    """Put weights where the AMP check looks, so that it downloads none.

    The check (Ultralytics 8.4.190, utils/checks.py) compares boxes found in 32 bit and with autocast. There is no
    seam to skip it short of `amp="bf16"`, which older cards lack. Weights that were never trained find no box in
    either precision, so the check passes; cards with broken AMP are listed by name in the check itself.
    """
    from ultralytics import YOLO
    from ultralytics.utils import WEIGHTS_DIR

    path = make_folder(Path(WEIGHTS_DIR)) / f"{_AMP_CHECK_MODEL}.pt"
    if not path.exists():
        YOLO(f"{_AMP_CHECK_MODEL}.yaml").save(path)
    return path


def _know_cores() -> None:
    """Let `os.cpu_count` answer where the container hides it (no /proc/cpuinfo, no /sys).

    It may say None, and Ultralytics 8.4 calculates with it while it is imported (utils/__init__.py) and when it builds
    a loader (data/build.py). The cores that the process may run on are what it should take anyhow.
    """
    if os.cpu_count() is None:
        os.cpu_count = lambda: len(os.sched_getaffinity(0))


def _place_fonts(folder: Path) -> None:
    from matplotlib import get_data_path

    font = Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    for name in _FONTS:
        target = folder / name
        if not target.exists():
            shutil.copyfile(font, target)
