"""`yolo-airflow profiles card`: the identity card of one training, as it was measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from yolo_airflow_provider.commands import tables
from yolo_airflow_provider.commands.arguments import Subparsers, add_command, add_json, positive
from yolo_airflow_provider.commands.errors import CommandError
from yolo_airflow_provider.commands.opening import open_existing

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.store import ProfileStore

MOST_PROFILES = 1000
"""Profiles of one model and size that are looked through: devices times data sets."""
MOST_RUNS = 50
"""Newest runs of a batch that the interval of its memory is taken from."""
IO_INTENSIVE_PERCENT = 20.0
"""Share of the time that waited for data, or of the CPU's for disks."""
_NAMED = 10
"""Other sizes or models that are named where nothing was measured."""

_FILTERS = ("precision", "product", "mig_profile")
# What a profile is told apart by, as the card calls it and as the history does.
_PROFILE = {
    "model_type": "model",
    "model_task": "model_task",
    "classes": "classes",
    "input_size": "imgsz",
    "precision": "precision",
    "accelerator_kind": "accelerator_kind",
    "product": "product",
    "mig_profile": "mig_profile",
    "dataset_fingerprint": "dataset_fingerprint",
}
# What depends on the batch, as the card calls it and as the history does.
_OF_A_RUN = {
    "measurement_id": "id",
    "finished_at": "finished_at",
    "kind": "kind",
    "batch": "batch",
    "budget_bytes": "budget_bytes",
    "estimated_gpu_memory": "peak_device_bytes",
    "dataloader_workers": "workers",
    "expected_duration_per_epoch": "epoch_seconds",
    "epoch_seconds_spread": "epoch_seconds_spread",
    "images_per_second": "images_per_second",
    "data_wait_percent": "data_wait_percent",
    "iowait_percent": "iowait_percent",
    "compute_bound_by": "bound_by",
    "origin": "origin",
}


def add_parser(commands: Subparsers) -> None:
    """Add `card`."""
    parser = add_command(
        commands,
        "card",
        card,
        text="Show what a training needs, by its newest measurement. YAML, each quantity with its source and the"
        " interval in which it was measured.",
    )
    parser.add_argument("model", help="name, yaml or weights of the model: yolov8n, yolov8n.pt")
    parser.add_argument("--imgsz", type=positive, required=True, help="input size in pixels")
    parser.add_argument("--batch", type=positive, help="as measured at this batch (default: that of the newest run)")
    parser.add_argument("--precision", help="amp or fp32")
    parser.add_argument("--product", help="GPU, such as NVIDIA-A100-SXM4-40GB")
    parser.add_argument("--mig-profile", help="slice, such as 1g.5gb")
    parser.add_argument("--dataset", help="name or fingerprint of the data set")
    parser.add_argument("--all", action="store_true", help="every profile that matches, newest first")
    add_json(parser)


def card(options: argparse.Namespace) -> int:
    """Print the newest card that matches, or all."""
    store = open_existing(options.url)
    rows = find(store, options)
    shown = rows if options.all else rows[:1]
    documents = [document(row, _peaks(store, row)) for row in shown]
    if options.json:
        tables.print_json(documents if options.all else documents[0])
    else:
        _print_yaml(documents)
    if others := len(rows) - len(shown):
        note = f"# {others} more {'profile matches' if others == 1 else 'profiles match'}, measured earlier: --all"
        print(note, file=sys.stderr if options.json else sys.stdout)
    return 0


def find(store: ProfileStore, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of `resource_card` that match, newest first; at the batch that was asked for.

    Raises:
        CommandError: nothing matches; says what is known nearby.
    """
    from yolo_airflow_provider.contract import profile_name

    model = profile_name(options.model)
    known = _cards(store, {"model_type": model, "input_size": options.imgsz})
    if not known:
        raise CommandError(_nothing(store, model, options.imgsz))
    rows = [row for row in known if _matches(row, options)]
    if not rows:
        profiles = "; ".join(_distinct(_profile_text(row) for row in known))
        raise CommandError(f"{model} at {options.imgsz} was measured, but not like that; known are: {profiles}")
    if options.batch is None:
        return rows
    at_batch = [found for row in rows if (found := _at_batch(store, row, options.batch)) is not None]
    if not at_batch:
        raise CommandError(
            f"{model} at {options.imgsz} was not measured at batch {options.batch}; measured batches: "
            f"{', '.join(map(str, _batches(store, rows)))}"
        )
    return sorted(at_batch, key=lambda row: row["finished_at"], reverse=True)


def document(row: tables.Row, peaks: Sequence[int]) -> dict[str, Any]:
    """The card as it is printed as JSON.

    Args:
        row: of the view `resource_card`.
        peaks: bytes, of runs of this profile at this batch.
    """
    epoch, spread = row["expected_duration_per_epoch"], row["epoch_seconds_spread"]
    epochs = (None, None) if epoch is None or spread is None else (max(0.0, epoch - spread), epoch + spread)
    source = row["source"]
    return {
        "model_type": row["model_type"],
        "model_task": row["model_task"],
        "classes": row["classes"],
        "input_size": row["input_size"],
        "precision": row["precision"],
        "batch": row["batch"],
        "dataset": row["dataset"],
        "dataset_fingerprint": row["dataset_fingerprint"],
        "accelerator": tables.device_text(row),
        "memory_budget": row["budget_bytes"],
        "estimated_gpu_memory": _quantity(
            row["estimated_gpu_memory"], source, min(peaks, default=None), max(peaks, default=None)
        ),
        "min_gpu_count": row["min_gpu_count"],
        "recommended_gpu": row["recommended_gpu"],
        "recommended_slice": row["recommended_slice"],
        "cpu_cores": None if row["cpu_cores"] is None else int(row["cpu_cores"]),
        "dataloader_workers": row["dataloader_workers"],
        # Computed from the measured batch and workers, as a pod is given it.
        "shared_memory": _quantity(row["shared_memory"], "predicted"),
        "host_memory": _quantity(row["host_memory"], source),
        "disk_space_required": _quantity(row["disk_space_required"], source),
        "expected_duration_per_epoch": _quantity(epoch, source, *epochs),
        "images_per_second": row["images_per_second"],
        "io_intensive": None if row["io_intensive"] is None else bool(row["io_intensive"]),
        "compute_bound_by": row["compute_bound_by"],
        "supports_checkpoint_resume": bool(row["supports_checkpoint_resume"]),
        "measurement": row["measurement_id"],
        "measured_by": row["kind"],
        "measured_at": row["finished_at"],
        "measurements": row["measurements"],
        "origin": row["origin"],
    }


def _quantity(value: Any, source: str, low: Any = None, high: Any = None) -> dict[str, Any]:
    return {"value": value, "source": None if value is None else source, "low": low, "high": high}


def _cards(store: ProfileStore, where: dict[str, Any]) -> list[dict[str, Any]]:
    return tables.records(store.frame("resource_card", limit=MOST_PROFILES, where=where))


def _matches(row: tables.Row, options: argparse.Namespace) -> bool:
    is_data = options.dataset in (None, row["dataset"], row["dataset_fingerprint"])
    return is_data and all(getattr(options, name) in (None, row[name]) for name in _FILTERS)


def _runs(store: ProfileStore, row: tables.Row, where: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest runs of a card's profile that succeeded."""
    profile = {column: row[name] for name, column in _PROFILE.items()}
    known = {column: value for column, value in profile.items() if value is not None}
    frame = store.frame("run_history", limit=MOST_RUNS, where=known | {"outcome": "succeeded"} | where)
    return [
        run
        for run in tables.records(frame)
        if run["kind"] in ("train", "probe") and all(run[column] == value for column, value in profile.items())
    ]


def _peaks(store: ProfileStore, row: tables.Row) -> list[int]:
    if row["batch"] is None:
        return []
    runs = _runs(store, row, {"batch": row["batch"]})
    return [run["peak_device_bytes"] for run in runs if run["peak_device_bytes"] is not None]


def _at_batch(store: ProfileStore, row: dict[str, Any], batch: int) -> dict[str, Any] | None:
    """A card as the newest run at that batch makes it; None where there was none."""
    if row["batch"] == batch:
        return row
    runs = _runs(store, row, {"batch": batch})
    if not runs:
        return None
    from yolo_airflow_provider.planner.host import shared_bytes

    newest = next((run for run in runs if run["kind"] == "train"), runs[0])
    measured = {name: newest[column] for name, column in _OF_A_RUN.items()}
    workers, rss, container = newest["workers"], newest["peak_rss_bytes"], newest["peak_container_bytes"]
    return (
        row
        | measured
        | {
            "cpu_cores": None if workers is None else workers + 1,
            "shared_memory": None
            if workers is None
            else shared_bytes(batch=batch, imgsz=row["input_size"], workers=workers),
            "host_memory": rss if container is None else container,
            "io_intensive": _io_intensive(newest),
        }
    )


def _io_intensive(run: tables.Row) -> bool | None:
    """As the view says it."""
    waits = [run[name] for name in ("data_wait_percent", "iowait_percent") if run[name] is not None]
    return max(waits) >= IO_INTENSIVE_PERCENT if waits else None


def _batches(store: ProfileStore, rows: Iterable[tables.Row]) -> list[int]:
    return sorted({run["batch"] for row in rows for run in _runs(store, row, {}) if run["batch"] is not None})


def _nothing(store: ProfileStore, model: str, imgsz: int) -> str:
    """What to say where a model was not measured at a size: what is known nearby."""
    sizes = sorted({row["input_size"] for row in _cards(store, {"model_type": model}) if row["input_size"]})
    same_size = _distinct(row["model_type"] for row in _cards(store, {"input_size": imgsz}) if row["model_type"])
    said = [f"nothing was measured of {model} at {imgsz}"]
    if sizes:
        said.append(f"measured sizes of {model}: {_listed(sizes)}")
    if same_size:
        said.append(f"models measured at {imgsz}: {_listed(same_size)}")
    if not sizes and not same_size:
        models = _distinct(row["model_type"] for row in _cards(store, {}) if row["model_type"])
        said.append(f"measured models: {_listed(models)}" if models else "the store holds no successful run yet")
    return "; ".join(said)


def _distinct(texts: Iterable[str]) -> list[str]:
    return sorted(set(texts))


def _listed(values: Sequence[object]) -> str:
    more = f" and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
    return ", ".join(str(value) for value in values[:_NAMED]) + more


def _profile_text(row: tables.Row) -> str:
    data = f" with {row['dataset'] or row['dataset_fingerprint']}" if row["dataset_fingerprint"] else ""
    return f"{row['precision']} on {tables.device_text(row) or 'an unknown device'}{data}"


_UNITS: dict[str, Callable[[Any], object]] = {
    "memory_budget": tables.memory_text,
    "estimated_gpu_memory": tables.memory_text,
    "shared_memory": tables.memory_text,
    "host_memory": tables.memory_text,
    "disk_space_required": tables.memory_text,
    "expected_duration_per_epoch": tables.seconds_text,
    "images_per_second": lambda value: round(value, 1),
    "measured_at": lambda value: f"{tables.moment_text(value)} UTC",
}


def _print_yaml(documents: Sequence[dict[str, Any]]) -> None:
    import yaml

    readable = [{name: _for_people(name, value) for name, value in document.items()} for document in documents]
    # None: the quantities on a line each.
    print(
        yaml.safe_dump_all(readable, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120).rstrip()
    )


def _for_people(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {part: item if part == "source" else _for_people(name, item) for part, item in value.items()}
    return _UNITS[name](value) if value is not None and name in _UNITS else value
