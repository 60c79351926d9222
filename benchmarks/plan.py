"""What one plan costs: every slice of four cards, batches up to 1,200, the evidence read already; and the catalogue."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from time import perf_counter

from benchmarks.machine import this_machine
from benchmarks.output import report
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.cards import Device, device, offered
from yolo_airflow_provider.planner import timing
from yolo_airflow_provider.planner.catalogue import architecture, architectures
from yolo_airflow_provider.planner.choice import Question, candidate_batches, choose
from yolo_airflow_provider.planner.need import Objects, Workload

OFFERED = "a100-40gb,a100-80gb,h100"
SLICES = 20
MAX_BATCH = 1_440
MODEL = "yolov8m"
_LOAD = """
from time import perf_counter
from yolo_airflow_provider.planner.catalogue import architectures
started = perf_counter()
architectures()
print(perf_counter() - started)
"""


def plan(accelerators: Sequence[Accelerator], number: int) -> None:
    """Choose on each of them; `number` makes the workload a new one each time."""
    known = architecture(MODEL)
    if known is None:
        raise SystemExit(f"{MODEL} is not in the catalogue")
    work = Workload(known, 640, "amp", objects=Objects(5.0 + number / 1000))
    for one in accelerators:
        here = device(one)

        def time(batch: int, here: Device | None = here) -> timing.EpochTime:
            return timing.cold(known, here, timing.Job(640, batch, 100_000))

        question = Question(
            MODEL,
            640,
            one,
            images=100_000,
            max_batch=MAX_BATCH,
            workload=work,
            time=time,
            epochs=10,
        )
        choose(question, [])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    accelerators = offered(OFFERED)[:SLICES]
    seconds = []
    for number in range(options.rounds + 1):
        started = perf_counter()
        plan(accelerators, number)
        seconds.append(perf_counter() - started)
    loads = [
        float(subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    figures = {
        "plan_p50_ms": statistics.median(seconds[1:]) * 1000,
        "catalogue_p50_ms": statistics.median(loads) * 1000,
        "slices": len(accelerators),
        "batches": len(candidate_batches(MAX_BATCH)),
        "architectures": len(architectures()),
    }
    rows = [["", "median, ms"], ["a plan", f"{figures['plan_p50_ms']:.2f}"]]
    rows.append(["loading the catalogue", f"{figures['catalogue_p50_ms']:.2f}"])
    closing = [f"{figures['slices']} slices, {figures['batches']} batches, {figures['architectures']} architectures"]
    report("plan", this_machine(), figures=figures, rows=rows, closing=closing, as_json=options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
