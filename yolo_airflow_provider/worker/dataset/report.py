"""The full report of a data set: what is used, what is not and why. Its `summary` is for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from yolo_airflow_provider.worker.dataset.faults import Action, Fault, Finding
from yolo_airflow_provider.worker.dataset.files import explained
from yolo_airflow_provider.worker.dataset.scan import Item, Scan, object_statistics
from yolo_airflow_provider.worker.dataset.source import Source
from yolo_airflow_provider.worker.files import write_atomically

REPORT = "report.json"
_SAMPLE = 20
_VERSION = 1
# Of no consequence, or told by another line.
_NOT_IN_SUMMARY = frozenset({Fault.IMAGE_LEFT_OUT, Fault.LABEL_MISSING, Fault.LABEL_EMPTY})


def build_report(source: Source, found: Scan, *, task: str, fingerprint: str, prepared: Path | None) -> dict[str, Any]:
    """The report as plain values.

    Args:
        source: the data set.
        found: what the scan found.
        task: what the labels are for.
        fingerprint: of what is used.
        prepared: the prepared data.yaml; None where nothing could be prepared.
    """
    train = found.split("train")
    statistics = object_statistics(train)
    return {
        "version": _VERSION,
        "data": str(source.yaml_path),
        "prepared": None if prepared is None else str(prepared),
        "fingerprint": fingerprint,
        "task": task,
        "names": {str(number): name for number, name in source.names.items()},
        "summary": [*summary_lines(source, found)],
        "splits": {split: _split(found, split) for split in found.found},
        "faults": [_fault(fault, findings) for fault, findings in by_fault(found.findings)],
        "train_objects": {
            "total": statistics.total,
            "mean_per_image": statistics.mean,
            "median_per_image": statistics.median,
            "p95_per_image": statistics.p95,
            "max_per_image": statistics.maximum,
            "by_class": _by_class(source, train),
        },
        "image_pixels": {
            "width": _spread([item.image.width for item in found.items]),
            "height": _spread([item.image.height for item in found.items]),
        },
    }


def write_report(run_folder: Path, report: Mapping[str, Any]) -> Path:
    """Write `report.json` into the run's folder, whole or not at all.

    Raises:
        DatasetError: the folder cannot be written.
    """
    with explained(run_folder):
        run_folder.mkdir(parents=True, exist_ok=True)
        path = run_folder / REPORT
        write_atomically(path, json.dumps(report, indent=1, default=str) + "\n")
    return path


def fault_counts(findings: Iterable[Finding], limit: int = 24) -> dict[str, int]:
    """How often each fault was found, the most frequent first."""
    return {str(fault): count for fault, count in Counter(finding.fault for finding in findings).most_common(limit)}


def summary_lines(source: Source, found: Scan) -> list[str]:
    """A few lines for the log: what is used, then one line a kind of fault with where to look."""
    used = ", ".join(f"{len(found.split(split)):,} {split}" for split in found.found)
    background = sum(1 for item in found.items if not item.rows)
    lines = [f"{used} images, {len(source.names):,} classes" + (f"; {background:,} background" if background else "")]
    left_out = sum(1 for finding in found.findings if finding.fault is Fault.IMAGE_LEFT_OUT)
    if left_out:
        lines.append(f"{left_out:,} images left out of {sum(found.found.values()):,}")
    for fault, findings in by_fault(found.findings):
        if fault not in _NOT_IN_SUMMARY:
            lines.append(fault_line(fault, findings))
    return [printable(line) for line in (*lines, *source.notes)]


def fault_line(fault: Fault, findings: Sequence[Finding], places: int = 2) -> str:
    """`2 x empty box, row dropped (labels/train/a.txt line 5, labels/val/b.txt line 13)`."""
    shown = ", ".join(finding.place for finding in findings[:places])
    more = ", ..." if len(findings) > places else ""
    done = "" if fault.action is Action.REPORTED else f", {fault.action}"
    return f"{len(findings):,} x {fault.replace('_', ' ')}{done} ({shown}{more})"


def printable(text: str) -> str:
    """File names that are not UTF-8 cannot be printed or encoded; their bytes are shown as escapes."""
    return text.encode(errors="backslashreplace").decode()


def by_fault(findings: Iterable[Finding]) -> list[tuple[Fault, list[Finding]]]:
    """The findings of each fault, the most frequent fault first."""
    groups: dict[Fault, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.fault, []).append(finding)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def _fault(fault: Fault, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "fault": str(fault),
        "count": len(findings),
        "done": str(fault.action),
        "meaning": fault.sentence,
        "sample": [
            {"split": f.split, "file": printable(f.file), "line": f.line, "detail": printable(f.detail)}
            for f in findings[:_SAMPLE]
        ],
    }


def _split(found: Scan, split: str) -> dict[str, int]:
    items = found.split(split)
    return {
        "images_found": found.found[split],
        "images_used": len(items),
        "background_images": sum(1 for item in items if not item.rows),
        "objects": sum(len(item.rows) for item in items),
        "size_bytes": sum(item.image.size_bytes for item in items),
    }


def _by_class(source: Source, items: Iterable[Item]) -> dict[str, int]:
    counts = Counter(int(row.partition(" ")[0]) for item in items for row in item.rows)
    return {str(number): counts[number] for number in source.names}


def _spread(values: Sequence[int]) -> dict[str, float] | None:
    if not values:
        return None
    return {"min": min(values), "median": median(values), "max": max(values)}
