"""What a DAG file pays for our operators: their import against that of KubernetesPodOperator alone.

Each measurement is a fresh interpreter that times one import statement; the sides take turns, and a first run of
each, which compiles and fills the page cache, is thrown away. `import_ratio` is the median time of
`import yolo_airflow_provider.operators` (which imports KubernetesPodOperator, their base) by the median time of
`from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import this_machine
from benchmarks.output import progress, report
from benchmarks.pairs import measure_in_turns, ratio_of_medians
from benchmarks.processes import clean_environment

_OURS, _THEIRS = "ours", "theirs"
STATEMENTS = {
    _OURS: "import yolo_airflow_provider.operators",
    _THEIRS: "from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator",
}
_PROGRAM = """\
from time import perf_counter
started = perf_counter()
{statement}
seconds = perf_counter() - started
print("\\n", seconds, sep="")
"""


def import_seconds(statement: str, home: Path) -> float:
    """Time an import statement in a fresh interpreter.

    Raises:
        RuntimeError: the import failed.
    """
    # A home of its own: Airflow writes airflow.cfg into AIRFLOW_HOME when it is imported and there is none.
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(statement=statement)],
        env=clean_environment(os.environ) | {"AIRFLOW_HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        raise RuntimeError(f"{statement} failed:\n{found.stderr[-2000:]}")
    # The last line: an import may print by itself.
    return float(found.stdout.strip().splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.imports", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=15, help="fresh interpreters a side (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")

    with tempfile.TemporaryDirectory(prefix="bench-imports-") as folder:
        for side, statement in STATEMENTS.items():
            progress(f"warming up: {side}")
            import_seconds(statement, Path(folder))
        ours, theirs = measure_in_turns(
            (_OURS, _THEIRS),
            options.rounds,
            lambda side: import_seconds(STATEMENTS[side], Path(folder)),
            lambda number, side, seconds: progress(f"round {number + 1}/{options.rounds} {side}: {seconds:.3f} s"),
        )

    ratio = ratio_of_medians(ours, theirs)
    report(
        "imports",
        this_machine(),
        figures={
            "import_ratio": round(ratio, 4),
            "ours_seconds": [round(seconds, 4) for seconds in ours],
            "theirs_seconds": [round(seconds, 4) for seconds in theirs],
        },
        rows=[
            ["import", "median s", "min s", "max s"],
            *(
                [name, f"{statistics.median(times):.3f}", f"{min(times):.3f}", f"{max(times):.3f}"]
                for name, times in (("our operators", ours), ("KubernetesPodOperator", theirs))
            ),
        ],
        closing=[f"import_ratio {ratio:.3f} (medians of {options.rounds} fresh interpreters a side)"],
        as_json=options.json,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
