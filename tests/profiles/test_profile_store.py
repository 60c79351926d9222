from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st
from profile_rows import GIB, MODEL, NOON, PROFILE, decision, epoch, measurement, run_key

from yolo_airflow_provider.contract import MEMORY_FAILURES, FailureClass
from yolo_airflow_provider.profiles import migrate, rows, tables
from yolo_airflow_provider.profiles.errors import RowError, StoreError
from yolo_airflow_provider.profiles.frames import NAMES as FRAME_NAMES
from yolo_airflow_provider.profiles.records import (
    DecisionRow,
    EpochRow,
    EvidenceRow,
    MeasurementRow,
    ModelRow,
    ProfileKey,
    RunKey,
)
from yolo_airflow_provider.profiles.store import ProfileStore


def rows_of(store: ProfileStore, table: sa.Table) -> list[dict[str, Any]]:
    with store.engine.connect() as connection:
        return [dict(row) for row in connection.execute(sa.select(table)).mappings()]


def only(store: ProfileStore) -> MeasurementRow:
    (stored,) = store.measurements("yolo", "manual__1")
    return stored.row


def parts(store: ProfileStore, profile: ProfileKey, **limit: int) -> list[str]:
    """Parts of the measurements that are evidence, in the order read."""
    names = {row["id"]: row["part"] for row in rows_of(store, tables.measurement)}
    return [names[row.id] for row in store.evidence(profile, **limit)]


def test_the_tables_hold_every_field_of_the_rows():
    for table, row in (
        (tables.model, ModelRow),
        (tables.measurement, MeasurementRow),
        (tables.epoch, EpochRow),
        (tables.decision, DecisionRow),
    ):
        names = {field.name for field in fields(row)} - {"key"}
        if row is not ModelRow:
            names |= {field.name for field in fields(RunKey)}
        assert {column.name for column in table.columns} - {"id", "model_id", "trained_seconds"} == names


def test_the_outcomes_are_those_of_the_contract():
    assert set(tables.OUTCOMES) == {"succeeded", *FailureClass}
    assert set(tables.MEMORY_FAILURES) == set(MEMORY_FAILURES)


def test_every_unit_is_checked_by_the_database():
    for table in tables.metadata.tables.values():
        checked = {str(c.name).removeprefix(f"ck_{table.name}_") for c in table.constraints if c.name}
        for column in table.columns:
            if tables.value_limits(column.name) != (None, None) or tables.most_characters(table.name, column.name):
                assert column.name in checked, column


UNUSUAL: dict[type, Any] = {int: 7, float: 0.1 + 0.2, str: "grün ✅ \U0001f9ea 'x' \"; DROP TABLE model; --"}


def unusual(*left_alone: str) -> MeasurementRow:
    """A measurement with something in every field that takes anything."""
    changes: dict[str, Any] = {}
    for field in fields(MeasurementRow):
        column = tables.measurement.c.get(field.name)
        if column is not None and field.name not in ("key", "kind", "outcome", *left_alone):
            changes[field.name] = UNUSUAL.get(column.type.python_type, NOON + timedelta(microseconds=1))
    return replace(measurement(), **changes)


def test_a_measurement_comes_back_with_every_field(store: ProfileStore):
    row = replace(unusual(), outcome=FailureClass.GPU_OOM)
    store.record([row])
    (stored,) = store.measurements("yolo", "manual__1")
    assert stored.row == row
    assert type(stored.row.outcome) is str


def test_a_decision_comes_back_with_every_field(store: ProfileStore):
    row = decision(
        predicted_low_bytes=GIB,
        predicted_high_bytes=2**40,
        predicted_epoch_seconds=12.5,
        candidates=[{"slice": "1g.5gb", "fits": True, "why": None, "bytes": 2**40, "nested": [1.5, {"a": "ü"}]}],
        evidence=[1, 2, 3],
    )
    store.decide(row)
    assert store.decisions("yolo", "manual__1") == [row]
    assert store.decisions("yolo", "another") == []


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=200)
TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.timezones())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    message=TEXTS,
    finished_at=TIMES,
    map_index=st.integers(-1, 2**31 - 1),
    read_bytes=st.integers(0, 2**63 - 1),
    share=st.floats(0, 100),
    seconds=st.floats(0, 1e300),
)
def test_values_come_back(store, message, finished_at, map_index, read_bytes, share, seconds):
    row = measurement(
        key=run_key(map_index=map_index),
        part=f"p{read_bytes}-{hash((message, finished_at, share, seconds))}",
        message=message,
        finished_at=finished_at,
        read_bytes=read_bytes,
        data_wait_percent=share,
        epoch_seconds=seconds,
    )
    store.record([row])
    back = next(s.row for s in store.measurements("yolo", "manual__1") if s.row.part == row.part)
    assert back.message == message
    # In the hour that a clock change repeats or skips, Python calls times of two zones unequal.
    assert back.finished_at == finished_at.astimezone(UTC)
    assert back.finished_at.tzinfo is UTC
    assert back.read_bytes == read_bytes
    assert back.data_wait_percent == share
    assert back.epoch_seconds == seconds


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("🧪" * 5, id="emoji"),
        pytest.param("'\"\\;--%s:x{}$1\r\n\t\x1b[31m", id="quotes and controls"),
        pytest.param("x" * 1_000_000, id="long"),
        pytest.param("", id="empty"),
    ],
)
def test_any_text_comes_back_as_it_was(store: ProfileStore, text: str):
    store.record([measurement(message=text, dataset=text)], [epoch(1, losses={text[:9]: 1.0})])
    assert (only(store).message, only(store).dataset) == (text, text)
    (row,) = rows_of(store, tables.epoch)
    assert row["losses"] == {text[:9]: 1.0}


HOSTILE = [
    pytest.param({"message": "a\x00b"}, "ck_measurement_message", id="NUL"),
    pytest.param({"message": "\ud83d"}, "ck_measurement_message", id="half a surrogate pair"),
    pytest.param({"model": "m\x00"}, "ck_measurement_model", id="NUL in an index"),
    pytest.param({"model": "x" * 100_000}, "ck_measurement_model", id="100 kB in an index"),
    pytest.param({"key": run_key(dag_id="x" * 251)}, "ck_measurement_dag_id", id="id over Airflow's length"),
    pytest.param(
        {"key": run_key(dag_id="🧪" * 250, run_id="🧪" * 250, task_id="🧪" * 250)},
        "uq_measurement_key",
        id="key over PostgreSQL's index entry",
    ),
    pytest.param({"map50": math.nan}, "ck_measurement_map50", id="NaN"),
    pytest.param({"step_seconds": math.inf}, "ck_measurement_step_seconds", id="infinity"),
    pytest.param({"data_wait_percent": -math.inf}, "ck_measurement_data_wait_percent", id="minus infinity"),
    pytest.param({"epoch_seconds": -0.5}, "ck_measurement_epoch_seconds", id="negative seconds"),
    pytest.param({"peak_rss_bytes": -1}, "ck_measurement_peak_rss_bytes", id="negative bytes"),
    pytest.param({"read_bytes": 2**63}, "ck_measurement_read_bytes", id="over 64 bits"),
    pytest.param(
        {"finished_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
        "ck_measurement_finished_at",
        id="after the end of time",
    ),
]


@pytest.mark.parametrize(("changes", "constraint"), HOSTILE)
def test_what_cannot_be_kept_as_it_is_is_refused_by_the_name_of_a_constraint(
    store: ProfileStore, changes: dict[str, Any], constraint: str
):
    with pytest.raises(RowError, match=rf"\(constraint {constraint}\)") as caught:
        store.record([measurement(part="before"), measurement(**changes)], [epoch(1)], [MODEL])
    assert len(str(caught.value)) < 5000
    assert all(rows_of(store, table) == [] for table in tables.metadata.tables.values())


@pytest.mark.parametrize("year", [1, 1900, 2262, 9999])
def test_times_of_any_year_come_back(store: ProfileStore, year: int):
    when = datetime(year, 12, 31, 23, 59, 59, 999999, UTC)
    store.record([measurement(finished_at=when, logical_date=when)])
    assert (only(store).finished_at, only(store).logical_date) == (when, when)
    assert len(store.frame("usage_by_dag")) == len(store.frame("resource_card")) == 1


def test_numbers_that_json_has_no_word_for_keep_their_names(store: ProfileStore):
    store.record(
        [measurement()],
        [epoch(1, losses={"box": math.nan, "cls": 1.5}, metrics={"deep": -math.inf, "high": math.inf})],
    )
    (row,) = rows_of(store, tables.epoch)
    assert row["losses"] == {"box": "NaN", "cls": 1.5}
    assert row["metrics"] == {"deep": "-Infinity", "high": "Infinity"}


def test_what_others_said_is_made_readable():
    assert rows.readable("a\x00b \ud83d \U0001f9ea") == "a\u2400b \ufffd \U0001f9ea"


def test_numbers_of_numpy_are_numbers(store: ProfileStore):
    store.record(
        [measurement(batch=np.int64(8), map50=np.float32(0.5))],
        [epoch(np.int64(3), losses={"box": np.float32(0.25)})],
    )
    assert (only(store).batch, only(store).map50) == (8, 0.5)
    assert rows_of(store, tables.epoch)[0]["losses"] == {"box": 0.25}


def test_rounding_does_not_lose_a_measurement(store: ProfileStore):
    store.record([measurement(data_wait_percent=100.00000000000001, iowait_percent=-1e-12, cpu_percent=350.0)])
    row = only(store)
    assert (row.data_wait_percent, row.iowait_percent, row.cpu_percent) == (100.0, 0.0, 350.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"finished_at": datetime(2026, 5, 4)}, "finished_at"),
        ({"logical_date": datetime(2026, 5, 4)}, "naive"),
        ({"finished_at": None}, "finished_at is None"),
        ({"outcome": "exploded"}, "'exploded': expected one of succeeded, gpu_oom"),
        ({"kind": "dream"}, "kind"),
        ({"batch": 0}, "batch is 0: expected at least 1"),
        ({"batch": 2.5}, "batch"),
        ({"epochs": 2**31}, "epochs"),
        ({"peak_device_bytes": -1}, "peak_device_bytes is -1: expected at least 0"),
        ({"peak_device_bytes": 2**63}, "peak_device_bytes"),
        ({"data_wait_percent": 100.5}, "data_wait_percent is 100.5: expected at most 100"),
        ({"cpu_percent": -3.0}, "cpu_percent"),
        ({"map50": "0.5"}, "map50"),
        ({"message": 5}, "message"),
    ],
)
def test_a_wrong_value_is_named_and_nothing_is_written(store: ProfileStore, changes: dict[str, Any], said: str):
    with pytest.raises(RowError, match=said) as caught:
        store.record([measurement(part="good"), measurement(**changes)], [epoch(1)], [MODEL])
    assert "measurement 'train' of yolo.train run manual__1 try 1" in str(caught.value)
    assert all(rows_of(store, table) == [] for table in tables.metadata.tables.values())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("batch", 0),
        ("peak_rss_bytes", -1),
        ("iowait_percent", 100.1),
        ("cpu_percent", -0.1),
        ("outcome", "x"),
    ],
)
def test_the_database_refuses_what_others_would_write(store: ProfileStore, column: str, value: object):
    store.record([measurement()])
    with (
        store.engine.begin() as connection,
        pytest.raises(sa.exc.IntegrityError, match=f"ck_measurement_{column}"),
    ):
        connection.execute(sa.update(tables.measurement).values({column: value}))


def test_a_naive_time_is_refused_by_the_column_too(store: ProfileStore):
    with store.engine.connect() as connection, pytest.raises(sa.exc.StatementError, match="naive time"):
        connection.execute(sa.select(tables.measurement).where(tables.measurement.c.finished_at > datetime(2026, 1, 1)))


def test_times_are_compared_as_instants(store: ProfileStore):
    tokyo = timezone(timedelta(hours=9))
    store.record([measurement(part="late", minute=1), measurement(part="early", finished_at=NOON.astimezone(tokyo))])
    assert [s.row.part for s in store.measurements("yolo", "manual__1")] == ["early", "late"]


def test_recording_twice_is_recording_once(store: ProfileStore):
    first = measurement(message="first")
    for _ in range(2):
        store.record([first, measurement(part="batch-8")], [epoch(1), epoch(2)], [MODEL])
    store.record([replace(first, message="second")], [epoch(1, seconds=99.0)], [replace(MODEL, stride=64)])
    assert [s.row.message for s in store.measurements("yolo", "manual__1")] == ["first", None]
    assert [row["seconds"] for row in rows_of(store, tables.epoch)] == [10.5, 10.5]
    assert [row["stride"] for row in rows_of(store, tables.model)] == [32]


def test_recording_nothing_writes_nothing(store: ProfileStore):
    store.record([])
    assert all(rows_of(store, table) == [] for table in tables.metadata.tables.values())


def test_a_measurement_refers_to_its_model(store: ProfileStore):
    store.record([measurement(), measurement(part="other", model="yolo11m")], models=[MODEL])
    found = {row["part"]: row["model_id"] for row in rows_of(store, tables.measurement)}
    assert found == {"train": rows_of(store, tables.model)[0]["id"], "other": None}


def test_two_models_of_one_name_are_two_rows_and_not_guessed_between(store: ProfileStore):
    store.record([measurement()], models=[MODEL, replace(MODEL, parameters=5)])
    assert len(rows_of(store, tables.model)) == 2
    assert rows_of(store, tables.measurement)[0]["model_id"] is None


def test_the_newest_decision_of_a_try_wins(store: ProfileStore):
    store.decide(decision(batch=16))
    store.decide(decision(batch=8, evidence=[4]))
    store.decide(decision(key=run_key(try_number=2), batch=4))
    assert [(d.key.try_number, d.batch, d.evidence) for d in store.decisions("yolo", "manual__1")] == [
        (1, 8, [4]),
        (2, 4, []),
    ]


def test_a_wrong_decision_is_named(store: ProfileStore):
    with pytest.raises(RowError, match=r"decision for yolo\.train\[3\] run manual__1 try 1: margin_percent is nan"):
        store.decide(decision(key=run_key(map_index=3), margin_percent=math.nan))
    with pytest.raises(RowError, match="basis is 'guessed'"):
        store.decide(decision(basis="guessed"))
    with pytest.raises(RowError, match="candidates"):
        store.decide(decision(candidates=[{"what": object()}]))


def test_evidence_is_what_tells_about_memory_newest_first(store: ProfileStore):
    store.record(
        [
            measurement(part="old", minute=1),
            measurement(part="probe", kind="probe", minute=3),
            measurement(part="oom", outcome="gpu_oom", peak_device_bytes=None, minute=2),
            measurement(part="host", outcome="host_oom", peak_device_bytes=None, minute=4),
            measurement(part="failed late", outcome="preempted", minute=0),
            measurement(part="failed early", outcome="data", peak_device_bytes=None, minute=5),
            measurement(part="export", kind="export", minute=6),
            *(
                measurement(part=f"other {name}", minute=7, **{name: value})
                for name, value in {
                    "model": "yolo11m",
                    "imgsz": 320,
                    "precision": "fp32",
                    "accelerator_kind": "gpu",
                    "product": "NVIDIA H100",
                }.items()
            ),
        ]
    )
    found = parts(store, PROFILE)
    assert found == ["host", "probe", "oom", "old"]
    assert parts(store, PROFILE, limit=2) == [
        "host",
        "probe",
        "oom",
    ]  # failures are kept beside the newest


def test_evidence_of_the_same_time_is_in_a_fixed_order(store: ProfileStore):
    store.record([measurement(part=str(number)) for number in range(5)])
    assert parts(store, PROFILE) == ["4", "3", "2", "1", "0"]


def test_evidence_of_one_number_of_classes(store: ProfileStore):
    store.record([measurement(part="three"), measurement(part="eighty", classes=80)])
    assert parts(store, replace(PROFILE, classes=80)) == ["eighty"]
    assert len(store.evidence(PROFILE)) == 2


@pytest.mark.parametrize("product", ["", None])
def test_a_cpu_has_no_product(store: ProfileStore, product: str | None):
    store.record([measurement(accelerator_kind="cpu", product=product)])
    assert len(store.evidence(replace(PROFILE, accelerator_kind="cpu", product=""))) == 1
    assert only(store).product is None


def test_evidence_is_what_was_measured(store: ProfileStore):
    store.record([unusual(*tables.EVIDENCE_KEY)])
    (found,) = store.evidence(PROFILE)
    (stored,) = store.measurements("yolo", "manual__1")
    assert found.id == stored.id
    assert {name: getattr(found, name) for name in EvidenceRow._fields if name != "id"} == {
        name: getattr(stored.row, name) for name in EvidenceRow._fields if name != "id"
    }


@pytest.mark.parametrize("product", [PROFILE.product, ""])
@pytest.mark.parametrize("classes", [None, 3])
def test_evidence_is_read_from_an_index_in_its_order(store: ProfileStore, classes: int | None, product: str):
    seen: list[tuple[str, Any]] = []
    sa.event.listen(
        store.engine,
        "before_cursor_execute",
        lambda c, cursor, sql, values, *rest: seen.append((sql, values)),
    )
    store.evidence(replace(PROFILE, classes=classes, product=product))
    ((sql, values),) = (statement for statement in seen if statement[0].startswith("SELECT"))
    plan = plan_of(store, sql, values)
    for index in ("ix_measurement_evidence", "ix_measurement_memory_failure"):
        assert f"using {index}{'_classes' if classes else ''} " in plan
    assert "temp b-tree" not in plan
    assert "sort" not in plan


def plan_of(store: ProfileStore, sql: str, values: Any) -> str:
    """How the database would run a query, in small letters."""
    with store.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)
            return " ".join(row.detail for row in rows).lower().replace("using index", "using")
        # Of a table without rows, Postgres would rather read and sort all.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        return " ".join(connection.exec_driver_sql(f"EXPLAIN {sql}", values).scalars()).lower()


def test_what_ran_out_of_memory_is_not_forgotten(store: ProfileStore):
    store.record([measurement(part="failed", outcome="gpu_oom", batch=24, minute=0)])
    store.record([measurement(part=f"later {number}", batch=8, minute=1) for number in range(80)])
    found = store.evidence(PROFILE)
    assert len(found) == 51
    assert (found[-1].outcome, found[-1].batch) == ("gpu_oom", 24)


def test_frames_keep_integers_times_and_nothing_else(store: ProfileStore):
    store.record([measurement(), measurement(part="b", peak_device_bytes=None, minute=1)], [epoch(1)], [MODEL])
    store.decide(decision())
    for name in FRAME_NAMES:
        frame = store.frame(name)
        assert list(frame.columns), name
    frame = store.frame("measurement")
    assert list(frame["part"]) == ["b", "train"]
    assert str(frame["peak_device_bytes"].dtype) == "Int64"
    assert frame["finished_at"][1] == NOON
    assert str(frame["read_bytes"].dtype) == "Int64"
    assert str(frame["iowait_percent"].dtype) == "Float64"
    assert store.frame("oom_history").empty
    for name in FRAME_NAMES:
        whole, none = store.frame(name), store.frame(name, limit=0)
        assert dict(whole.dtypes.astype(str)) == dict(none.dtypes.astype(str)), name
    assert store.frame("epoch")["losses"][0] == {}
    assert store.frame("prediction_error")["finished_at"][0].utcoffset() == timedelta(0)
    assert len(store.frame("measurement", limit=1)) == 1


@pytest.mark.parametrize("name", ["", "measurement; DROP TABLE model", "sqlite_master", "MODEL"])
def test_frames_of_other_names_are_refused(store: ProfileStore, name: str):
    with pytest.raises(ValueError, match="expected one of model, measurement"):
        store.frame(name)


def test_a_database_that_cannot_be_written_is_named(store: ProfileStore):
    with store.engine.begin() as connection:
        for view in ("prediction_error", "decision_history"):
            connection.exec_driver_sql(f"DROP VIEW {view}")
        connection.exec_driver_sql("DROP TABLE decision")
    name = re.escape(migrate.describe(store.engine))
    missing = "(no such table: decision|relation .decision. does not exist)"
    with pytest.raises(StoreError, match=f"cannot write to the profile store {name}: {missing}"):
        store.decide(decision())
    with pytest.raises(StoreError, match=f"cannot read the profile store {name}: {missing}"):
        store.decisions("yolo", "manual__1")


def test_relatives_are_the_newest_trainings_on_a_kind_of_device(store: ProfileStore):
    store.record(
        [
            measurement(part="old", minute=1),
            measurement(part="new", minute=3, model="yolo11m", objects_mean=4.5),
            measurement(part="probe", kind="probe", minute=4),
            measurement(part="failed", outcome="gpu_oom", minute=5),
            measurement(part="unmeasured", peak_device_bytes=None, minute=6),
            measurement(part="elsewhere", product="NVIDIA H100", minute=7),
            measurement(part="cpu", accelerator_kind="cpu", product=None, minute=8),
        ]
    )
    found = store.relatives(PROFILE.accelerator_kind, PROFILE.product)
    assert [(row.model, row.objects_mean) for row in found] == [("yolo11m", 4.5), ("yolo11n", None)]
    assert [row.model for row in store.relatives(PROFILE.accelerator_kind, PROFILE.product, limit=1)] == ["yolo11m"]
    assert len(store.relatives("cpu", "")) == 1


@pytest.mark.parametrize("product", ["NVIDIA A100-SXM4-40GB", ""])
def test_relatives_are_read_from_an_index_in_its_order(store: ProfileStore, product: str):
    seen: list[tuple[str, Any]] = []
    sa.event.listen(
        store.engine,
        "before_cursor_execute",
        lambda c, cursor, sql, values, *rest: seen.append((sql, values)),
    )
    store.relatives("mig", product)
    ((sql, values),) = (statement for statement in seen if statement[0].startswith("SELECT"))
    plan = plan_of(store, sql, values)
    assert "using ix_measurement_relative " in plan
    assert "temp b-tree" not in plan
    assert "sort" not in plan
