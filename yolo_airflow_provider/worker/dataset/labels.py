"""One label file: which rows the trainer would take, and what is wrong with the others. Pure functions.

The trainer (Ultralytics, data/utils.py) drops a whole image for one bad row, and only says so in its log.
The rules here are its rules, in the same 32 bit numbers, so that a row that is kept is a row that it takes.
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from yolo_airflow_provider.worker.dataset.faults import Fault

TASKS = ("detect", "segment", "pose", "obb")

# The trainer's tolerance of 1 % of the image, rounded as it rounds.
_LOW, _HIGH = struct.unpack("2f", struct.pack("2f", -0.01, 1.01))
# float() takes more than label files are meant to hold: "nan", "1_000", digits of other scripts.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DETAIL_LENGTH = 80

_Row = tuple[float, ...]


@dataclass(frozen=True)
class Schema:
    """What a row has to look like.

    Attributes:
        task: one of `TASKS`.
        classes: number of classes; valid ones are 0 to classes - 1.
        kpt_shape: keypoints and values a keypoint (2 or 3), for pose only.
    """

    task: str
    classes: int
    kpt_shape: tuple[int, int] | None = None

    def fits(self, columns: int) -> bool:
        """Whether a row may have this many columns."""
        if self.task == "segment":
            return columns >= 7 and columns % 2 == 1
        return columns == self._columns

    @property
    def expected(self) -> str:
        """The columns that a row has to have, for people."""
        return "a class and at least 3 points" if self.task == "segment" else f"{self._columns} columns"

    @property
    def polygons(self) -> bool:
        """True when a row is a class and the corners of a polygon."""
        return self.task in ("segment", "obb")

    @property
    def _columns(self) -> int:
        if self.task == "obb":
            return 9
        return 5 + (self.kpt_shape[0] * self.kpt_shape[1] if self.task == "pose" and self.kpt_shape else 0)


@dataclass(frozen=True)
class RowFault:
    """A fault in one line (counted from 1; None: the whole file) and the text that was found."""

    fault: Fault
    line: int | None
    detail: str


@dataclass(frozen=True)
class LabelCheck:
    """The result of one label file.

    Attributes:
        rows: the rows that the trainer takes, as text: class as an integer, numbers as they were written.
        faults: everything that was found, in the order of lines.
    """

    rows: tuple[str, ...] = ()
    faults: tuple[RowFault, ...] = ()

    @property
    def usable(self) -> bool:
        """False when the trainer would throw the image away."""
        return not any(found.fault.unsafe for found in self.faults)

    @property
    def text(self) -> str:
        """The rows as a label file."""
        return "".join(f"{row}\n" for row in self.rows)


def label_path(image: Path) -> Path:
    """Where the labels of an image are: its last folder named images becomes labels, its suffix .txt."""
    head, found, tail = str(image).rpartition(f"{os.sep}images{os.sep}")
    path = f"{head}{os.sep}labels{os.sep}{tail}" if found else str(image)
    return Path(os.path.splitext(path)[0] + ".txt")


def check_label_bytes(raw: bytes, schema: Schema) -> LabelCheck:
    """Check the bytes of a label file; UTF-8 with or without a byte order mark."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return LabelCheck(faults=(RowFault(Fault.UNREADABLE, line, f"byte {raw[error.start]:#04x}"),))
    return check_label_text(text, schema)


def check_label_text(text: str, schema: Schema) -> LabelCheck:
    """Check the text of a label file. Never raises: every text has a result."""
    rows: list[str] = []
    faults: list[RowFault] = []
    seen: set[_Row] = set()
    for line, content in enumerate(text.splitlines(), start=1):
        tokens = content.split()
        if not tokens:
            continue
        values, found = _check_row(tokens, schema)
        if found is None or found is Fault.BOX_CROSSES_BORDER:
            if values in seen:
                found = Fault.DUPLICATE_ROW
            else:
                seen.add(values)
                rows.append(" ".join((str(int(values[0])), *tokens[1:])))
        if found is not None:
            faults.append(RowFault(found, line, _detail(tokens, found, schema)))
    if not rows and not faults:
        faults.append(RowFault(Fault.LABEL_EMPTY, None, ""))
    return LabelCheck(rows=tuple(rows), faults=tuple(faults))


def _check_row(tokens: list[str], schema: Schema) -> tuple[_Row, Fault | None]:
    """The row's numbers, and the first fault that it has."""
    if not schema.fits(len(tokens)):
        return (), Fault.WRONG_COLUMNS
    if not all(map(_NUMBER.fullmatch, tokens)):
        return (), Fault.NOT_A_NUMBER
    try:
        values = _in_32_bits([float(token) for token in tokens])
    except OverflowError:
        return (), Fault.NOT_A_NUMBER
    if not all(map(math.isfinite, values)):
        return (), Fault.NOT_A_NUMBER
    if not values[0].is_integer():
        return (), Fault.CLASS_NOT_INTEGER
    if not 0 <= values[0] < schema.classes:
        return (), Fault.CLASS_OUT_OF_RANGE
    return values, _check_place(values, schema)


def _in_32_bits(values: list[float]) -> _Row:
    """Rounded as the trainer's arrays hold them. Plain floats: for five numbers numpy is ten times slower."""
    layout = f"{len(values)}f"
    return struct.unpack(layout, struct.pack(layout, *values))


def _check_place(values: _Row, schema: Schema) -> Fault | None:
    """Whether box, polygon or keypoints lie in the image."""
    x, y, width, height = _box(values, polygon=schema.polygons)
    if not (_LOW <= x <= _HIGH and _LOW <= y <= _HIGH and width <= _HIGH and height <= _HIGH):
        return Fault.OUTSIDE_IMAGE
    if schema.task == "pose" and schema.kpt_shape is not None:
        step = schema.kpt_shape[1]
        places = (*values[5::step], *values[6::step])
        if min(places) < _LOW or max(places) > _HIGH or (step == 3 and min(values[7::step]) < 0):
            return Fault.OUTSIDE_IMAGE
    if width <= 0 or height <= 0:
        return Fault.EMPTY_BOX
    edges = (x - width / 2, x + width / 2, y - height / 2, y + height / 2)
    return Fault.BOX_CROSSES_BORDER if min(edges) < _LOW or max(edges) > _HIGH else None


def _box(values: _Row, *, polygon: bool) -> tuple[float, float, float, float]:
    """Centre and size of the row's box, as the trainer computes them."""
    if not polygon:
        return values[1], values[2], values[3], values[4]
    left, right = min(values[1::2]), max(values[1::2])
    top, bottom = min(values[2::2]), max(values[2::2])
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def _detail(tokens: list[str], fault: Fault, schema: Schema) -> str:
    text = " ".join(tokens)
    shown = text if len(text) <= _DETAIL_LENGTH else text[: _DETAIL_LENGTH - 1] + "…"
    if fault is Fault.CLASS_OUT_OF_RANGE:
        return f"{shown} (classes are 0 to {schema.classes - 1})"
    if fault is Fault.WRONG_COLUMNS:
        return f"{shown} ({len(tokens)} columns; {schema.task} needs {schema.expected})"
    return shown
