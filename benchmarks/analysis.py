"""What the analysis of an architecture costs, once everything is imported, and whether it agrees with Ultralytics.

The peer is Ultralytics' own summary (`YOLO(...).info()`), which counts parameters and FLOPs and nothing else.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from benchmarks.machine import this_machine
from benchmarks.output import report
from yolo_airflow_provider.planner.catalogue import architectures
from yolo_airflow_provider.worker import models
from yolo_airflow_provider.worker.analysis import analyse

MODELS = (
    *("yolov3", "yolov5n", "yolov5x-p6", "yolov6l", "yolov7", "yolov7-e6e", "yolov8n", "yolov8m-seg", "yolov8x"),
    *("yolov9t", "yolov9e", "yolov10m", "yolo11m", "yolo12x", "yolo26x", "rtdetr-l"),
)
WARM = "yolov8n"


def compared(name: str) -> dict[str, Any]:
    """One analysis beside Ultralytics' summary."""
    started = perf_counter()
    found = analyse(name)
    took = perf_counter() - started
    started = perf_counter()
    parameters, gflops = _summary(name)
    summary = perf_counter() - started
    return {
        "model": name,
        "kernels": found.kernels,
        "analysis_seconds": took,
        "summary_seconds": summary,
        # A stem that folds pixels into channels has no FLOPs in the summary.
        "agrees": (found.parameters, round(found.gflops, 1))
        == (parameters, round(gflops, 1) or round(found.gflops, 1)),
    }


def _summary(name: str) -> tuple[int, float]:
    from ultralytics import RTDETR, YOLO

    source = models.resolve(name, trusted_weights=False)
    family = RTDETR if name.startswith("rtdetr") else YOLO
    _, parameters, _, gflops = family(source.path).info(verbose=True)
    return parameters, float(gflops)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.analysis", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    parser.add_argument("--all", action="store_true", help="the whole catalogue, a quarter of an hour")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    names = sorted(architectures()) if options.all else list(options.models)
    analyse(WARM)
    rounds = [[compared(name) for name in names] for _ in range(options.rounds)]
    found = [
        runs[0] | {key: statistics.median(run[key] for run in runs) for key in ("analysis_seconds", "summary_seconds")}
        for runs in zip(*rounds, strict=True)
    ]
    seconds = sorted(one["analysis_seconds"] for one in found)
    figures = {
        "models": len(found),
        "median_seconds": statistics.median(seconds),
        "largest_seconds": seconds[-1],
        "within_5_seconds_percent": 100 * sum(one <= 5 for one in seconds) / len(seconds),
        "agree": sum(one["agrees"] for one in found),
    }
    rows = [["model", "operators a step", "analysis, s", "summary, s", "agrees"]]
    rows += [
        [
            one["model"],
            str(one["kernels"]),
            f"{one['analysis_seconds']:.1f}",
            f"{one['summary_seconds']:.1f}",
            "yes" if one["agrees"] else "no",
        ]
        for one in found
    ]
    report("analysis", this_machine(), figures=figures | {"by_model": found}, rows=rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
