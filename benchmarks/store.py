"""What the profile store costs on PostgreSQL when its history is long, beside one with a short history.

Two databases, of `--small` and `--measurements` measurements with ten times as many epochs, are filled by
`store_history`. Then, in turns on both and after a warm-up that is thrown away: the planner's read of a profile (half
of the profiles drawn by how often they occur, half of them evenly), the same on a new connection, and the record of a
training of three epochs and one model. Last, each query of `profiles_db/queries` on the long history, by the median of
its runs after the first.

The server is one of our own in /tmp with `SERVER_SETTINGS`, otherwise with PostgreSQL's defaults (fsync on), unless
`--url` names another; its user needs to be one who may create databases.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import sqlalchemy as sa

from benchmarks.machine import this_machine
from benchmarks.output import progress, report
from benchmarks.pairs import measure_in_turns, ratio_of_medians
from benchmarks.store_history import PER_RUN, fill
from yolo_airflow_provider.profiles import tables
from yolo_airflow_provider.profiles.engine import open_store
from yolo_airflow_provider.profiles.records import EpochRow, MeasurementRow, ModelRow, ProfileKey, RunKey
from yolo_airflow_provider.profiles.store import ProfileStore

ROOT = Path(__file__).resolve().parents[1]
QUERIES = ROOT / "profiles_db" / "queries"
SERVER_SETTINGS: dict[str, str | int] = {"shared_buffers": "1GB", "max_wal_size": "8GB"}

SMALL, LARGE = "small", "large"
SIDES = (SMALL, LARGE)
WARM_UP = 20
"""Calls a side that are thrown away before each kind of call is measured."""
QUERY_RUNS = 3
FEW = 5
"""Limit of a read for which a short history has as many rows as a long one."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class History:
    """A filled store, opened as tasks open it."""

    store: ProfileStore
    measurements: int
    fill_seconds: float
    table_bytes: dict[str, int]
    """On disk, indexes included."""


@dataclass(frozen=True)
class Calls:
    """Calls of one kind on one side: milliseconds and rows returned of each."""

    milliseconds: list[float]
    rows: list[int]

    @property
    def p50(self) -> float:
        """Median, milliseconds."""
        return statistics.median(self.milliseconds)

    @property
    def p99(self) -> float:
        """The time that one of a hundred exceeds, milliseconds."""
        return statistics.quantiles(self.milliseconds, n=100, method="inclusive")[98]


@contextmanager
def databases(url: str | None) -> Iterator[Any]:
    """A server on which to make databases, which are dropped at the end.

    Args:
        url: of a server; None starts one.
    """
    if (harness := str(ROOT / "tests")) not in sys.path:
        sys.path.insert(0, harness)
    from postgres_server import GivenServer, PostgresServer

    with GivenServer(sa.make_url(url)) if url else PostgresServer(SERVER_SETTINGS) as server:
        yield server


def make_history(url: sa.URL, measurements: int) -> History:
    """Migrate an empty database and fill it."""
    store = open_store(url)
    started = perf_counter()
    fill(store.engine, measurements)
    seconds = perf_counter() - started
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("SET statement_timeout = 0"))
        connection.execute(sa.text("VACUUM ANALYZE"))
        connection.execute(sa.text("CHECKPOINT"))
        names = ("measurement", "epoch", "decision", "profile", "usage_day")
        size = sa.text("SELECT pg_total_relation_size(CAST(:name AS regclass))")
        table_bytes = {name: connection.execute(size, {"name": name}).scalar_one() for name in names}
    # Without the connection whose settings were changed.
    store.release()
    return History(store, measurements, seconds, table_bytes)


def profiles_to_read(store: ProfileStore, number: int) -> list[ProfileKey]:
    """Profiles to ask for: every second drawn by how often it occurs, as tasks ask; the others evenly."""
    columns = tables.profile.c
    key = [columns[name] for name in ("model", "imgsz", "precision", "accelerator_kind", "product")]
    statement = sa.select(*key, sa.func.sum(columns.measurements).label("weight")).group_by(*key).order_by(*key)
    rows = store.transaction(lambda connection: connection.execute(statement).mappings().all())
    keys = [ProfileKey(**{name: value for name, value in row.items() if name != "weight"}) for row in rows]
    weights = [int(row["weight"]) for row in rows]
    generator = random.Random(1)  # as a seed: the same profiles every time
    often = generator.choices(keys, weights, k=number)
    return [often[place] if place % 2 == 0 else generator.choice(keys) for place in range(number)]


def training(number: int, profile: ProfileKey) -> tuple[list[MeasurementRow], list[EpochRow], list[ModelRow]]:
    """What a training of three epochs reports under a key of its own."""
    key = RunKey(
        dag_id=f"training_{number % 200}", run_id=f"new__{number}", task_id="train", map_index=-1, try_number=1
    )
    classes = profile.classes or 80
    measured: dict[str, Any] = {"peak_device_bytes": 6 * 2**30, "data_wait_percent": 5.0, "iowait_percent": 1.0}
    row = MeasurementRow(
        key=key, part="train", kind="train", outcome="succeeded", finished_at=datetime.now(UTC), model=profile.model,
        model_task="detect", classes=classes, imgsz=profile.imgsz, batch=16, precision=profile.precision, epochs=3,
        epochs_done=3, dataset="dataset_1", dataset_fingerprint="new", train_images=5000, workers=8,
        accelerator_kind=profile.accelerator_kind, product=profile.product or None, epoch_seconds=60.0,
        images_per_second=83.0, read_bytes=10**9, written_bytes=10**8, **measured,
    )  # fmt: skip
    losses, metrics = {"box": 1.5, "cls": 1.0, "dfl": 0.8}, {"map50": 0.5, "map50_95": 0.3}
    epochs = [EpochRow(key=key, epoch=n, seconds=60.0, losses=losses, metrics=metrics, **measured) for n in (1, 2, 3)]
    facts = ModelRow(name=profile.model, task="detect", classes=classes, parameters=3_000_000, stride=32, gflops=8.0)
    return [row], epochs, [facts]


def measure(
    histories: dict[str, History], what: str, items: Sequence[_T], call: Callable[[ProfileStore, _T], int]
) -> dict[str, Calls]:
    """Time a call for each item on both sides in turns, after a warm-up.

    Args:
        histories: by side.
        what: is done, for the progress.
        items: the first `WARM_UP` of them are for the warm-up.
        call: does it with one item and returns how many rows came back.
    """
    progress(f"{what}: {len(items) - WARM_UP} times a side")
    upcoming = {side: iter(items) for side in SIDES}

    def run(side: str) -> tuple[float, int]:
        item = next(upcoming[side])
        started = perf_counter()
        rows = call(histories[side].store, item)
        return (perf_counter() - started) * 1000, rows

    small, large = (found[WARM_UP:] for found in measure_in_turns(SIDES, len(items), run, lambda *_: None))
    return {
        side: Calls([milliseconds for milliseconds, _ in found], [rows for _, rows in found])
        for side, found in ((SMALL, small), (LARGE, large))
    }


def growth_of_same_rows(reads: dict[str, Calls]) -> float | None:
    """The growth over those reads that returned as many rows on both sides; None where none did.

    A profile has fewer rows in a short history, and these are sent and parsed sooner; here only the search differs.
    """
    counts = zip(reads[SMALL].rows, reads[LARGE].rows, strict=True)
    chosen = [place for place, (few, many) in enumerate(counts) if few == many]
    if not chosen:
        return None
    small, large = ([reads[side].milliseconds[place] for place in chosen] for side in SIDES)
    return ratio_of_medians(large, small)


def query_seconds(engine: sa.Engine, statement: str) -> list[float]:
    """Time a query and the transfer of all its rows, the first run apart at the front."""
    seconds = []
    with engine.connect().execution_options(no_parameters=True) as connection:
        for _ in range(1 + QUERY_RUNS):
            started = perf_counter()
            connection.exec_driver_sql(statement).all()
            seconds.append(perf_counter() - started)
    return seconds


def explain(history: History, profile: ProfileKey, queries: dict[str, str]) -> None:
    """Print how the server executes the planner's read and each query."""
    engine, seen = history.store.engine, []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    sa.event.listen(engine, "before_cursor_execute", note)
    history.store.evidence(profile)
    sa.event.remove(engine, "before_cursor_execute", note)
    named = [("evidence", *entry) for entry in seen]
    named += [(name, statement, None) for name, statement in queries.items()]
    with engine.connect() as connection:
        for name, statement, parameters in named:
            options = {"no_parameters": parameters is None}
            lines = connection.execution_options(**options).exec_driver_sql(
                f"EXPLAIN (ANALYZE, BUFFERS) {statement}", parameters
            )
            progress("\n".join([f"\n{name}", *lines.scalars()]))


def compare(histories: dict[str, History], options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    large = histories[LARGE]
    profiles = profiles_to_read(histories[SMALL].store, WARM_UP + options.reads)
    trained = profiles_to_read(large.store, WARM_UP + options.writes)
    trainings = [training(number, profile) for number, profile in enumerate(trained)]

    def connect_and_read(store: ProfileStore, profile: ProfileKey) -> int:
        store.release()
        return len(store.evidence(profile))

    def write(store: ProfileStore, rows: tuple[list[MeasurementRow], list[EpochRow], list[ModelRow]]) -> int:
        store.record(*rows)
        return 0

    reads = measure(histories, "reading profiles", profiles, lambda store, profile: len(store.evidence(profile)))
    few = measure(
        histories, "reading few rows", profiles, lambda store, profile: len(store.evidence(profile, limit=FEW))
    )
    connects = measure(histories, "connecting", profiles[: WARM_UP + max(2, options.reads // 4)], connect_and_read)
    writes = measure(histories, "recording trainings", trainings, write)
    queries = {path.stem: path.read_text(encoding="utf-8") for path in sorted(QUERIES.glob("*.sql"))}
    seconds = {name: query_seconds(large.store.engine, statement) for name, statement in queries.items()}
    medians = {name: statistics.median(runs[1:]) for name, runs in seconds.items()}
    if options.explain:
        explain(large, profiles[0], queries)
    figures: dict[str, Any] = {
        "read_p50_ms": reads[LARGE].p50,
        "read_p99_ms": reads[LARGE].p99,
        "read_growth": ratio_of_medians(reads[LARGE].milliseconds, reads[SMALL].milliseconds),
        "write_p50_ms": writes[LARGE].p50,
        "query_max_s": max(medians.values()),
        "read_growth_same_rows": growth_of_same_rows(few),
        "read_rows": {side: statistics.median(reads[side].rows) for side in SIDES},
        "connect_p50_ms": connects[LARGE].p50,
        "small": {
            "read_p50_ms": reads[SMALL].p50,
            "read_p99_ms": reads[SMALL].p99,
            "connect_p50_ms": connects[SMALL].p50,
            "write_p50_ms": writes[SMALL].p50,
        },
        "query_s": medians,
        "query_first_s": {name: runs[0] for name, runs in seconds.items()},
    }
    return figures | {
        "measurements": {side: history.measurements for side, history in histories.items()},
        "fill_seconds": {side: history.fill_seconds for side, history in histories.items()},
        "table_bytes": large.table_bytes,
    }


def rounded(value: Any) -> Any:
    """The same figures with four significant digits or more."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def table_rows(figures: dict[str, Any]) -> list[list[str]]:
    """The figures for people."""
    names = ("read_p50_ms", "read_p99_ms", "connect_p50_ms", "write_p50_ms")
    both = [[name, f"{figures['small'][name]:.2f}", f"{figures[name]:.2f}"] for name in names]
    queries = [[f"{name}.sql, ms", "", f"{seconds * 1000:.1f}"] for name, seconds in figures["query_s"].items()]
    sizes = [[f"{name}, MiB", "", f"{size / 2**20:.0f}"] for name, size in figures["table_bytes"].items()]
    return [["", *(f"{figures['measurements'][side]:,}" for side in SIDES)], *both, *queries, *sizes]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measurements", type=int, default=2_000_000, help="the long history (default %(default)s)")
    parser.add_argument("--small", type=int, default=10_000, help="the short history (default %(default)s)")
    parser.add_argument("--reads", type=int, default=400, help="reads a side (default %(default)s)")
    parser.add_argument("--writes", type=int, default=200, help="records a side (default %(default)s)")
    parser.add_argument("--url", help="a superuser's URL of a server (default: start one)")
    parser.add_argument("--explain", action="store_true", help="print the plans, on stderr")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    if min(options.measurements, options.small) < PER_RUN * 2 or min(options.reads, options.writes) < 2:
        parser.error("a history needs at least 20 measurements, and --reads and --writes must be at least 2")

    with databases(options.url) as server:
        sizes = {SMALL: options.small, LARGE: options.measurements}
        histories = {side: make_history(server.create_database(), number) for side, number in sizes.items()}
        try:
            figures = rounded(compare(histories, options))
        finally:
            for history in histories.values():
                history.store.release()

    report(
        "store",
        this_machine(),
        figures=figures,
        rows=table_rows(figures),
        closing=[
            f"read_growth {figures['read_growth']:.2f} (medians of {options.reads} reads a side),"
            f" query_max_s {figures['query_max_s']:.3f}"
        ],
        as_json=options.json,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
