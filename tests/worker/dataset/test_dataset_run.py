from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.contract import JobResult
from yolo_airflow_provider.worker.dataset.errors import DatasetError

DATA = os.environ.get("YOLO_TEST_DATA")
HashOf = Callable[[Path], str]


def report(dataset: Any) -> dict[str, Any]:
    return json.loads((dataset.run_folder / "report.json").read_text())


def test_the_summary(dataset: Any) -> None:
    dataset.plain().label("train/b.png", "1 0.25 0.25 0.1 0.1\n0 0.5 0.5 0 0\n0 0.5 0.5 0.5 0.5\n")
    summary = dataset.run()
    assert (summary.name, summary.classes, summary.train_images, summary.val_images) == ("cells", 2, 2, 1)
    assert (summary.train_objects, summary.objects_mean, summary.objects_max) == (3, 1.5, 2)
    assert summary.faults == {"empty_box": 1}
    assert summary.data_yaml == f"datasets/cells-{summary.fingerprint[:12]}/data.yaml"
    assert summary.size_bytes == sum(path.stat().st_size for path in dataset.root.rglob("*.png"))
    assert (dataset.run_folder / summary.report).exists()
    assert dataset.lines[:2] == [
        "2 train, 1 val images, 2 classes",
        "1 x empty box, row dropped (labels/train/b.txt line 2)",
    ]
    JobResult(kind="preprocess", dataset=summary).to_message()


def test_the_report(dataset: Any) -> None:
    dataset.plain()
    bad = "".join(f"{number} 0.5 0.5 0.1 0.1\n" for number in range(2, 32))
    dataset.image("train/bad.png", bad)
    dataset.image("train/background.png", None)
    summary = dataset.run()
    content = report(dataset)
    assert content["fingerprint"] == summary.fingerprint
    assert content["data"] == str(dataset.root / "data.yaml")
    assert content["prepared"] == str(dataset.workspace / summary.data_yaml)
    assert content["splits"]["train"] | {"size_bytes": 0} == {
        "images_found": 4,
        "images_used": 3,
        "background_images": 1,
        "objects": 3,
        "size_bytes": 0,
    }
    fault = content["faults"][0]
    assert (fault["fault"], fault["count"], fault["done"]) == ("class_out_of_range", 30, "image left out")
    assert len(fault["sample"]) == 20
    assert fault["sample"][0] == {
        "split": "train",
        "file": "labels/train/bad.txt",
        "line": 1,
        "detail": "2 0.5 0.5 0.1 0.1 (classes are 0 to 1)",
    }
    assert content["train_objects"]["by_class"] == {"0": 2, "1": 1}
    assert content["image_pixels"]["width"] == {"min": 32, "median": 32, "max": 32}
    assert content["summary"][0] == "3 train, 1 val images, 2 classes; 1 background"
    assert content["summary"][1] == "1 images left out of 5"


@pytest.mark.parametrize("split", ["train", "val"])
def test_no_usable_image_remains(dataset: Any, split: str) -> None:
    dataset.plain()
    for label in (dataset.root / "labels" / split).iterdir():
        label.write_text("5 0.5 0.5 0.1 0.1")
    with pytest.raises(DatasetError, match=f"{split} images can be used") as caught:
        dataset.run()
    assert "class out of range" in caught.value.message
    assert "classes are 0 to 1" in caught.value.message
    assert caught.value.hint
    assert report(dataset)["prepared"] is None
    assert [path.name for path in (dataset.workspace / "datasets").iterdir()] == [".checked"]


def test_a_train_split_without_labels_says_where_they_are_looked_for(dataset: Any) -> None:
    shutil.rmtree(dataset.plain().root / "labels" / "train")
    with pytest.raises(DatasetError, match="none of the 2 train images has an object") as caught:
        dataset.run()
    assert str(dataset.root / "labels" / "train" / "a.txt") in caught.value.message


@pytest.mark.parametrize(("task", "words"), [("classify", "classify"), ("depth", "depth"), ("pose", "kpt_shape")])
def test_tasks_that_are_refused(dataset: Any, task: str, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        dataset.plain().run(task=task)


def test_the_source_is_only_read(dataset: Any, hash_of: HashOf, make_picture: Callable[..., bytes]) -> None:
    dataset.plain().image("train/j.jpg", raw=make_picture(5, kind="JPEG") + b"\0")
    for path in sorted(dataset.root.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    dataset.root.chmod(0o555)
    before = hash_of(dataset.root)
    try:
        dataset.run()
        dataset.run(copy_images=True)
        assert hash_of(dataset.root) == before
    finally:
        for path in (dataset.root, *dataset.root.rglob("*")):
            path.chmod(0o755)


def test_the_fingerprint_is_of_content_only(dataset: Any, make_picture: Callable[..., bytes]) -> None:
    first = dataset.plain().run().fingerprint
    image = dataset.root / "images" / "train" / "a.png"
    os.utime(image, (1, 1))
    (dataset.root / "labels" / "train" / "b.txt").write_text("1.0 0.25 0.25 0.1 0.1\r\n\n 0 0.5 0.5 0.5 0.5")
    assert dataset.run().fingerprint == first
    dataset.yaml("train: images/train\nval: images/val\nnames: [cell, plates]\n")
    assert dataset.run().fingerprint != first
    dataset.yaml()
    image.write_bytes(make_picture(99))
    assert dataset.run().fingerprint != first


def test_file_names_that_are_not_utf8(dataset: Any) -> None:
    dataset.plain()
    name = os.fsdecode(b"train/\xff.png")
    dataset.image(name, "7 0.5 0.5 0.1 0.1")
    dataset.image(os.fsdecode(b"train/\xfe.png"))
    assert dataset.run().train_images == 3
    assert any("\\udcff" in line for line in dataset.lines)
    "\n".join(dataset.lines).encode()


# What the trainer itself finds in the prepared set; in its own process, since importing it has side effects.
_TRAINER = """
import json, sys
from ultralytics.data.dataset import YOLODataset
from ultralytics.data.utils import check_det_dataset
data = check_det_dataset(sys.argv[1], autodownload=False)
for split in ("train", "val"):
    found = YOLODataset(img_path=data[split], data=data, task=sys.argv[2], imgsz=64, augment=False)
    objects = sum(len(label["cls"]) for label in found.labels)
    print(json.dumps({"images": len(found.labels), "objects": objects}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "row", "settings"),
    [
        ("detect", "0 0.5 0.5 0.2 0.2", ""),
        ("segment", "0 0.1 0.1 0.4 0.1 0.4 0.4", ""),
        ("obb", "0 0.1 0.1 0.4 0.1 0.4 0.4 0.1 0.4", ""),
        ("pose", "0 0.5 0.5 0.2 0.2 0.5 0.5 2", "kpt_shape: [1, 3]"),
    ],
)
def test_the_trainer_takes_all_of_it(
    dataset: Any,
    hash_of: HashOf,
    make_picture: Callable[..., bytes],
    tmp_path: Path,
    task: str,
    row: str,
    settings: str,
) -> None:
    pytest.importorskip("ultralytics")
    for name in ("train/a.png", "train/b.png", "val/c.png"):
        dataset.image(name, f"{row}\n{row.replace('0 ', '1 ', 1)}\n{row}\n")
    dataset.image("train/sub/a.png", f"{row}\n")
    dataset.image("train/background.png", None)
    dataset.image("train/junk.jpg", f"{row}\n", raw=make_picture(5, kind="JPEG") + b"\0")
    dataset.image("train/cut.jpg", f"{row}\n", raw=make_picture(6, kind="JPEG")[:-20])
    dataset.image("train/bad.png", f"9{row[1:]}\n")
    dataset.yaml(f"train: images/train\nval: images/val\nnames: [cell, plate]\n{settings}\n")
    before = hash_of(dataset.root)
    summary = dataset.run(task=task)
    prepared = dataset.workspace / summary.data_yaml
    junk = (prepared.parent / "images" / "train" / "junk.jpg").read_bytes()
    environment = os.environ | {
        "YOLO_OFFLINE": "true",
        "YOLO_CONFIG_DIR": str(tmp_path / "config"),
        "YOLO_VERBOSE": "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", _TRAINER, str(prepared), task],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    train, val = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert train == {"images": summary.train_images, "objects": summary.train_objects}
    assert val == {"images": 1, "objects": 2}
    assert (summary.train_images, summary.train_objects) == (5, 6)
    assert "ignoring" not in done.stdout + done.stderr
    assert (prepared.parent / "images" / "train" / "junk.jpg").read_bytes() == junk
    assert hash_of(dataset.root) == before


@pytest.mark.data
@pytest.mark.skipif(DATA is None, reason="YOLO_TEST_DATA is not set; it is the folder that bccd/ is in")
def test_real_blood_cells(dataset: Any, hash_of: HashOf) -> None:
    source = Path(str(DATA)) / "bccd"
    before = hash_of(source)
    dataset.root = source
    summary = dataset.run(imgsz=640)
    assert (summary.name, summary.train_images, summary.val_images, summary.classes) == ("bccd", 205, 87, 3)
    assert summary.faults == {"empty_box": 2}
    assert report(dataset)["splits"]["test"]["images_used"] == 72
    assert {place["file"] for place in report(dataset)["faults"][0]["sample"]} == {
        "labels/train/BloodImage_00343.txt",
        "labels/val/BloodImage_00338.txt",
    }
    assert dataset.lines[0] == "205 train, 87 val, 72 test images, 3 classes"
    assert dataset.run(imgsz=640) == summary
    assert dataset.lines[-1].startswith("reused")
    assert hash_of(source) == before
