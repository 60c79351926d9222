"""Makes the planner's catalogue: one row of figures for each architecture that can be trained.

`python -m yolo_airflow_provider.worker.catalogue --output yolo_airflow_provider/planner/catalogue.csv` makes it anew,
about 20 minutes on two cores; after an upgrade of Ultralytics or torch that a drift test complains of.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from yolo_airflow_provider.contract import ArchitectureFacts
from yolo_airflow_provider.worker.analysis import analyse
from yolo_airflow_provider.worker.models import known_architectures

_TASKS = ("", "-seg", "-pose", "-obb", "-cls", "-p2", "-p6", "-pose-p6", "-seg-p6")
_PLAIN = re.compile(r"^(?P<family>yolov?\d+)(?P<scale>[a-z]?)(?P<variant>(?:-[a-z0-9]+)*)$")


def names() -> list[str]:
    """Architectures that the catalogue has: YOLO of every scale and task of the trainer, and RT-DETR.

    Left out are those for open vocabularies, depth and semantic segmentation, other backbones, and a name without a
    scale where there are scales: it means one of them.
    """
    known = known_architectures()
    found = [name for name in known if name.startswith(("rtdetr", "yolov7", "yolov3"))]
    scaled = {(match["family"], match["variant"]) for name in known if (match := _PLAIN.match(name)) and match["scale"]}
    for name in known:
        match = _PLAIN.match(name)
        if match is None or match["variant"] not in _TASKS or name in found:
            continue
        if match["scale"] or (match["family"], match["variant"]) not in scaled:
            found.append(name)
    return sorted(found)


def write(found: Iterable[ArchitectureFacts], file: Path) -> None:
    """Write the rows, sorted by name."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(ArchitectureFacts.model_fields), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.model_dump() for row in sorted(found, key=lambda row: row.name))


def _attempt(name: str) -> ArchitectureFacts | str:
    torch.set_num_threads(1)
    try:
        return analyse(name)
    # Whatever an architecture does on fake tensors, the others are still to be analysed.
    except Exception as error:
        return f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the catalogue; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m yolo_airflow_provider.worker.catalogue", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these architectures instead of all")
    parser.add_argument("--output", type=Path, default=Path("catalogue.csv"))
    parser.add_argument("--jobs", type=int, default=2, help="processes (default %(default)s)")
    options = parser.parse_args(arguments)
    found: list[ArchitectureFacts] = []
    failed = 0
    # Not forked: torch's threads do not survive it.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for result in pool.map(_attempt, options.only or names()):
            if isinstance(result, str):
                failed += 1
                print(f"left out: {result}", file=sys.stderr)
                continue
            found.append(result)
            print(f"{result.name}: {result.parameters:,} parameters, {result.gflops} GFLOPs", file=sys.stderr)
    write(found, options.output)
    print(f"{len(found)} architectures in {options.output}, {failed} left out", file=sys.stderr)
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())
