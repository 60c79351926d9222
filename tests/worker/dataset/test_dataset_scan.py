from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.worker.dataset import scan as scan_module
from yolo_airflow_provider.worker.dataset.errors import DatasetError
from yolo_airflow_provider.worker.dataset.faults import Fault
from yolo_airflow_provider.worker.dataset.known import load_known, save_known
from yolo_airflow_provider.worker.dataset.scan import Scan, object_statistics, scan
from yolo_airflow_provider.worker.dataset.source import read_source


def run(dataset: Any, **more: Any) -> Scan:
    return scan(read_source(str(dataset.root / "data.yaml")), "detect", dataset.lines.append, **more)


def found(result: Scan) -> list[tuple[Fault, str, int | None]]:
    return [(finding.fault, finding.file, finding.line) for finding in result.findings]


def test_nothing_wrong(dataset: Any) -> None:
    result = run(dataset.plain())
    assert result.findings == ()
    assert [(item.split, item.relative, len(item.rows)) for item in result.items] == [
        ("train", "images/train/a.png", 1),
        ("train", "images/train/b.png", 2),
        ("val", "images/val/c.png", 1),
    ]
    assert result.found == {"train": 2, "val": 1}


def test_a_bad_label_leaves_the_image_out(dataset: Any) -> None:
    dataset.plain().label("train/b.png", "1 0.25 0.25 0.1 0.1\n7 0.5 0.5 0.1 0.1\n")
    result = run(dataset)
    assert found(result) == [
        (Fault.IMAGE_LEFT_OUT, "images/train/b.png", None),
        (Fault.CLASS_OUT_OF_RANGE, "labels/train/b.txt", 2),
    ]
    assert result.findings[0].detail == "class_out_of_range"
    assert [item.relative for item in result.split("train")] == ["images/train/a.png"]


def test_images_that_do_not_decode(dataset: Any, make_picture: Callable[..., bytes]) -> None:
    dataset.plain().image("train/cut.jpg", raw=make_picture(3, kind="JPEG")[:-20])
    dataset.image("train/junk.jpg", raw=make_picture(4, kind="JPEG") + b"\n")
    assert found(run(dataset)) == [
        (Fault.IMAGE_CORRUPT, "images/train/cut.jpg", None),
        (Fault.IMAGE_LEFT_OUT, "images/train/cut.jpg", None),
        (Fault.JPEG_TRUNCATED, "images/train/junk.jpg", None),
    ]


def test_background_images_are_used(dataset: Any) -> None:
    dataset.plain().image("train/d.png", None)
    dataset.image("train/e.png", "\n")
    result = run(dataset)
    assert found(result) == [
        (Fault.LABEL_MISSING, "images/train/d.png", None),
        (Fault.LABEL_EMPTY, "labels/train/e.txt", None),
    ]
    assert object_statistics(result.split("train")).mean == 0.75


def test_the_same_image_again_and_in_both_splits(dataset: Any, make_picture: Callable[..., bytes]) -> None:
    raw = make_picture(77)
    for name in ("train/x.png", "train/y.png", "val/z.png"):
        dataset.plain().image(name, raw=raw)
    result = run(dataset)
    assert [(f.fault, f.file, f.detail) for f in result.findings] == [
        (Fault.DUPLICATE_IMAGE, "images/train/y.png", "same as images/train/x.png"),
        (Fault.LEAK_TRAIN_VAL, "images/val/z.png", "same as images/train/x.png in train"),
    ]
    assert len(result.items) == 6


def test_labels_without_an_image(dataset: Any) -> None:
    dataset.plain().label("train/gone.png", "0 0.5 0.5 0.1 0.1")
    dataset.label("train/classes.png", "cell\nplate")
    assert found(run(dataset)) == [(Fault.IMAGE_MISSING, "labels/train/gone.txt", None)]


def test_text_beside_images_is_only_a_label_when_it_reads_as_one(
    dataset: Any, make_picture: Callable[..., bytes]
) -> None:
    for split in ("train", "val"):
        folder = dataset.root / split
        folder.mkdir()
        (folder / "a.png").write_bytes(make_picture(len(split)))
        (folder / "a.txt").write_text("0 0.5 0.5 0.1 0.1")
    (dataset.root / "train" / "readme.txt").write_text("about these images")
    (dataset.root / "train" / "gone.txt").write_text("0 0.5 0.5 0.1 0.1")
    dataset.yaml("train: train\nval: val\nnames: [a]")
    assert found(run(dataset)) == [(Fault.IMAGE_MISSING, "train/gone.txt", None)]


def test_an_image_of_a_list_that_is_not_there(dataset: Any) -> None:
    dataset.plain().yaml("train: train.txt\nval: images/val\nnames: [a, b]")
    (dataset.root / "train.txt").write_text("./images/train/a.png\n./images/train/gone.png\n")
    # b is in no split, so its label is nobody's fault.
    assert found(run(dataset)) == [(Fault.IMAGE_MISSING, "images/train/gone.png", None)]


def test_an_image_that_is_listed_twice_is_used_twice(dataset: Any) -> None:
    dataset.plain().yaml("train: [images/train, images/train]\nval: images/val\nnames: [a, b]")
    result = run(dataset)
    assert len(result.split("train")) == 4
    assert {finding.fault for finding in result.findings} == {Fault.DUPLICATE_IMAGE}


def test_a_file_that_cannot_be_read_ends_the_scan(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset.plain()
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.name == "b.png":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(DatasetError, match=r"b\.png cannot be read by user \d+: Permission denied"):
        run(dataset)


def test_statistics_of_objects(dataset: Any) -> None:
    statistics = object_statistics(run(dataset.plain()).split("train"))
    assert (statistics.total, statistics.mean, statistics.median, statistics.maximum) == (3, 1.5, 1.5, 2)
    assert object_statistics([]).maximum == 0


def test_progress_is_told(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "_PROGRESS_SECONDS", 0.0)
    run(dataset.plain())
    assert dataset.lines[-1] == "checked 3 of 3 images (100 %)"


def test_what_is_known_is_not_read_again(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_picture: Callable[..., bytes]
) -> None:
    first = run(dataset.plain())
    memory = tmp_path / "memory" / "known.json"
    save_known(memory, first.known)
    assert load_known(memory) == first.known
    read: list[int] = []
    real = scan_module.inspect_image
    monkeypatch.setattr(scan_module, "inspect_image", lambda raw: read.append(len(raw)) or real(raw))
    assert run(dataset, known=load_known(memory)).items == first.items
    assert read == []
    changed = dataset.root / "images" / "train" / "a.png"
    times = changed.stat()
    changed.write_bytes(make_picture(500))
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = run(dataset, known=load_known(memory))
    assert len(read) == 1
    assert again.items[0].image != first.items[0].image


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rules": "0", "images": {}}', '{"rules": 1, "images": 1}', "\0"])
def test_a_broken_memory_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "known.json"
    path.write_text(content)
    assert load_known(path) == {}
    assert load_known(tmp_path / "nowhere.json") == {}
