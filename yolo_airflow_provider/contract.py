"""What an operator and its pod say to each other: one JSON each way.

The operator sends a `JobSpec` (environment variable `YOLO_JOB`); the worker answers with a `JobResult` in the
container's termination message, which kubelet cuts off at 4,096 bytes
(https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/). Units stand in the
names: `_bytes`, `_seconds`, `_percent` (0 to 100). `None` means "not measured", never zero.

This module is imported by Airflow and inside the pod, so it stands on pydantic alone.
"""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

CONTRACT_VERSION = 1
RESULT_LIMIT_BYTES = 4096
JOB_VARIABLE = "YOLO_JOB"
"""Environment variable that carries the `JobSpec` into the container."""

PARENT_VARIABLE = "YOLO_PARENT_PID"
"""Set by the local execution: the worker ends when this process ends."""

# Exit codes of the worker. 0 and 1 keep their usual meaning; the others let an end without a result be classified.
# 75 is EX_TEMPFAIL of sysexits.h: stopped from outside, worth another try.
EXIT_PREEMPTED = 75
EXIT_OUT_OF_MEMORY = 17

Name = Annotated[str, Field(max_length=128)]
"""A short identifier. Bounded so that a result of numbers and names always fits."""
RelativePath = Annotated[str, Field(max_length=160)]
"""A path below the run's folder or the workspace, never absolute."""


_T = TypeVar("_T", bound="JobSpec | JobResult")


class ContractError(ValueError):
    """A job or a result that this version cannot read; the message says which field and what to do."""


class FailureClass(StrEnum):
    """Why a run failed. Only the memory classes change what the next try is given."""

    GPU_OOM = "gpu_oom"
    """The device's memory (on a GPU or slice) did not hold the training."""
    HOST_OOM = "host_oom"
    """The container's memory (on `cpu`: the budget) did not hold it."""
    SHM = "shm"
    """/dev/shm was too small for the data loader."""
    DISK_FULL = "disk_full"
    GPU_LOST = "gpu_lost"
    """The device went away under the run; nothing the run did."""
    PREEMPTED = "preempted"
    """Stopped from outside (SIGTERM, eviction); resumes."""
    UNSCHEDULABLE = "unschedulable"
    IMAGE = "image"
    DATA = "data"
    """The data set or another input is at fault; a retry changes nothing."""
    CODE = "code"
    """Anything else that the run itself raised."""
    LOST = "lost"
    """It ended without saying how."""


MEMORY_FAILURES = frozenset({FailureClass.GPU_OOM, FailureClass.HOST_OOM})


def failure_of_exit_code(exit_code: int, *, on_cpu: bool) -> FailureClass:
    """What a worker's exit code tells where its result could not be read."""
    if exit_code == EXIT_PREEMPTED:
        return FailureClass.PREEMPTED
    if exit_code == EXIT_OUT_OF_MEMORY:
        return FailureClass.HOST_OOM if on_cpu else FailureClass.GPU_OOM
    return FailureClass.LOST


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="null")


class Identity(_Message):
    """Whose run it is. A clear or a backfill runs the same identity again with a higher `try_number`."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    try_number: int = Field(default=1, ge=1)
    attempt: Name = ""
    """Airflow's own id of the try, a UUIDv7: ids of later tries sort after those of earlier ones, also where a DAG run
    was deleted and made again under its name, which starts at try 1 once more. Empty where there is none."""
    logical_date: datetime | None = None


class Accelerator(_Message):
    """What the run was given to compute on."""

    kind: Literal["cpu", "gpu", "mig"]
    product: Name = ""
    mig_profile: Name = ""
    memory_budget_bytes: int | None = Field(default=None, gt=0)
    """Usable memory: of the device, or on `cpu` of the container. None: no limit known."""
    enforce_budget: bool = False
    """On `cpu` outside a container: end the run when the process outgrows the budget, as the kernel would."""


class PreprocessJob(_Message):
    """Check and prepare a data set."""

    kind: Literal["preprocess"] = "preprocess"
    data: str
    imgsz: int = Field(ge=32, le=16384)
    """Side of the square input, pixels."""
    task: Name = "detect"
    copy_images: bool = False
    """Copy images into the workspace instead of linking to the source."""
    model: str | None = None
    """An architecture to analyse beside it, for the plan of its first training."""
    trusted_weights: bool = False


class _ModelJob(_Message):
    model: str
    data: str
    imgsz: int = Field(ge=32, le=16384)
    """Side of the square input, pixels."""
    task: Name = "detect"
    trusted_weights: bool = False
    """Load a .pt as a full pickle. False: only known classes are reconstructed (weights_only)."""
    amp: bool = True
    optimizer: Name = "auto"
    workers: int = Field(default=8, ge=0, le=1024)
    seed: int = 0
    analyse: bool = False
    """Analyse the architecture before it runs: the planner does not know it."""


class ProbeJob(_ModelJob):
    """A few real training steps at two or three batch sizes."""

    kind: Literal["probe"] = "probe"
    batches: tuple[int, ...] = Field(min_length=1, max_length=3)
    steps: int = Field(default=4, ge=1, le=100)
    """Measured steps a batch size, after one that warms up."""

    @model_validator(mode="after")
    def _positive(self) -> ProbeJob:
        if any(batch < 1 for batch in self.batches):
            raise ValueError(f"batches must be at least 1, got {list(self.batches)}")
        return self


class TrainJob(_ModelJob):
    """Train to the end, resuming what an earlier try left."""

    kind: Literal["train"] = "train"
    epochs: int = Field(ge=1, le=100_000)
    batch: int = Field(ge=1, le=100_000)
    resume: bool = True
    cache: bool | Literal["ram", "disk"] = False
    overrides: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """Further Ultralytics training arguments, passed through."""


class ExportJob(_Message):
    """Export weights, reload the artefact and compare it with the model."""

    kind: Literal["export"] = "export"
    weights: str
    format: Name = "onnx"
    imgsz: int = Field(ge=32, le=16384)
    """Side of the square input, pixels."""
    data: str | None = None
    images: int = Field(default=8, ge=1, le=256)
    tolerance: float = Field(default=1e-3, gt=0)
    """Largest difference allowed, as a fraction of the largest absolute output."""
    half: bool = False
    trusted_weights: bool = False


Job = Annotated[PreprocessJob | ProbeJob | TrainJob | ExportJob, Field(discriminator="kind")]


class JobSpec(_Message):
    """Everything that a worker needs to know, and no secret."""

    version: int = CONTRACT_VERSION
    job: Job
    identity: Identity
    accelerator: Accelerator
    workspace: str
    run_folder: str
    """`<workspace>/<dag>/<run>/<task>/<map index>`: the same for every try, so that a retry resumes."""
    result_path: str
    """Where the worker writes its `JobResult`: the container's termination message file."""

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Read a spec.

        Raises:
            ContractError: not JSON, of another version, or a field is wrong.
        """
        return _read(cls, text, "job specification")

    def to_json(self) -> str:
        """One line of JSON; fields that were left at None are omitted."""
        return self.model_dump_json(exclude_none=True)


class DatasetSummary(_Message):
    """What preprocessing found; objects per image decide the label assigner's memory."""

    name: Name
    fingerprint: Name
    """SHA-256 over every image and label that is used, hexadecimal."""
    classes: int
    train_images: int
    val_images: int
    train_objects: int = 0
    size_bytes: int
    objects_mean: float | None = None
    objects_median: float | None = None
    objects_p95: float | None = None
    objects_max: int | None = None
    faults: dict[Name, int] = Field(default_factory=dict, max_length=24)
    """Number of each fault found, by the fault's name."""
    data_yaml: RelativePath
    """The prepared data set, below the workspace."""
    report: RelativePath
    """The full report, below the run's folder."""


class ModelFacts(_Message):
    """The architecture as it was built."""

    name: Name
    task: Name
    parameters: int
    gflops: float | None = None
    """Forward pass of one image at the run's input size, 1e9 multiply-adds times two."""
    stride: int
    classes: int


class ArchitectureFacts(_Message):
    """What an analysis on fake tensors found; `planner.catalogue.Architecture` says what the fields mean."""

    name: Name
    task: Name
    classes: int
    parameters: int
    parameters_per_class: float
    buffer_bytes: int
    stride: int
    gflops: float
    gflops_imgsz: int
    fixed_bytes: int
    amp_bytes_per_pixel: float
    fp32_bytes_per_pixel: float
    amp_bytes_per_pixel_per_class: float
    validation_bytes_per_pixel: float
    anchors_per_pixel: float
    step_flops_per_pixel: float
    step_moved_bytes_per_pixel: float
    kernels: int


class Environment(_Message):
    """Where it ran, as seen from inside."""

    kind: Literal["cpu", "gpu", "mig"]
    product: Name = ""
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    cpu_cores: float | None = None
    node: Name = ""
    torch: Name = ""
    ultralytics: Name = ""
    driver: Name = ""


class Measurement(_Message):
    """One run, one probe point, or one failure, measured from inside."""

    part: Name
    """`train`, or `batch-8` for the probe point at batch 8; unique within a result."""
    failure_class: FailureClass | None = None
    try_number: int | None = Field(default=None, ge=1)
    """The try that measured it, where a later one took it over; None: the result's."""
    batch: int
    precision: Literal["amp", "fp32"]
    optimizer: Name
    workers: int
    peak_allocated_bytes: int | None = None
    """Live tensors (`torch.cuda.max_memory_allocated`); None on `cpu`."""
    peak_reserved_bytes: int | None = None
    """Held by torch's allocator, what Ultralytics prints as GPU_mem; None on `cpu`."""
    peak_device_bytes: int | None = None
    """Used on the device with the CUDA context; on `cpu` the process's peak resident memory."""
    validation_peak_bytes: int | None = None
    """Peak of the same quantity while validating."""
    peak_rss_bytes: int | None = None
    """Largest resident memory of the worker's process, whatever it computes on."""
    peak_container_bytes: int | None = None
    """Largest sampled memory of the container that cannot be reclaimed, loader processes and /dev/shm included; None
    outside a container with a memory limit."""
    rss_growth_bytes: int | None = None
    """By which the process's resident memory grew an epoch, 0 where that is no more than noise; None under eight
    epochs, which tell no growth from noise."""
    step_seconds: float | None = None
    epoch_seconds: float | None = None
    """Median of the epochs of this try, training and validation."""
    epoch_seconds_spread: float | None = None
    """Difference of the slowest and the fastest epoch of this try."""
    images_per_second: float | None = None
    data_wait_percent: float | None = None
    """Share of the training loop that waited for the loader."""
    iowait_percent: float | None = None
    """Of all CPU time on the node while it ran."""
    cpu_percent: float | None = None
    """CPU time of the process by wall time; 200 is two cores busy."""
    throttled_percent: float | None = None
    """Share of the container's scheduling periods in which its CPU limit stopped it; None without a limit."""
    device_busy_percent: float | None = None
    io_pressure_percent: float | None = None
    """Share of time some task of the cgroup stalled on I/O (PSI `some`)."""
    memory_pressure_percent: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    bound_by: Name | None = None


class TrainSummary(_Message):
    """What a training produced. Paths are below the run's folder."""

    epochs: int
    epochs_done: int
    resumed_epochs: int
    best_weights: RelativePath
    last_weights: RelativePath
    metrics: dict[Name, float] = Field(default_factory=dict, max_length=24)
    training_seconds: float


class ExportSummary(_Message):
    """What an export produced. Paths are below the run's folder."""

    format: Name
    artefact: RelativePath
    size_bytes: int
    sha256: Name
    largest_difference: float
    """Largest absolute difference over the largest absolute output of the model, a fraction."""
    tolerance: float
    images: int


class Failure(_Message):
    """What went wrong, for the person who reads it at 3 a.m."""

    failure_class: FailureClass
    message: str
    hint: str = ""
    stage: Name = ""
    needed_bytes: int | None = None
    budget_bytes: int | None = None


class JobResult(_Message):
    """The worker's answer; `to_message` keeps it within `RESULT_LIMIT_BYTES`."""

    version: int = CONTRACT_VERSION
    kind: Name
    try_number: int = 1
    failure: Failure | None = None
    model: ModelFacts | None = None
    architecture: ArchitectureFacts | None = None
    environment: Environment | None = None
    measurements: tuple[Measurement, ...] = Field(default=(), max_length=3)
    dataset: DatasetSummary | None = None
    train: TrainSummary | None = None
    export: ExportSummary | None = None
    notes: tuple[str, ...] = Field(default=(), max_length=8)
    """Free text for the log, shortened before anything else when the message is too long."""

    @property
    def succeeded(self) -> bool:
        """True when the run did what it was asked."""
        return self.failure is None

    @classmethod
    def unanswered(cls, spec: JobSpec, failure: Failure) -> JobResult:
        """The result of a run that gave none itself."""
        failure = failure.model_copy(update={"stage": spec.job.kind})
        return cls(kind=spec.job.kind, try_number=spec.identity.try_number, failure=failure)

    @classmethod
    def from_json(cls, text: str) -> JobResult:
        """Read a result.

        Raises:
            ContractError: not JSON (a cut-off message, say), of another version, or a field is wrong.
        """
        return _read(cls, text, "job result")

    def to_message(self) -> str:
        """JSON of at most `RESULT_LIMIT_BYTES` bytes of UTF-8: text is shortened, numbers never.

        Raises:
            ContractError: the numbers and names alone are too long.
        """
        for notes, note_bytes, failure_bytes in _SHORTER:
            fields = self._shortened(notes, note_bytes, failure_bytes)
            text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
            if len(text.encode()) <= RESULT_LIMIT_BYTES:
                return text
        raise ContractError(
            f"the result of a {self.kind} job is {len(text.encode()):,} bytes of names and numbers, over the"
            f" {RESULT_LIMIT_BYTES:,} that a termination message holds; use shorter names"
        )

    def _shortened(self, notes: int, note_bytes: int, failure_bytes: int) -> dict[str, Any]:
        fields: dict[str, Any] = self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        fields |= {"version": self.version, "try_number": self.try_number}
        if self.notes:
            fields["notes"] = [_cut(note, note_bytes) for note in self.notes[:notes]]
        if self.failure is not None:
            fields["failure"]["message"] = _cut(self.failure.message, failure_bytes)
            if self.failure.hint:
                fields["failure"]["hint"] = _cut(self.failure.hint, failure_bytes)
        return fields


# Notes that are kept, bytes of each, and bytes of the failure's message and of its hint. Advice goes before the failure
# is shortened: why a run ended is what its reader came for.
_SHORTER = (
    (8, 2000, 2000),
    (8, 200, 2000),
    (2, 200, 2000),
    (1, 120, 2000),
    *((0, 0, failure_bytes) for failure_bytes in (2000, 1000, 500, 200, 120, 60, 12, 0)),
)


class EpochRecord(_Message):
    """One line of `epochs.jsonl` in the run's folder: the series behind a measurement."""

    epoch: int = Field(ge=1)
    try_number: int = Field(ge=1)
    seconds: float
    images_per_second: float | None = None
    peak_device_bytes: int | None = None
    validation_peak_bytes: int | None = None
    data_wait_percent: float | None = None
    iowait_percent: float | None = None
    losses: dict[str, float] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)


_SAME_PACKAGE = "install the same yolo-airflow-provider in Airflow and in the worker image"
_NAMELESS = frozenset({"best", "last", "previous", "weights", "model", "checkpoint"})


def profile_name(model: str) -> str:
    """What the store calls a model: `yolov8n` for its name, its yaml or its weights.

    A file called best.pt says nothing about what it holds, so the end of its path stands for it.
    """
    stem = PurePath(model).stem if PurePath(model).suffix in (".pt", ".yaml", ".yml") else model
    return model[-100:] if stem in _NAMELESS else stem[-100:]


def _cut(text: str, limit_bytes: int) -> str:
    raw = text.encode()
    if len(raw) <= limit_bytes:
        return text
    if limit_bytes < 8:
        return ""
    return raw[: limit_bytes - 3].decode(errors="ignore") + "…"


def _read(model: type[_T], text: str, what: str) -> _T:
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise ContractError(f"the {what} is not JSON ({error}): {text[:80]!r}") from error
    version = raw.get("version") if isinstance(raw, dict) else None
    if version != CONTRACT_VERSION:
        raise ContractError(
            f"the {what} is of version {version!r}, this package reads version {CONTRACT_VERSION}: {_SAME_PACKAGE}"
        )
    try:
        return cast("_T", model.model_validate(raw))
    except ValidationError as error:
        # A field that nobody knows here is one that another release added without a new version.
        unknown = any(fault["type"] == "extra_forbidden" for fault in error.errors(include_url=False))
        raise ContractError(
            f"the {what} is wrong: {describe(error)}" + (f": {_SAME_PACKAGE}" if unknown else "")
        ) from error


def describe(error: ValidationError) -> str:
    """Every fault of a pydantic error as `field: reason (got value)`, without pydantic's own links."""
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'message'}: {fault['msg']} (got {str(fault['input'])[:60]!r})"
        for fault in error.errors(include_url=False)
    )
