"""The rows of the profile store as plain data, for those who write and read it.

Memory is bytes, percentages are 0 to 100, times are aware and UTC. `None` means "not measured".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """Whose run it is; with a `part` it names one measurement."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """An architecture at one number of classes; the same name with other facts is another row."""

    name: str
    task: str
    classes: int
    parameters: int
    stride: int
    gflops: float | None = None
    gflops_imgsz: int | None = None
    # The analysis on fake tensors, None where there was none; planner/catalogue.py says what the fields mean.
    buffer_bytes: int | None = None
    fixed_bytes: int | None = None
    parameters_per_class: float | None = None
    amp_bytes_per_pixel: float | None = None
    fp32_bytes_per_pixel: float | None = None
    amp_bytes_per_pixel_per_class: float | None = None
    validation_bytes_per_pixel: float | None = None
    anchors_per_pixel: float | None = None
    step_flops_per_pixel: float | None = None
    step_moved_bytes_per_pixel: float | None = None
    kernels: int | None = None


@dataclass(frozen=True, kw_only=True)
class MeasurementRow:
    """One run, one probe point or one failure. Appended, never changed."""

    key: RunKey
    part: str
    kind: str
    """`train`, `probe`, `preprocess` or `export`."""
    outcome: str
    """`succeeded`, or the failure's class."""
    finished_at: datetime
    logical_date: datetime | None = None
    message: str | None = None
    # What ran.
    model: str | None = None
    model_task: str | None = None
    classes: int | None = None
    imgsz: int | None = None
    batch: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    epochs: int | None = None
    epochs_done: int | None = None
    resumed_epochs: int | None = None
    dataset: str | None = None
    dataset_fingerprint: str | None = None
    train_images: int | None = None
    dataset_bytes: int | None = None
    objects_mean: float | None = None
    objects_p95: float | None = None
    objects_max: int | None = None
    workers: int | None = None
    cache: str | None = None
    torch_version: str | None = None
    ultralytics_version: str | None = None
    # Where.
    accelerator_kind: str | None = None
    product: str | None = None
    """As it was planned for; evidence is found by it. None where only a profile was named, and on `cpu`."""
    device_name: str | None = None
    """As the device called itself."""
    mig_profile: str | None = None
    budget_bytes: int | None = None
    container_limit_bytes: int | None = None
    """Memory limit of the container; on `cpu` mostly the budget, on a GPU another memory."""
    multiprocessors: int | None = None
    cpu_cores: float | None = None
    node: str | None = None
    # What came out.
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_device_bytes: int | None = None
    validation_peak_bytes: int | None = None
    peak_rss_bytes: int | None = None
    peak_container_bytes: int | None = None
    """Of the container's memory what cannot be reclaimed, loader processes and /dev/shm included; sampled."""
    rss_growth_bytes: int | None = None
    """Of the process, an epoch; what shrank did not grow: 0."""
    step_seconds: float | None = None
    epoch_seconds: float | None = None
    epoch_seconds_spread: float | None = None
    images_per_second: float | None = None
    data_wait_percent: float | None = None
    iowait_percent: float | None = None
    io_pressure_percent: float | None = None
    memory_pressure_percent: float | None = None
    cpu_percent: float | None = None
    throttled_percent: float | None = None
    """Of the container's scheduling periods, those in which its CPU limit stopped it."""
    device_busy_percent: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    bound_by: str | None = None
    map50: float | None = None
    map50_95: float | None = None
    origin: str | None = None
    """None: measured here; else whom it was imported from."""


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """One epoch of a training, as the try that ran it measured it."""

    key: RunKey
    epoch: int
    seconds: float
    images_per_second: float | None = None
    peak_device_bytes: int | None = None
    validation_peak_bytes: int | None = None
    data_wait_percent: float | None = None
    iowait_percent: float | None = None
    losses: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DecisionRow:
    """What the planner chose for a task and why, joined to what followed by its key."""

    key: RunKey
    decided_at: datetime
    model: str
    imgsz: int
    precision: str
    accelerator_kind: str
    product: str
    mig_profile: str
    budget_bytes: int | None
    batch: int
    basis: str
    """`measured`, `line`, `scaled`, `predicted`, `fallback` or `given`."""
    sentence: str
    margin_percent: float
    predicted_bytes: int | None = None
    predicted_low_bytes: int | None = None
    predicted_high_bytes: int | None = None
    predicted_reserved_bytes: int | None = None
    """Of the memory what torch's allocator holds, which is what Ultralytics prints; None on `cpu`."""
    predicted_epoch_seconds: float | None = None
    predicted_epoch_low_seconds: float | None = None
    predicted_epoch_high_seconds: float | None = None
    objective: str | None = None
    """What was optimised for: `cost`, `time` or `fit`."""
    candidates: list[dict[str, object]] = field(default_factory=list)
    evidence: list[int] = field(default_factory=list)
    """Ids of the measurements it stands on."""


@dataclass(frozen=True, kw_only=True)
class ProfileKey:
    """What two runs must share for the memory of one to tell that of the other."""

    model: str
    imgsz: int
    precision: str
    accelerator_kind: str
    product: str
    classes: int | None = None
    """None: any number of classes."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A measurement as read back, with the id that decisions refer to."""

    id: int
    row: MeasurementRow


class RelativeRow(NamedTuple):
    """Of a training that went well what tells how predictions of other models on its device fare; as `EvidenceRow`."""

    id: int
    model: str
    classes: int | None
    imgsz: int
    precision: str
    optimizer: str | None
    batch: int
    objects_mean: float | None
    objects_p95: float | None
    objects_max: int | None
    cache: str | None
    peak_device_bytes: int


class EvidenceRow(NamedTuple):
    """Of a measurement what plans stand on; fields as in `MeasurementRow`.

    A named tuple because it is made as it comes from the database: a profile's rows are read before every run.
    """

    id: int
    """Decisions refer to it."""
    kind: str
    outcome: str
    finished_at: datetime
    accelerator_kind: str
    imgsz: int
    batch: int | None
    train_images: int | None
    workers: int | None
    cache: str | None
    budget_bytes: int | None
    container_limit_bytes: int | None
    peak_device_bytes: int | None
    peak_rss_bytes: int | None
    peak_container_bytes: int | None
    epoch_seconds: float | None
    images_per_second: float | None
    mig_profile: str | None
