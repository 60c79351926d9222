"""Looks at every image and label of a data set once, in parallel, and says what is used and what is wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from yolo_airflow_provider.worker.dataset.errors import DatasetError
from yolo_airflow_provider.worker.dataset.faults import Fault, Finding
from yolo_airflow_provider.worker.dataset.images import SUFFIXES, ImageFacts, inspect_image
from yolo_airflow_provider.worker.dataset.known import Known, stamp
from yolo_airflow_provider.worker.dataset.labels import (
    LabelCheck,
    RowFault,
    Schema,
    check_label_bytes,
    label_path,
)
from yolo_airflow_provider.worker.dataset.source import SPLITS, Source

_PROGRESS_SECONDS = 5.0
# Text files that annotation tools put beside labels.
_NOT_LABELS = frozenset({"classes.txt", "obj_names.txt", "labels.txt", "predefined_classes.txt"})

Log = Callable[[str], None]


@dataclass(frozen=True)
class Item:
    """One image that is used.

    Attributes:
        split: train, val or test.
        path: where the image is.
        relative: the same below the data set's root.
        image: what it is.
        rows: its label rows; none for a background image.
    """

    split: str
    path: Path
    relative: str
    image: ImageFacts
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Scan:
    """What was found.

    Attributes:
        items: the images that are used, by split and path.
        found: number of images that each split names, used or not.
        findings: every fault, in the order of splits and files.
        known: what to remember of the images for the next run.
    """

    items: tuple[Item, ...]
    found: Mapping[str, int]
    findings: tuple[Finding, ...]
    known: Known

    def split(self, name: str) -> tuple[Item, ...]:
        """The used images of one split."""
        return tuple(item for item in self.items if item.split == name)


@dataclass(frozen=True)
class ObjectStatistics:
    """Objects an image over one split; background images count as 0."""

    total: int
    mean: float
    median: float
    p95: float
    maximum: int


def object_statistics(items: Iterable[Item]) -> ObjectStatistics:
    """Count label rows an image; all zero where there is no image."""
    counts = np.array([len(item.rows) for item in items] or [0])
    return ObjectStatistics(
        total=int(counts.sum()),
        mean=round(float(counts.mean()), 3),
        median=float(np.median(counts)),
        p95=round(float(np.percentile(counts, 95)), 3),
        maximum=int(counts.max()),
    )


def scan(source: Source, task: str, log: Log, known: Known | None = None) -> Scan:
    """Read and check every image and label of a data set.

    Args:
        source: the data set.
        task: what the labels are for, one of `labels.TASKS`.
        log: takes a line of progress every few seconds.
        known: what an earlier scan remembered; images that have not changed since are not read again.

    Raises:
        DatasetError: a file is there and cannot be read (rights, a broken volume).
    """
    schema = Schema(task, len(source.names), source.kpt_shape)
    work = [(split, path) for split in SPLITS for path in source.splits.get(split, ())]
    remembered = known or {}
    # A few more than cores: on a network volume a thread mostly waits.
    with ThreadPoolExecutor(max_workers=min(32, len(os.sched_getaffinity(0)) + 4)) as pool:
        looks = list(_progress(pool.map(lambda job: _look(job[0], job[1], schema, remembered), work), len(work), log))
    judged = [_judge(source, look) for look in looks]
    items = tuple(item for item, _ in judged if item is not None)
    findings = [finding for _, found in judged for finding in found]
    findings += _repeated(items)
    findings += _labels_without_image(source, schema)
    order = {split: number for number, split in enumerate(SPLITS)}
    findings.sort(key=lambda finding: (order[finding.split], finding.file, finding.line or 0, finding.fault))
    return Scan(
        items=items,
        found={split: len(paths) for split, paths in source.splits.items()},
        findings=tuple(findings),
        known={str(look.path): (look.stamp, look.image) for look in looks if look.image is not None},
    )


@dataclass(frozen=True)
class _Look:
    """One image and its labels as they are on the disk; None where there is no such file."""

    split: str
    path: Path
    stamp: str
    image: ImageFacts | None
    labels: LabelCheck | None


def _look(split: str, path: Path, schema: Schema, known: Known) -> _Look:
    try:
        mark = stamp(path.stat())
        before, facts = known.get(str(path), ("", None))
        image = facts if before == mark else inspect_image(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return _Look(split, path, "", None, None)
    except OSError as error:
        raise _unreadable(path, error) from error
    return _Look(split, path, mark, image, _labels(label_path(path), schema))


def _labels(path: Path, schema: Schema) -> LabelCheck | None:
    try:
        return check_label_bytes(path.read_bytes(), schema)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DatasetError:
    # Leaving out what a broken mount does not give would train on less data without a word.
    return DatasetError(
        f"{path} cannot be read by user {os.getuid()}: {error.strerror}",
        "make the data set readable for this user, and check its volume",
    )


def _judge(source: Source, look: _Look) -> tuple[Item | None, list[Finding]]:
    """Whether an image is used, and all that is wrong with it and its labels."""
    relative = source.relative(look.path)
    labels_relative = source.relative(label_path(look.path))
    image, labels = look.image, look.labels
    if image is None:
        return None, [Finding(Fault.IMAGE_MISSING, look.split, relative, None, "listed, but not there")]
    findings = [] if image.fault is None else [Finding(image.fault, look.split, relative, None, image.detail)]
    if labels is None:
        findings.append(Finding(Fault.LABEL_MISSING, look.split, relative, None, f"no {labels_relative}"))
        labels = LabelCheck()
    findings += [_finding(look.split, labels_relative, found) for found in labels.faults]
    if image.usable and labels.usable:
        return Item(look.split, look.path, relative, image, labels.rows), findings
    reasons = sorted({finding.fault for finding in findings if finding.fault.unsafe})
    findings.append(Finding(Fault.IMAGE_LEFT_OUT, look.split, relative, None, ", ".join(reasons)))
    return None, findings


def _finding(split: str, file: str, found: RowFault) -> Finding:
    return Finding(found.fault, split, file, found.line, found.detail)


def _repeated(items: Iterable[Item]) -> Iterator[Finding]:
    """Images whose bytes came before: in the same split, or in train and now in val."""
    first: dict[tuple[str, str], str] = {}
    for item in items:
        digest = item.image.sha256
        before = first.get((item.split, digest))
        if before is None:
            first[item.split, digest] = item.relative
        else:
            yield Finding(Fault.DUPLICATE_IMAGE, item.split, item.relative, None, f"same as {before}")
        in_train = first.get(("train", digest))
        if item.split == "val" and in_train is not None:
            yield Finding(Fault.LEAK_TRAIN_VAL, item.split, item.relative, None, f"same as {in_train} in train")


def _labels_without_image(source: Source, schema: Schema) -> Iterator[Finding]:
    """Label files beside the used ones that no image belongs to, in any split."""
    folders: dict[Path, tuple[str, Path]] = {}
    expected: set[Path] = set()
    for split in SPLITS:
        for image in source.splits.get(split, ()):
            label = label_path(image)
            expected.add(label)
            folders.setdefault(label.parent, (split, image.parent))
    for folder, (split, images) in folders.items():
        spare = sorted(path for path in _text_files(folder) if path not in expected)
        stems = {Path(name).stem for name in _names(images) if Path(name).suffix.lower() in SUFFIXES}
        for path in spare:
            if path.stem in stems or path.name in _NOT_LABELS:
                continue
            # Beside images there may be any text: only what reads as labels is a label.
            labels = _labels(path, schema) if folder == images else None
            if folder != images or (labels is not None and labels.rows):
                yield Finding(Fault.IMAGE_MISSING, split, source.relative(path), None, "label without an image")


def _text_files(folder: Path) -> Iterator[Path]:
    return (folder / name for name in _names(folder) if name.endswith(".txt") and not name.startswith("."))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error


def _progress(looks: Iterable[_Look], total: int, log: Log) -> Iterator[_Look]:
    last = time.monotonic()
    for number, look in enumerate(looks, start=1):
        yield look
        now = time.monotonic()
        if now - last >= _PROGRESS_SECONDS:
            last = now
            log(f"checked {number:,} of {total:,} images ({100 * number // total} %)")
