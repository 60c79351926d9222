from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from yolo_airflow_provider.contract import (
    RESULT_LIMIT_BYTES,
    Accelerator,
    ContractError,
    DatasetSummary,
    Environment,
    Failure,
    FailureClass,
    Identity,
    JobResult,
    JobSpec,
    Measurement,
    ModelFacts,
    TrainJob,
    profile_name,
)


def make_spec() -> JobSpec:
    return JobSpec(
        job=TrainJob(model="yolov8n", data="/data/data.yaml", imgsz=640, epochs=3, batch=16),
        identity=Identity(dag_id="d", run_id="manual__2026-12-01T10:00:00+00:00", task_id="train"),
        accelerator=Accelerator(kind="cpu", memory_budget_bytes=2**30),
        workspace="/ws",
        run_folder="/ws/d/r/train/-1",
        result_path="/dev/termination-log",
    )


def test_a_spec_survives_the_way_to_the_pod() -> None:
    assert JobSpec.from_json(make_spec().to_json()) == make_spec()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "version 2"),
        ({"version": None}, "version None"),
        ({"surprise": 1}, "surprise"),
        ({"job": {"kind": "train", "model": "m", "data": "d", "imgsz": 640, "epochs": 3, "batch": 0}}, "batch"),
        ({"job": {"kind": "dance"}}, "job"),
    ],
)
def test_a_wrong_spec_names_its_field(change: dict[str, object], named: str) -> None:
    raw = json.loads(make_spec().to_json()) | change
    with pytest.raises(ContractError, match=named):
        JobSpec.from_json(json.dumps(raw))


def test_an_unknown_version_says_what_to_install() -> None:
    raw = json.loads(make_spec().to_json()) | {"version": 99}
    with pytest.raises(ContractError, match="same yolo-airflow-provider in Airflow and in the worker image"):
        JobSpec.from_json(json.dumps(raw))


def test_a_field_of_another_release_says_what_to_install() -> None:
    raw = json.loads(make_spec().to_json())
    raw["identity"]["surprise"] = "x"
    with pytest.raises(ContractError, match=r"identity\.surprise: Extra inputs .*: install the same yolo-airflow-prov"):
        JobSpec.from_json(json.dumps(raw))
    with pytest.raises(ContractError) as caught:
        JobSpec.from_json(json.dumps(json.loads(make_spec().to_json()) | {"job": {"kind": "dance"}}))
    assert "install" not in str(caught.value)


def test_a_cut_off_result_is_no_result() -> None:
    message = JobResult(kind="train").to_message()
    with pytest.raises(ContractError, match="not JSON"):
        JobResult.from_json(message[:-4])


numbers = st.integers(min_value=0, max_value=2**60)
fractions = st.floats(min_value=0, max_value=1e12, allow_nan=False)
names = st.text(max_size=128)


def measurements(part: str) -> st.SearchStrategy[Measurement]:
    return st.builds(
        Measurement,
        part=st.just(part),
        failure_class=st.sampled_from([None, *FailureClass]),
        batch=numbers,
        precision=st.just("fp32"),
        optimizer=st.sampled_from(["auto", "AdamW", "MuSGD"]),
        workers=numbers,
        peak_allocated_bytes=numbers,
        peak_reserved_bytes=numbers,
        peak_device_bytes=numbers,
        validation_peak_bytes=numbers,
        peak_rss_bytes=numbers,
        peak_container_bytes=numbers,
        rss_growth_bytes=numbers,
        step_seconds=fractions,
        epoch_seconds=fractions,
        images_per_second=fractions,
        data_wait_percent=fractions,
        throttled_percent=fractions,
        read_bytes=numbers,
        written_bytes=numbers,
    )


@settings(deadline=None)
@given(
    points=st.tuples(measurements("batch-2"), measurements("batch-8"), measurements("batch-16")),
    message=st.text(max_size=6000),
    hint=st.text(max_size=3000),
    notes=st.lists(st.text(max_size=3000), max_size=8),
)
def test_a_result_fits_a_termination_message_and_keeps_every_number(
    points: tuple[Measurement, ...], message: str, hint: str, notes: list[str]
) -> None:
    result = JobResult(
        kind="probe",
        measurements=points,
        failure=Failure(failure_class=FailureClass.CODE, message=message, hint=hint),
        notes=tuple(notes),
    )
    text = result.to_message()
    assert len(text.encode()) <= RESULT_LIMIT_BYTES
    read = JobResult.from_json(text)
    assert read.measurements == points
    assert read.failure is not None
    assert message.startswith(read.failure.message.removesuffix("…"))


def test_a_whole_probe_leaves_room_for_its_advice() -> None:
    """Three points with every field set, as large as real ones get, an architecture, a node and a sentence."""
    whole = {
        name: 97.1234 if name.endswith("_percent") else 1234.5678 if "seconds" in name else 123_456_789_012
        for name in Measurement.model_fields
        if name.endswith(("_bytes", "_percent", "_seconds", "_spread", "_second"))
    }
    points = tuple(
        Measurement(
            part=f"batch-{batch}",
            batch=batch,
            precision="fp32",
            optimizer="AdamW",
            workers=16,
            bound_by="data_loading",
            **whole,
        )
        for batch in (2, 8, 128)
    )
    result = JobResult(
        kind="probe",
        measurements=points,
        model=ModelFacts(
            name="yolo11x-seg", task="segment", parameters=62_142_656, gflops=319.77, stride=32, classes=80
        ),
        environment=Environment(
            kind="mig",
            product="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            memory_bytes=10_200_547_328,
            multiprocessors=16,
            cpu_cores=8.0,
            node="gke-production-a2-highgpu-1g-pool-1a2b3c4d-5e6f",
            torch="2.9.1+cu128",
            ultralytics="8.4.190",
        ),
        notes=("the CPU limit of 2 cores stopped the run in 34 % of its scheduling periods: raise it" + "." * 200,) * 2,
    )
    text = result.to_message()
    assert len(text.encode()) <= RESULT_LIMIT_BYTES
    read = JobResult.from_json(text)
    assert read.measurements == points
    assert read.notes
    assert read.notes[0].startswith("the CPU limit of 2 cores stopped the run in 34 % of its scheduling periods")


def test_a_short_text_is_not_shortened() -> None:
    failure = Failure(failure_class=FailureClass.DATA, message="m" * 900, hint="h" * 900)
    read = JobResult.from_json(JobResult(kind="train", failure=failure, notes=("n" * 500,)).to_message())
    assert read.failure == failure
    assert read.notes == ("n" * 500,)


def test_advice_does_not_crowd_out_why_a_run_failed() -> None:
    failure = Failure(failure_class=FailureClass.CODE, message="m" * 1900, hint="h" * 200)
    advice = tuple(str(number) + "n" * 600 for number in range(8))
    read = JobResult.from_json(JobResult(kind="train", failure=failure, notes=advice).to_message())
    assert read.failure == failure
    assert [note[:10] for note in read.notes] == [note[:10] for note in advice]
    longer = failure.model_copy(update={"message": "m" * 1990, "hint": "h" * 1500})
    read = JobResult.from_json(JobResult(kind="train", failure=longer, notes=advice).to_message())
    assert read.failure == longer
    assert 1 <= len(read.notes) <= 2


def test_names_and_numbers_that_cannot_fit_are_refused_not_cut() -> None:
    dataset = DatasetSummary(
        name="n",
        fingerprint="f",
        classes=1,
        train_images=1,
        val_images=1,
        size_bytes=1,
        faults={"é" * 120 + str(number): number for number in range(24)},
        data_yaml="d",
        report="r",
    )
    crowded = JobResult(kind="k", dataset=dataset, measurements=tuple(_full(part) for part in "abc"))
    with pytest.raises(ContractError, match="over the 4,096"):
        crowded.to_message()


def _full(part: str) -> Measurement:
    return Measurement(part=part, batch=1, precision="amp", optimizer="o" * 128, workers=1)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("yolov8n", "yolov8n"),
        ("yolov8n.yaml", "yolov8n"),
        ("/models/yolov8m.pt", "yolov8m"),
        ("/runs/7/best.pt", "/runs/7/best.pt"),
        ("/a/" + "x" * 200 + ".yaml", "x" * 100),
    ],
)
def test_profile_names(model: str, name: str) -> None:
    assert profile_name(model) == name
