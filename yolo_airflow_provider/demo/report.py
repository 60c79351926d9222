"""What the demo shows at its end: the resource card, the decisions and what changed, accuracy and artefacts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yolo_airflow_provider.profiles.records import DecisionRow, MeasurementRow
    from yolo_airflow_provider.profiles.store import ProfileStore

_LINE = "-" * 78
_CARD = {
    "model_type": "model",
    "input_size": "input size",
    "precision": "precision",
    "accelerator_kind": "accelerator",
    "batch": "batch",
    "estimated_gpu_memory": "memory",
    "cpu_cores": "cpu cores",
    "dataloader_workers": "loader workers",
    "host_memory": "host memory",
    "disk_space_required": "data set on disk",
    "expected_duration_per_epoch": "epoch",
    "images_per_second": "images/s",
    "data_wait_percent": "waited for data",
    "iowait_percent": "iowait",
    "compute_bound_by": "bound by",
    "source": "source",
}


def print_report(dag_id: str, run_ids: Sequence[str], *, home: Path, seconds: float) -> None:
    """Print everything; reads the store and the workspace of the demo only."""
    from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook

    store = ProfileStoreHook().get_store()
    _print_title("Resource card")
    for name, value in _card(store, dag_id, run_ids):
        print(f"  {name:<18} {value}")
    _print_title("Decisions")
    earlier: DecisionRow | None = None
    for number, run_id in enumerate(run_ids, start=1):
        for decision in store.decisions(dag_id, run_id):
            print(f"  run {number}: {decision.sentence}")
            print(f"         {outcome(decision, _followed(store, decision))}")
            if earlier is not None:
                print(f"         {what_changed(earlier, decision)}")
            earlier = decision
    _print_title("Where things are")
    for run_id in run_ids:
        folder = home / "workspace" / dag_id / run_id
        for checksum in sorted(folder.glob("export/*/export/*.sha256")):
            print(f"  artefact   {checksum.with_suffix('')}")
        for report in sorted(folder.glob("preprocess/*/report.json")):
            print(f"  data check {report}")
    print(f"  store      {home / 'yolo_profiles.db'} (SQLite; its view prediction_error compares)")
    print(f"  total      {seconds / 60:.1f} min")


def what_changed(earlier: DecisionRow, later: DecisionRow) -> str:
    """One line on two decisions of the same training."""
    if later.batch == earlier.batch:
        return f"changed: nothing, batch {later.batch} again ({earlier.basis}, now {later.basis})"
    change = f"changed: batch {earlier.batch} -> {later.batch}"
    if later.batch < earlier.batch:
        return f"{change}, because of what was measured since"
    return (
        f"{change}, because the prediction stands on more: {earlier.basis} {_width(earlier)} ->"
        f" {later.basis} {_width(later)}"
    )


def outcome(decision: DecisionRow, measured: MeasurementRow | None) -> str:
    """One line on what followed a decision."""
    if measured is None:
        return "came out: not measured"
    if measured.outcome != "succeeded":
        return f"came out: {measured.outcome}: {measured.message or ''}"
    memory = (measured.peak_device_bytes or 0) / 2**30
    off = ""
    if decision.predicted_bytes and measured.peak_device_bytes:
        off = f", predicted {100 * (decision.predicted_bytes / measured.peak_device_bytes - 1):+.1f} %"
    accuracy = f", mAP50 {measured.map50:.3f}" if measured.map50 is not None else ""
    return f"came out: {memory:.2f} GiB{off}, {measured.epoch_seconds or 0:.1f} s an epoch{accuracy}"


def _print_title(title: str) -> None:
    print(f"\n{_LINE}\n{title}\n{_LINE}")


def _width(decision: DecisionRow) -> str:
    if not decision.predicted_bytes or not decision.predicted_high_bytes:
        return "without a prediction"
    return f"+{100 * (decision.predicted_high_bytes / decision.predicted_bytes - 1):.0f} %"


def _followed(store: ProfileStore, decision: DecisionRow) -> MeasurementRow | None:
    """The measurement of the very try that was decided on."""
    rows = (item.row for item in store.measurements(decision.key.dag_id, decision.key.run_id))
    return next((row for row in rows if row.key == decision.key), None)


def _card(store: ProfileStore, dag_id: str, run_ids: Sequence[str]) -> list[tuple[str, str]]:
    """The card of the configuration that the last run trained."""
    frame = store.frame("resource_card")
    last = [item.id for run_id in run_ids for item in store.measurements(dag_id, run_id) if item.row.kind == "train"]
    rows = frame[frame["measurement_id"].isin(last)].sort_values("measurement_id").to_dict("records")
    return [(title, _value(name, rows[-1][name])) for name, title in _CARD.items()] if rows else []


def _value(name: str, value: Any) -> str:
    if value is None or value != value:  # NaN is what pandas makes of NULL
        return "not measured"
    if name in ("estimated_gpu_memory", "host_memory"):
        return f"{value / 2**30:.2f} GiB"
    if name == "disk_space_required":
        return f"{value / 2**20:.1f} MiB"
    if name == "expected_duration_per_epoch":
        return f"{value:.1f} s"
    if name.endswith("_percent"):
        return f"{value:.1f} %"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
