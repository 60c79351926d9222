"""Every fault that a data set can have: its name, what is done about it, and a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """What is done about a fault."""

    DROPPED = "row dropped"
    """The row is not in the prepared set. Only where that cannot change what is learnt."""
    LEFT_OUT = "image left out"
    """The image and its labels are not in the prepared set: repairing it would be guessing."""
    KEPT = "kept"
    REPORTED = "reported"
    """Nothing to keep or to drop."""


class Fault(StrEnum):
    """A fault of a row, a label file or an image."""

    CLASS_OUT_OF_RANGE = "class_out_of_range"
    CLASS_NOT_INTEGER = "class_not_integer"
    WRONG_COLUMNS = "wrong_columns"
    NOT_A_NUMBER = "not_a_number"
    OUTSIDE_IMAGE = "outside_image"
    BOX_CROSSES_BORDER = "box_crosses_border"
    EMPTY_BOX = "empty_box"
    DUPLICATE_ROW = "duplicate_row"
    UNREADABLE = "unreadable"
    IMAGE_MISSING = "image_missing"
    IMAGE_CORRUPT = "image_corrupt"
    JPEG_TRUNCATED = "jpeg_truncated"
    LABEL_MISSING = "label_missing"
    LABEL_EMPTY = "label_empty"
    DUPLICATE_IMAGE = "duplicate_image"
    LEAK_TRAIN_VAL = "leak_train_val"
    IMAGE_LEFT_OUT = "image_left_out"

    @property
    def action(self) -> Action:
        """What is done about it."""
        return _MEANINGS[self][0]

    @property
    def sentence(self) -> str:
        """What it means, for a person who has not seen this name before."""
        return _MEANINGS[self][1]

    @property
    def unsafe(self) -> bool:
        """True when the image it is found in cannot be used."""
        return self.action is Action.LEFT_OUT


_MEANINGS: dict[Fault, tuple[Action, str]] = {
    Fault.CLASS_OUT_OF_RANGE: (
        Action.LEFT_OUT,
        "The class of the row is not one of the data set's; add it to names or correct the row.",
    ),
    Fault.CLASS_NOT_INTEGER: (Action.LEFT_OUT, "The class of the row is not a whole number."),
    Fault.WRONG_COLUMNS: (
        Action.LEFT_OUT,
        "The row has a number of columns that the task does not use: detect has 5 (class x y width height),"
        " obb 9, segment a class and at least 3 points, pose 5 and the keypoints of kpt_shape.",
    ),
    Fault.NOT_A_NUMBER: (Action.LEFT_OUT, "A value of the row is not a finite decimal number."),
    Fault.OUTSIDE_IMAGE: (
        Action.LEFT_OUT,
        "A coordinate is outside 0 to 1 by more than 1 %; they are fractions of the image, not pixels.",
    ),
    Fault.BOX_CROSSES_BORDER: (
        Action.KEPT,
        "The box is centred in the image but reaches out of it by more than 1 %; training clips it.",
    ),
    Fault.EMPTY_BOX: (Action.DROPPED, "The box has no area, so there is nothing to learn from it."),
    Fault.DUPLICATE_ROW: (Action.DROPPED, "The same row stands in the file before."),
    Fault.UNREADABLE: (Action.LEFT_OUT, "The label file is not UTF-8 text."),
    Fault.IMAGE_MISSING: (
        Action.REPORTED,
        "There is a label or a line in a list of images, but no such image.",
    ),
    Fault.IMAGE_CORRUPT: (
        Action.LEFT_OUT,
        "The image cannot be decoded to its end, is not of a supported format, or is under 10 pixels a side.",
    ),
    Fault.JPEG_TRUNCATED: (
        Action.KEPT,
        "The JPEG decodes but does not end with its end marker; training would rewrite it where it lies,"
        " so the prepared set has a copy with the marker.",
    ),
    Fault.LABEL_MISSING: (Action.KEPT, "The image has no label file and is used as background."),
    Fault.LABEL_EMPTY: (Action.KEPT, "The label file has no row and the image is used as background."),
    Fault.DUPLICATE_IMAGE: (Action.KEPT, "The same image, byte for byte, is in the split before."),
    Fault.LEAK_TRAIN_VAL: (
        Action.KEPT,
        "The same image, byte for byte, is in train and in val: validation looks better than it is.",
    ),
    Fault.IMAGE_LEFT_OUT: (
        Action.LEFT_OUT,
        "The image is not in the prepared set because of another fault of it or its labels.",
    ),
}


@dataclass(frozen=True)
class Finding:
    """One fault at one place.

    Attributes:
        fault: which.
        split: train, val or test.
        file: the label file or image, relative to the data set's root.
        line: line of the label file, counted from 1; None where the fault is the whole file's.
        detail: the text or value that was found.
    """

    fault: Fault
    split: str
    file: str
    line: int | None = None
    detail: str = ""

    @property
    def place(self) -> str:
        """`labels/train/a.txt line 5`."""
        return self.file if self.line is None else f"{self.file} line {self.line}"
