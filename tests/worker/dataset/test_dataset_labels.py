from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from yolo_airflow_provider.worker.dataset.faults import Action, Fault
from yolo_airflow_provider.worker.dataset.labels import (
    LabelCheck,
    Schema,
    check_label_bytes,
    check_label_text,
    label_path,
)

DETECT = Schema("detect", classes=3)
SEGMENT = Schema("segment", classes=3)
OBB = Schema("obb", classes=3)
POSE = Schema("pose", classes=3, kpt_shape=(2, 3))
SCHEMAS = (DETECT, SEGMENT, OBB, POSE)


def faults(check: LabelCheck) -> list[tuple[Fault, int | None]]:
    return [(found.fault, found.line) for found in check.faults]


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_has_a_meaning(fault: Fault) -> None:
    assert fault.sentence.endswith(".")
    assert isinstance(fault.action, Action)


def test_only_rows_without_information_are_dropped() -> None:
    assert {fault for fault in Fault if fault.action is Action.DROPPED} == {
        Fault.EMPTY_BOX,
        Fault.DUPLICATE_ROW,
    }


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("3 0.5 0.5 0.1 0.1", Fault.CLASS_OUT_OF_RANGE),
        ("-1 0.5 0.5 0.1 0.1", Fault.CLASS_OUT_OF_RANGE),
        ("0.5 0.5 0.5 0.1 0.1", Fault.CLASS_NOT_INTEGER),
        ("0 0.5 0.5 0.1", Fault.WRONG_COLUMNS),
        ("0 0.5 0.5 0.1 0.1 0.9", Fault.WRONG_COLUMNS),
        ("0 0.1 0.1 0.2 0.1 0.2 0.2", Fault.WRONG_COLUMNS),
        ("cat 0.5 0.5 0.1 0.1", Fault.NOT_A_NUMBER),
        ("0 nan 0.5 0.1 0.1", Fault.NOT_A_NUMBER),
        ("0 0.5 inf 0.1 0.1", Fault.NOT_A_NUMBER),
        ("0 0.5 1e999 0.1 0.1", Fault.NOT_A_NUMBER),
        ("0 0.5 1e39 0.1 0.1", Fault.NOT_A_NUMBER),
        ("0 0.5 0.5 0,1 0.1", Fault.NOT_A_NUMBER),
        ("1_0 0.5 0.5 0.1 0.1", Fault.NOT_A_NUMBER),
        ("0 1.02 0.5 0.1 0.1", Fault.OUTSIDE_IMAGE),
        ("0 -0.02 0.5 0.1 0.1", Fault.OUTSIDE_IMAGE),
        ("0 320 240 64 48", Fault.OUTSIDE_IMAGE),
        ("0 0.5 0.5 1.02 0.1", Fault.OUTSIDE_IMAGE),
    ],
)
def test_a_bad_row_makes_the_image_unusable(row: str, fault: Fault) -> None:
    check = check_label_text(f"0 0.5 0.5 0.2 0.2\n{row}\n", DETECT)
    assert faults(check) == [(fault, 2)]
    assert row in check.faults[0].detail
    assert not check.usable


@pytest.mark.parametrize("row", ["0 0.5 0.5 0 0.1", "0 0.5 0.5 0.1 -0.1", "0 0.5 0.5 0.1 1e-60"])
def test_an_empty_box_is_dropped(row: str) -> None:
    check = check_label_text(f"{row}\n1 0.5 0.5 0.1 0.1", DETECT)
    assert faults(check) == [(Fault.EMPTY_BOX, 1)]
    assert check.rows == ("1 0.5 0.5 0.1 0.1",)
    assert check.usable


def test_a_repeated_row_is_dropped_however_it_is_written() -> None:
    check = check_label_text("0 0.5 0.5 0.1 0.1\n\n0.0 .5 0.50 1e-1 0.1\n1 0.5 0.5 0.1 0.1\n", DETECT)
    assert faults(check) == [(Fault.DUPLICATE_ROW, 3)]
    assert check.rows == ("0 0.5 0.5 0.1 0.1", "1 0.5 0.5 0.1 0.1")


@pytest.mark.parametrize("row", ["0 0.05 0.5 0.2 0.1", "0 0.5 0.98 0.2 0.1", "0 1.005 0.5 0.1 0.1"])
def test_a_box_over_the_border_is_kept_and_reported(row: str) -> None:
    check = check_label_text(row, DETECT)
    assert faults(check) == [(Fault.BOX_CROSSES_BORDER, 1)]
    assert check.rows == (row,)
    assert check.usable


@pytest.mark.parametrize("row", ["0 0.5 0.5 1 1", "0 0.5 0.5 1.01 1.01", "2 0.05 0.05 0.11 0.1", "1 0 0 0.01 0.01"])
def test_the_tolerance_is_the_trainers(row: str) -> None:
    assert check_label_text(row, DETECT) == LabelCheck(rows=(row,))


def test_rows_are_normalised_but_their_numbers_are_not_touched() -> None:
    check = check_label_text("  1.0\t0.123456789  .5 +0.1 1e-1 \r\n", DETECT)
    assert check.rows == ("1 0.123456789 .5 +0.1 1e-1",)
    assert check.text == "1 0.123456789 .5 +0.1 1e-1\n"


@pytest.mark.parametrize("raw", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_is_background(raw: bytes) -> None:
    check = check_label_bytes(raw, DETECT)
    assert faults(check) == [(Fault.LABEL_EMPTY, None)]
    assert check.usable


def test_a_byte_order_mark_is_accepted_and_other_encodings_are_not() -> None:
    assert check_label_bytes(b"\xef\xbb\xbf0 0.5 0.5 0.1 0.1", DETECT).rows == ("0 0.5 0.5 0.1 0.1",)
    check = check_label_bytes(b"0 0.5 0.5 0.1 0.1\n0 \xff", DETECT)
    assert faults(check) == [(Fault.UNREADABLE, 2)]
    assert not check.usable


@pytest.mark.parametrize(
    ("schema", "row", "fault"),
    [
        (SEGMENT, "0 0.1 0.1 0.4 0.1 0.4 0.4", None),
        (SEGMENT, "0 0.1 0.1 0.4 0.1 0.4 0.4 0.2 0.3", None),
        (SEGMENT, "0 0.5 0.5 0.1 0.1", Fault.WRONG_COLUMNS),
        (SEGMENT, "0 0.1 0.1 0.4 0.1 0.4 0.4 0.2", Fault.WRONG_COLUMNS),
        (SEGMENT, "0 0.1 0.1 0.4 0.1 0.2 0.1", Fault.EMPTY_BOX),
        (SEGMENT, "0 10 10 40 10 40 40", Fault.OUTSIDE_IMAGE),
        (SEGMENT, "0 -0.1 0.1 0.4 0.1 0.4 0.4", Fault.BOX_CROSSES_BORDER),
        (SEGMENT, "0 3e38 0.1 3e38 0.1 0.4 0.4", Fault.OUTSIDE_IMAGE),
        (OBB, "0 0.1 0.1 0.4 0.1 0.4 0.4 0.1 0.4", None),
        (OBB, "0 0.1 0.1 0.4 0.1 0.4 0.4", Fault.WRONG_COLUMNS),
        (POSE, "0 0.5 0.5 0.4 0.4 0.4 0.4 2 0.6 0.6 0", None),
        (POSE, "0 0.5 0.5 0.4 0.4 0.4 0.4 2 1.6 0.6 0", Fault.OUTSIDE_IMAGE),
        (POSE, "0 0.5 0.5 0.4 0.4 0.4 0.4 -1 0.6 0.6 0", Fault.OUTSIDE_IMAGE),
        (POSE, "0 0.5 0.5 0.4 0.4", Fault.WRONG_COLUMNS),
    ],
)
def test_other_tasks(schema: Schema, row: str, fault: Fault | None) -> None:
    assert faults(check_label_text(row, schema)) == ([] if fault is None else [(fault, 1)])


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("/d/images/train/a.b.jpg", "/d/labels/train/a.b.txt"),
        ("/images/x/images/a.JPG", "/images/x/labels/a.txt"),
        ("/d/train/a.png", "/d/train/a.txt"),
        ("/d/my_images/a.png", "/d/my_images/a.txt"),
    ],
)
def test_labels_are_where_the_trainer_looks(image: str, label: str) -> None:
    assert label_path(Path(image)) == Path(label)


def taken_by_the_trainer(rows: tuple[str, ...], schema: Schema) -> bool:
    """The trainer's rules for a whole file, as assertions on one array."""
    table = np.array([row.split() for row in rows], dtype=np.float32) if schema.task != "segment" else None
    for number, row in enumerate(rows):
        values = np.array(row.split(), dtype=np.float32) if table is None else table[number]
        if schema.polygons:
            points = values[1:].reshape(-1, 2)
            low, high = points.min(0), points.max(0)
            checked = limited = np.concatenate(((low + high) / 2, high - low))
        else:
            checked = values[1:]
            limited = checked[:4] if schema.task == "detect" else values[5:].reshape(2, 3)[:, :2]
        if not (limited.max() <= 1.01 and checked.min() >= -0.01 and checked[2:4].min() > 0):
            return False
        if not (values[0] % 1 == 0 and 0 <= values[0] < schema.classes):
            return False
    return len({tuple(map(float, row.split())) for row in rows}) == len(rows)


numbers = st.one_of(
    st.floats(-0.05, 1.05).map(repr),
    st.sampled_from(
        ["0", "1", "2", "3", "-0", "1.0", "1.01", "1.0100001", "-0.01", "nan", "1e400", "x", "0.5", "1e-46"]
    ),
)
rows = st.lists(numbers, min_size=1, max_size=12).map(" ".join)
good = st.tuples(st.integers(0, 2), *[st.floats(0.0, 1.0, width=32) for _ in range(4)]).map(
    lambda row: " ".join(map(str, row))
)
files = st.lists(st.one_of(rows, good, st.just("")), max_size=8).map("\n".join)


@given(text=st.one_of(st.text(), files), schema=st.sampled_from(SCHEMAS))
@settings(max_examples=300, deadline=None)
def test_any_text_has_a_result_and_kept_rows_are_taken(text: str, schema: Schema) -> None:
    check = check_label_text(text, schema)
    assert taken_by_the_trainer(check.rows, schema)
    lines = text.splitlines()
    for found in check.faults:
        assert found.fault is Fault.LABEL_EMPTY or (found.line is not None and lines[found.line - 1].strip())
    kept = sum(1 for found in check.faults if found.fault is Fault.BOX_CROSSES_BORDER)
    filled = sum(1 for line in lines if line.split())
    # Every line with something in it is either kept or has exactly one fault.
    assert filled == len(check.rows) + len(check.faults) - kept or not filled


@given(raw=st.binary())
@settings(max_examples=200, deadline=None)
def test_any_bytes_have_a_result(raw: bytes) -> None:
    check_label_bytes(raw, DETECT)


@given(before=st.lists(good, max_size=5, unique=True), blank=st.integers(0, 3))
@settings(deadline=None)
def test_line_numbers_count_every_line(before: list[str], blank: int) -> None:
    lines = [*before, *[""] * blank, "9 0.5 0.5 0.1 0.1"]
    for ending in ("\n", "\r\n"):
        check = check_label_text(ending.join(lines), DETECT)
        assert check.faults[-1].fault is Fault.CLASS_OUT_OF_RANGE
        assert check.faults[-1].line == len(lines)


@given(text=files)
@settings(max_examples=150, deadline=None)
def test_what_is_kept_is_kept_again(text: str) -> None:
    first = check_label_text(text, DETECT)
    second = check_label_text(first.text, DETECT)
    assert second.rows == first.rows
    assert {found.fault for found in second.faults} <= {Fault.BOX_CROSSES_BORDER, Fault.LABEL_EMPTY}
