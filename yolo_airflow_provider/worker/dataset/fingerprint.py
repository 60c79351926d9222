"""What a data set is, as one number: equal for equal content wherever and whenever it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """One image that is used.

    Attributes:
        split: train, val or test.
        path: relative to the data set's root.
        image_sha256: of the image file's bytes, hexadecimal.
        rows: the label rows that are used.
    """

    split: str
    path: str
    image_sha256: str
    rows: Sequence[str]


def fingerprint(
    entries: Iterable[Entry],
    *,
    names: Mapping[int, str],
    task: str,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """SHA-256, hexadecimal, over all that is used: images, label rows, splits, class names and task.

    Independent of where the data set lies, of file times, and of the order of `entries`.
    """
    head = [_FORMAT, task, sorted(names.items()), dict(settings or {})]
    lines = sorted(_line([e.split, e.path, e.image_sha256, _digest(e.rows)]) for e in entries)
    total = hashlib.sha256(_line(head))
    for line in lines:
        total.update(line)
    return total.hexdigest()


def _digest(rows: Sequence[str]) -> str:
    return hashlib.sha256(_line(list(rows))).hexdigest()


def _line(value: object) -> bytes:
    # JSON keeps neighbouring texts apart, and writes names that are not UTF-8 as escapes.
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"
