"""Remembers what images were found to be, so that a second run decodes and reads only what has changed.

An image is taken as unchanged while its size, its modification and change times and its inode are the same.
The change time cannot be set at will, so a file that was swapped and back-dated is read again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import PIL

from yolo_airflow_provider.worker.dataset.faults import Fault
from yolo_airflow_provider.worker.dataset.images import ImageFacts
from yolo_airflow_provider.worker.files import write_atomically

# Raise it when images are judged differently. Another PIL may decode differently.
_RULES = f"1/{PIL.__version__}"

Known = Mapping[str, tuple[str, ImageFacts]]
"""By path: the stamp of the file when it was read, and what it was."""


def stamp(status: os.stat_result) -> str:
    """What tells that a file is still the one that was read."""
    return f"{status.st_size}/{status.st_mtime_ns}/{status.st_ctime_ns}/{status.st_ino}"


def known_path(datasets: Path, root: Path) -> Path:
    """Where the memory of a data set is kept, below the workspace's folder of data sets."""
    return datasets / ".checked" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}.json"


def load_known(path: Path) -> Known:
    """What was remembered; empty where there is nothing, or nothing of use."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["rules"] != _RULES:
            return {}
        return {name: (mark, _facts(fields)) for name, (mark, fields) in content["images"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        # It only saves time: whatever is wrong with it, the images are read again.
        return {}


def save_known(path: Path, known: Known) -> None:
    """Remember, for the next run.

    Raises:
        OSError: the workspace cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    images = {name: (mark, asdict(facts)) for name, (mark, facts) in known.items()}
    write_atomically(path, json.dumps({"rules": _RULES, "images": images}))


def _facts(fields: dict[str, object]) -> ImageFacts:
    fault = fields.pop("fault")
    facts = ImageFacts(fault=None if fault is None else Fault(str(fault)), **fields)  # type: ignore[arg-type]
    if not isinstance(facts.sha256, str) or len(facts.sha256) != 64 or not isinstance(facts.size_bytes, int):
        raise ValueError("not the facts of an image")
    return facts
