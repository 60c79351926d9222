"""`yolo-airflow plan`: what a training would take and where it would run, before anything has run."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yolo_airflow_provider.commands import dataset, tables
from yolo_airflow_provider.commands.arguments import Subparsers
from yolo_airflow_provider.commands.errors import CommandError
from yolo_airflow_provider.gpus.accelerator import Accelerator
from yolo_airflow_provider.gpus.cards import device, offered
from yolo_airflow_provider.planner import timing
from yolo_airflow_provider.planner.catalogue import Architecture, architecture, architectures
from yolo_airflow_provider.planner.choice import (
    DEFAULT_MARGIN_PERCENT,
    DEFAULT_MAX_BATCH,
    LEAST_BATCH,
    Choice,
    NothingFits,
    Question,
    cannot_share,
    choose,
)
from yolo_airflow_provider.planner.need import Objects, Workload
from yolo_airflow_provider.planner.options import OBJECTIVES, Option, best, why_not
from yolo_airflow_provider.planner.sentence import duration

_COLUMNS: tables.Columns = {
    "on": tables.text("on"),
    "memory": tables.memory("memory_bytes"),
    "batch": tables.count("batch"),
    "predicted": tables.memory("predicted_bytes"),
    "at most": tables.memory("high_bytes"),
    "an epoch": tables.seconds("epoch_seconds"),
    "bound by": tables.text("bound_by"),
    "why not": tables.text("why_not"),
}


@dataclass(frozen=True)
class Considered:
    """One accelerator that was offered: the choice on it, or why there is none."""

    accelerator: Accelerator
    choice: Choice | None
    refusal: str = ""
    short: str = ""


def add_parser(commands: Subparsers) -> None:
    """Add `plan`."""
    parser = commands.add_parser(
        "plan",
        help="say what a training will take before it ever ran",
        description="Choose accelerator and batch for a training from its architecture alone, offline: predicted"
        " memory and time with intervals, and why each other accelerator lost.",
    )
    parser.set_defaults(run=plan, title=parser.prog)
    parser.add_argument("model", help="a name such as yolov8m, or the path of a .yaml or .pt file")
    parser.add_argument(
        "--offered",
        required=True,
        metavar="WHAT",
        help="cards (a100-40gb: whole and all slices), slices (1g.10gb@a100-80gb), gpu@l4, cpu:8Gi; comma separated",
    )
    parser.add_argument("--data", type=Path, metavar="YAML", help="a data.yaml, whose images and boxes are counted")
    parser.add_argument("--images", type=int, help="training images, where there is no --data")
    parser.add_argument("--classes", type=int, help="number of classes, where there is no --data")
    parser.add_argument("--boxes", type=float, help="mean number of boxes an image, where there is no --data")
    parser.add_argument("--imgsz", type=int, default=640, help="input size in pixels (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=100, help="of the training (default: %(default)s)")
    parser.add_argument("--batch", type=int, help="images a step; by default the best is chosen")
    parser.add_argument("--max-batch", type=int, default=DEFAULT_MAX_BATCH, help="largest to choose (%(default)s)")
    parser.add_argument("--min-batch", type=int, default=LEAST_BATCH, help="smallest to choose (%(default)s)")
    parser.add_argument("--gpus", type=int, default=1, help="whole cards that share a batch out (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=8, help="data loader processes (default: %(default)s)")
    parser.add_argument("--optimizer", default="auto", help="Ultralytics' name (default: %(default)s)")
    parser.add_argument("--fp32", action="store_true", help="train in 32 bit instead of mixed precision")
    parser.add_argument("--optimize", choices=OBJECTIVES, default="cost", help="default: %(default)s")
    parser.add_argument("--margin", type=float, default=DEFAULT_MARGIN_PERCENT, help="percent left free (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def plan(options: argparse.Namespace) -> int:
    """Print the plan; 1 where nothing that is offered can take the training."""
    found = _counted(options)
    shape = _shape(options.model)
    if options.imgsz < shape.stride or options.imgsz % shape.stride:
        raise CommandError(f"--imgsz {options.imgsz} is not a multiple of the model's stride {shape.stride}")
    if options.gpus < 1:
        raise CommandError(f"--gpus {options.gpus}: a training runs on one card at least")
    try:
        accelerators = offered(options.offered)
    except ValueError as error:
        raise CommandError(str(error)) from None
    considered = [_consider(options, shape, found, one) for one in accelerators]
    fitting = [one for one in considered if one.choice is not None]
    taken = None
    if fitting:
        candidates = [
            Option(one.accelerator, one.choice, options.epochs, cards=options.gpus) for one in fitting if one.choice
        ]
        taken = fitting[best(candidates, options.optimize)]
    if options.json:
        print(json.dumps(_as_json(options, considered, taken)))
    else:
        _print(options, considered, taken)
    return 0 if taken is not None else 1


def _counted(options: argparse.Namespace) -> dataset.Counted | None:
    if options.data is not None:
        return dataset.count(options.data)
    return dataset.Counted(options.images, 0, options.classes) if options.images else None


def _shape(model: str) -> Architecture:
    path = Path(model)
    is_file = path.suffix in (".yaml", ".yml", ".pt") and path.exists()
    known = None if is_file else architecture(model)
    if known is not None:
        return known
    if not is_file:
        import difflib

        near = difflib.get_close_matches(model, architectures(), n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "give a name such as yolov8n, or a file"
        raise CommandError(f"no architecture is called {model!r}; {hint}")
    # torch is the worker's; what it finds comes back as a line of JSON.
    analysis = subprocess.run(
        [sys.executable, "-m", "yolo_airflow_provider.worker.analysis", model], capture_output=True, text=True
    )
    if analysis.returncode != 0:
        raise CommandError(f"{model} cannot be analysed: {(analysis.stderr.strip().splitlines() or ['no reason'])[-1]}")
    return Architecture(**json.loads(analysis.stdout.strip().splitlines()[-1]))


def _consider(
    options: argparse.Namespace, shape: Architecture, found: dataset.Counted | None, one: Accelerator
) -> Considered:
    work = Workload(
        architecture=shape,
        imgsz=options.imgsz,
        precision="fp32" if options.fp32 or one.kind == "cpu" else "amp",
        optimizer=options.optimizer,
        classes=options.classes or (found.classes if found else None),
        objects=_objects(options, found),
        on_cpu=one.kind == "cpu",
        ranks=options.gpus,
    )
    question = Question(
        model=shape.name,
        imgsz=options.imgsz,
        accelerator=one,
        batch=options.batch,
        images=found.images if found else None,
        max_batch=options.max_batch,
        min_batch=options.min_batch,
        margin_percent=options.margin,
        workload=work,
        time=_time(options, work, found, one) if found else None,
        epochs=options.epochs,
        cards=options.gpus,
    )
    if options.gpus > 1 and (why := cannot_share(one)):
        return Considered(one, None, why, "no whole card")
    try:
        choice = choose(question, [])
    except NothingFits as error:
        return Considered(one, None, str(error), "too small")
    except ValueError as error:
        raise CommandError(str(error)) from None
    if choice.why == "fallback" and choice.memory is not None:
        # It is only expected to fit; a plan that can go elsewhere does.
        at_most = tables.memory_text(choice.memory.high_bytes)
        return Considered(
            one, None, f"no batch is sure to fit: {choice.sentence}", f"batch {choice.batch} may take {at_most}"
        )
    return Considered(one, choice)


def _objects(options: argparse.Namespace, found: dataset.Counted | None) -> Objects | None:
    if found is not None and found.boxes:
        ordered = sorted(found.boxes)
        place = min(len(ordered) - 1, math.ceil(0.95 * len(ordered)))
        return Objects(sum(ordered) / len(ordered), p95=ordered[place], largest=ordered[-1])
    return Objects(options.boxes) if options.boxes else None


def _time(options: argparse.Namespace, work: Workload, found: dataset.Counted, one: Accelerator) -> Any:
    here = device(one)

    def expected(batch: int) -> timing.EpochTime:
        job = timing.Job(
            imgsz=options.imgsz,
            batch=batch,
            images=found.images,
            val_images=found.val_images,
            precision=work.precision,
            workers=options.workers,
            ranks=options.gpus,
        )
        return timing.cold(work.architecture, here, job)

    return expected


def _row(options: argparse.Namespace, one: Considered, taken: Considered | None) -> dict[str, Any]:
    choice = one.choice
    row: dict[str, Any] = {"on": one.accelerator.counted(options.gpus), "memory_bytes": one.accelerator.memory_bytes}
    if choice is None:
        return row | {"why_not": one.short, "refusal": one.refusal}
    memory, time = choice.memory, choice.time
    lost = ""
    if one is not taken and taken is not None and taken.choice is not None:
        sides = [
            Option(side.accelerator, side.choice, options.epochs, cards=options.gpus)
            for side in (one, taken)
            if side.choice
        ]
        lost = why_not(sides[0], sides[1], options.optimize)
    return row | {
        "batch": choice.batch,
        "predicted_bytes": memory.expected_bytes if memory else None,
        "low_bytes": memory.low_bytes if memory else None,
        "high_bytes": memory.high_bytes if memory else None,
        "epoch_seconds": time.expected_seconds if time else None,
        "bound_by": time.bound_by if time else None,
        "why_not": lost,
    }


def _as_json(options: argparse.Namespace, considered: list[Considered], taken: Considered | None) -> dict[str, Any]:
    choice = taken.choice if taken else None
    total = choice.time.total(options.epochs) if choice and choice.time else None
    return {
        "sentence": choice.sentence if choice else None,
        "objective": options.optimize,
        "accelerator": taken.accelerator.counted(options.gpus) if taken else None,
        "batch": choice.batch if choice else None,
        "total_seconds": total.expected_seconds if total else None,
        "total_low_seconds": total.low_seconds if total else None,
        "total_high_seconds": total.high_seconds if total else None,
        "candidates": [_row(options, one, taken) for one in considered],
    }


def _print(options: argparse.Namespace, considered: list[Considered], taken: Considered | None) -> None:
    if taken is not None and taken.choice is not None:
        print(taken.choice.sentence)
        if taken.choice.time is None:
            print("how long it takes needs the number of images: --data or --images")
        else:
            print(f"an epoch: {duration(taken.choice.time)}, bound by {taken.choice.time.bound_by.replace('_', ' ')}")
    else:
        print("nothing that is offered can take this training:")
        for one in considered:
            print(f"  {one.refusal}")
    print()
    tables.print_table(_COLUMNS, [_row(options, one, taken) for one in considered], empty="nothing is offered")
