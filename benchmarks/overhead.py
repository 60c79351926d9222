"""What our worker costs a training: its epochs and memory against Ultralytics' own `yolo train`.

Both sides train the same model from the same seed on the same images with the same arguments, each in a process of
its own: `python -m yolo_airflow_provider.worker` with a TrainJob, with its memory guard on as in local execution, and
the console script `yolo`. The latter gets the same switches against the network (environment, settings, a font), and
none of our trainer, checkpoints or callbacks; it fsyncs nothing and keeps one checkpoint less.

An epoch's time is taken from outside of our instrument and alike on both sides: `results.csv`, in which Ultralytics
writes the seconds since the training's start after each validation. The difference of two rows is an epoch with its
validation and with what followed the row before: saving the checkpoint and the callbacks. The first epoch, with
everything that happens once, is left out.

`epoch_ratio` is the median over pairs of runs of (our median epoch / their median epoch). The two runs of a pair are
neighbours in time and take turns in going first, so what else a shared machine does falls on both and cancels; a
ratio of medians over all epochs would mix the rounds, and a machine that slows down between two runs would count as
overhead. `rss_extra_bytes` is the difference of the medians of each side's peak resident memory; memory does not
drift.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import this_machine
from benchmarks.output import progress, report
from benchmarks.pairs import measure_in_turns, ratios_of_pairs
from benchmarks.processes import Used, clean_environment, run_measured
from benchmarks.results_csv import epoch_seconds, outcomes
from yolo_airflow_provider import contract
from yolo_airflow_provider.demo.shapes import draw_shapes
from yolo_airflow_provider.gpus import local

_OURS, _THEIRS = "ours", "theirs"
_SETTLE = """\
import sys
from pathlib import Path
from yolo_airflow_provider.worker import offline
offline.prepare(Path(sys.argv[1]))
offline.quieten()
"""


@dataclass(frozen=True)
class Run:
    """One training."""

    used: Used
    epochs: tuple[float, ...]
    outcomes: tuple[tuple[str, ...], ...]

    @property
    def epoch(self) -> float:
        """Median epoch."""
        return statistics.median(self.epochs)


class Trainings:
    """The two sides; `run` trains with one of them.

    Args:
        folder: for everything that is written.
        job: what to train.
    """

    def __init__(self, folder: Path, job: contract.TrainJob) -> None:
        self._folder = folder
        self._job = job
        self._number = 0
        self._environment = clean_environment(os.environ)
        # The folder of fonts and settings that the worker makes for itself, made once for the other side.
        subprocess.run(
            [sys.executable, "-c", _SETTLE, str(folder / "settled")],
            env=self._environment,
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def run(self, side: str, *, epochs: int | None = None) -> Run:
        """Train to the end in a new folder, which is removed."""
        self._number += 1
        folder = self._folder / f"{self._number}-{side}"
        folder.mkdir()
        job = self._job if epochs is None else self._job.model_copy(update={"epochs": epochs})
        command, variables = self._ours(job, folder) if side == _OURS else self._theirs(job, folder)
        used = run_measured(
            command, environment=self._environment | variables, folder=folder, log=folder / "output.log"
        )
        results = (folder / "run" / "train" / "results.csv").read_text(encoding="utf-8")
        shutil.rmtree(folder)
        return Run(used, epoch_seconds(results), outcomes(results))

    def _ours(self, job: contract.TrainJob, folder: Path) -> tuple[list[str], dict[str, str]]:
        spec = contract.JobSpec(
            job=job,
            identity=contract.Identity(dag_id="bench", run_id=folder.name, task_id="train"),
            accelerator=contract.Accelerator(
                kind="cpu", memory_budget_bytes=local.cpu().memory_bytes, enforce_budget=True
            ),
            workspace=str(folder),
            run_folder=str(folder / "run"),
            result_path=str(folder / "answer.json"),
        )
        return [sys.executable, "-m", "yolo_airflow_provider.worker"], {contract.JOB_VARIABLE: spec.to_json()}

    def _theirs(self, job: contract.TrainJob, folder: Path) -> tuple[list[str], dict[str, str]]:
        arguments = {
            "model": f"{job.model}.yaml",
            "data": job.data,
            "imgsz": job.imgsz,
            "epochs": job.epochs,
            "batch": job.batch,
            "optimizer": job.optimizer,
            "seed": job.seed,
            "workers": job.workers,
            "device": "cpu",
            # What the worker gives to Ultralytics by itself.
            "amp": False,
            "plots": False,
            "verbose": False,
            "project": folder / "run",
            "name": "train",
            "exist_ok": True,
        }
        return [_yolo(), "detect", "train", *(f"{name}={value}" for name, value in arguments.items())], {
            "YOLO_CONFIG_DIR": str(self._folder / "settled" / ".ultralytics"),
            "YOLO_OFFLINE": "true",
            "YOLO_AUTOINSTALL": "false",
            "NO_ALBUMENTATIONS_UPDATE": "1",
            "MPLBACKEND": "Agg",
        }


def _yolo() -> str:
    """The console script that was installed with this interpreter's Ultralytics."""
    found = shutil.which("yolo", path=sysconfig.get_path("scripts"))
    if found is None:
        raise SystemExit(f"no `yolo` command in {sysconfig.get_path('scripts')}: install the extra `worker`")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-overhead-") as name:
        folder = Path(name)
        data = options.data or draw_shapes(
            folder / "shapes", train=options.images, val=max(options.images // 3, 1), size=options.imgsz
        )
        job = contract.TrainJob(
            model=options.model,
            data=str(Path(data).resolve()),
            imgsz=options.imgsz,
            epochs=options.epochs,
            batch=options.batch,
        )
        trainings = Trainings(folder, job)
        for side in (_OURS, _THEIRS):
            # The first training of all writes the label caches; byte code and the page cache fill up too.
            progress(f"warming up: {side}")
            trainings.run(side, epochs=2)
        ours, theirs = measure_in_turns(
            (_OURS, _THEIRS),
            options.rounds,
            trainings.run,
            lambda number, side, run: progress(
                f"round {number + 1}/{options.rounds} {side}: epoch {run.epoch:.2f} s,"
                f" peak {_mib(run.used.peak_rss_bytes)} MiB"
            ),
        )
    _report(ours, theirs, options)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="trainings a side (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="of a training, at least 2 (default %(default)s)")
    parser.add_argument("--model", default="yolov8n", help="architecture (default %(default)s)")
    parser.add_argument("--imgsz", type=int, default=320, help="side of the input, pixels (default %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="batch size (default %(default)s)")
    parser.add_argument("--images", type=int, default=48, help="training images to draw (default %(default)s)")
    parser.add_argument("--data", help="data.yaml to train on instead of drawn images")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.epochs < 2:
        parser.error("--rounds must be at least 1 and --epochs at least 2: the first epoch is left out")
    return options


def _report(ours: Sequence[Run], theirs: Sequence[Run], options: argparse.Namespace) -> None:
    pairs = ratios_of_pairs([run.epoch for run in ours], [run.epoch for run in theirs])
    ratio = statistics.median(pairs)
    extra = round(_median_peak(ours) - _median_peak(theirs))
    # One seed on both sides: the losses and metrics are the same to the digit unless one side did other work.
    same = all(run.outcomes == ours[0].outcomes for run in (*ours, *theirs))
    report(
        "overhead",
        this_machine(),
        figures={
            "epoch_ratio": round(ratio, 4),
            "rss_extra_bytes": extra,
            "pair_ratios": [round(pair, 4) for pair in pairs],
            "same_training": same,
            **{
                name: {
                    "epoch_seconds": [[round(seconds, 4) for seconds in run.epochs] for run in runs],
                    "peak_rss_bytes": [run.used.peak_rss_bytes for run in runs],
                    "process_seconds": [round(run.used.seconds, 2) for run in runs],
                    "process_cpu_seconds": [round(run.used.cpu_seconds, 2) for run in runs],
                }
                for name, runs in ((_OURS, ours), (_THEIRS, theirs))
            },
            "arguments": {name: getattr(options, name) for name in ("model", "imgsz", "batch", "epochs", "rounds")},
        },
        rows=[
            ["medians", "epoch s", "peak MiB", "process s", "process CPU s"],
            *([name, *_medians(runs)] for name, runs in (("our worker", ours), ("yolo train", theirs))),
        ],
        closing=[
            f"epoch_ratio {ratio:.3f} (median of {len(pairs)} pairs, {min(pairs):.3f} to {max(pairs):.3f}),"
            f" rss_extra_bytes {extra:,}",
            "both sides trained the same, to the digit" if same else "NOT COMPARABLE: the sides' losses differ",
        ],
        as_json=options.json,
    )


def _medians(runs: Sequence[Run]) -> list[str]:
    return [
        f"{statistics.median(run.epoch for run in runs):.3f}",
        _mib(_median_peak(runs)),
        f"{statistics.median(run.used.seconds for run in runs):.1f}",
        f"{statistics.median(run.used.cpu_seconds for run in runs):.1f}",
    ]


def _median_peak(runs: Sequence[Run]) -> float:
    return statistics.median(run.used.peak_rss_bytes for run in runs)


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.0f}"


if __name__ == "__main__":
    raise SystemExit(main())
