"""The preprocess job: check a data set, report what is wrong with it, and prepare what can be trained on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from yolo_airflow_provider.contract import DatasetSummary, JobSpec, PreprocessJob
from yolo_airflow_provider.worker.dataset.errors import DatasetError
from yolo_airflow_provider.worker.dataset.faults import Fault, Finding
from yolo_airflow_provider.worker.dataset.files import explained
from yolo_airflow_provider.worker.dataset.fingerprint import Entry, fingerprint
from yolo_airflow_provider.worker.dataset.known import known_path, load_known, save_known
from yolo_airflow_provider.worker.dataset.labels import TASKS, label_path
from yolo_airflow_provider.worker.dataset.prepare import FOLDER, Prepared, prepare
from yolo_airflow_provider.worker.dataset.report import (
    REPORT,
    build_report,
    by_fault,
    fault_counts,
    fault_line,
    printable,
    summary_lines,
    write_report,
)
from yolo_airflow_provider.worker.dataset.scan import Log, Scan, object_statistics, scan
from yolo_airflow_provider.worker.dataset.source import Source, dataset_name, read_source


def preprocess(
    spec: JobSpec, job: PreprocessJob, log: Log, check_fence: Callable[[], None] = lambda: None
) -> DatasetSummary:
    """Check the data set of `job`, write `report.json` and a prepared data set, and summarise.

    The source is only read. A second run of the same data reuses what the first one wrote.

    Args:
        spec: whose workspace and run folder are written to.
        job: which data set, for which task.
        log: takes plain lines.
        check_fence: raises where a later try has taken the run's folder. The prepared data set itself is named by its
            content and takes its place in one step, so that two tries that write it write the same.

    Raises:
        DatasetError: data.yaml is wrong, no usable image remains in train or val, train has no object, or the
            workspace cannot be written. Where images were looked at, the report is written first.
    """
    _refuse_task(job.task)
    source = read_source(job.data)
    _refuse_missing_keypoints(source, job.task)
    # Its path becomes part of data.yaml, which has to work from every folder.
    workspace = Path(os.path.abspath(spec.workspace))
    run_folder = Path(spec.run_folder)
    found = _scan_remembering(source, job.task, workspace, log)
    for line in summary_lines(source, found):
        log(line)
    identity = fingerprint(
        (Entry(item.split, item.relative, item.image.sha256, item.rows) for item in found.items),
        names=source.names,
        task=job.task,
        settings=source.settings,
    )
    try:
        _refuse_unusable(source, found)
    except DatasetError:
        check_fence()
        write_report(run_folder, build_report(source, found, task=job.task, fingerprint=identity, prepared=None))
        raise
    name = dataset_name(job.data)
    check_fence()
    prepared = prepare(source, found.items, identity, name=name, workspace=workspace, copy_images=job.copy_images)
    report = build_report(source, found, task=job.task, fingerprint=identity, prepared=prepared.data_yaml)
    check_fence()
    write_report(run_folder, report)
    log(f"{'reused' if prepared.reused else 'wrote'} {prepared.folder}; full report in {run_folder / REPORT}")
    return _summary(source, found, identity, name, prepared, workspace)


def _summary(
    source: Source, found: Scan, identity: str, name: str, prepared: Prepared, workspace: Path
) -> DatasetSummary:
    train = found.split("train")
    objects = object_statistics(train)
    return DatasetSummary(
        name=name,
        fingerprint=identity,
        classes=len(source.names),
        train_images=len(train),
        val_images=len(found.split("val")),
        train_objects=objects.total,
        size_bytes=sum(item.image.size_bytes for item in found.items),
        objects_mean=objects.mean,
        objects_median=objects.median,
        objects_p95=objects.p95,
        objects_max=objects.maximum,
        faults=fault_counts(found.findings),
        data_yaml=prepared.data_yaml.relative_to(workspace).as_posix(),
        report=REPORT,
    )


def _scan_remembering(source: Source, task: str, workspace: Path, log: Log) -> Scan:
    memory = known_path(workspace / FOLDER, source.root)
    known = load_known(memory)
    found = scan(source, task, log, known)
    if found.known != known:
        with explained(memory.parent):
            save_known(memory, found.known)
    return found


def _refuse_task(task: str) -> None:
    if task == "classify":
        raise DatasetError(
            "task='classify' has no data.yaml and no label files, so there is nothing here to check",
            "classification data sets are folders of images by class; train on them without preprocessing",
        )
    if task not in TASKS:
        raise DatasetError(f"task={task!r} is not known", f"use one of {', '.join(TASKS)}")


def _refuse_missing_keypoints(source: Source, task: str) -> None:
    if task == "pose" and source.kpt_shape is None:
        raise DatasetError(
            f"{source.yaml_path}: the key 'kpt_shape' is missing, which task='pose' needs",
            "add `kpt_shape: [17, 3]`: keypoints an object, and 2 or 3 values each",
        )


def _refuse_unusable(source: Source, found: Scan) -> None:
    for split in ("train", "val"):
        if not found.split(split):
            groups = by_fault(f for f in found.findings if f.split == split and _stops_image(f.fault))
            reasons = "; ".join(fault_line(fault, findings) for fault, findings in groups[:3])
            raise DatasetError(
                printable(
                    f"{source.yaml_path}: none of the {found.found[split]:,} {split} images can be used:"
                    f" {reasons}; {_example(groups)}"
                ),
                groups[0][0].sentence,
            )
    if not object_statistics(found.split("train")).total:
        example = label_path(source.splits["train"][0])
        raise DatasetError(
            f"{source.yaml_path}: none of the {len(found.split('train')):,} train images has an object to"
            f" learn; labels of the first would be in {example}",
            "put the labels there: the last folder named images in an image's path becomes labels",
        )


def _stops_image(fault: Fault) -> bool:
    return fault is Fault.IMAGE_MISSING or (fault.unsafe and fault is not Fault.IMAGE_LEFT_OUT)


def _example(groups: Sequence[tuple[Fault, Sequence[Finding]]]) -> str:
    first = groups[0][1][0]
    return f"the first is {first.place}: {first.detail}"
