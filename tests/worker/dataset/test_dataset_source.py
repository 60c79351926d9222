from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.worker.dataset.errors import DatasetError
from yolo_airflow_provider.worker.dataset.source import Source, dataset_name, read_source

SPLITS = "train: images/train\nval: images/val\n"


def read(dataset: Any, text: str) -> Source:
    return read_source(str(dataset.plain().yaml(text)))


def names_of(source: Source, split: str) -> list[str]:
    return [source.relative(path) for path in source.splits[split]]


def test_what_a_plain_data_set_says(dataset: Any) -> None:
    source = read(dataset, SPLITS + "names: [cell, plate]")
    assert source.root == dataset.root
    assert source.names == {0: "cell", 1: "plate"}
    assert names_of(source, "train") == ["images/train/a.png", "images/train/b.png"]
    assert names_of(source, "val") == ["images/val/c.png"]
    assert list(source.splits) == ["train", "val"]
    assert source.notes == ()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("names: {1: plate, 0: cell}", {0: "cell", 1: "plate"}),
        ("names: {'0': cell, '1': 7}", {0: "cell", 1: "7"}),
        ("nc: 2", {0: "class_0", 1: "class_1"}),
        ("nc: '2'\nnames: [cell, plate]", {0: "cell", 1: "plate"}),
    ],
)
def test_ways_to_name_classes(dataset: Any, names: str, expected: dict[int, str]) -> None:
    assert read(dataset, SPLITS + names).names == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds nothing"),
        ("[1, 2]", "holds list"),
        ("a: [", "not a YAML file"),
        ("a: !!python/object/apply:os.system ['true']", "not a YAML file"),
        ("val: images/val\nnames: [a]", "'train'"),
        ("train: images/train\nval:\nnames: [a]", "'val'"),
        (SPLITS, "'names'"),
        (SPLITS + "names: []", "names is"),
        (SPLITS + "names: cell", "names is"),
        (SPLITS + "names: {0: a, 2: b}", "no class 1"),
        (SPLITS + "names: {a: 0}", "class number 'a'"),
        (SPLITS + "names: [yes, no]", "quotes"),
        (SPLITS + "names: [a, null]", "class 1"),
        (SPLITS + "nc: 3\nnames: [a, b]", "nc is 3, but names has 2"),
        (SPLITS + "nc: 1.5", "nc is 1.5"),
        (SPLITS + "nc: 0", "nc is 0"),
        (SPLITS + "nc: 10000000000", "nc is 10000000000"),
        (SPLITS + "names: [a]\npath: nowhere", "path: nowhere"),
        (SPLITS + "names: [a]\npath: 5", "path is 5"),
        (SPLITS + "names: [a]\nkpt_shape: [17]", "kpt_shape"),
        (SPLITS + "names: [a]\nflip_idx: left", "flip_idx"),
        (SPLITS + "names: [a]\nchannels: rgb", "channels"),
        ("train: images/nowhere\nval: images/val\nnames: [a]", "images/nowhere does not exist"),
        ("train: images\\train\nval: images/val\nnames: [a]", "written with /"),
        ("train: labels\nval: images/val\nnames: [a]", "no images; it has files of other kinds: .txt"),
        ("train: data.yaml\nval: images/val\nnames: [a]", "no .txt list"),
        ("train: 7\nval: images/val\nnames: [a]", "train has 7"),
        ("train: [images/train, {a: b}]\nval: images/val\nnames: [a]", "not a path"),
        ("train: https://example.org/a.zip\nval: images/val\nnames: [a]", "URL"),
    ],
)
def test_what_is_refused(dataset: Any, text: str, words: str) -> None:
    with pytest.raises(DatasetError) as caught:
        read(dataset, text)
    error = caught.value
    assert str(dataset.root / "data.yaml") in error.message
    assert words in f"{error.message} {error.hint}"
    assert error.hint
    assert error.failure_class is FailureClass.DATA


def test_files_that_are_not_there(dataset: Any) -> None:
    with pytest.raises(DatasetError, match=r"nowhere\.yaml does not exist"):
        read_source(str(dataset.root / "nowhere.yaml"))
    dataset.plain()
    with pytest.raises(DatasetError, match="folder") as caught:
        read_source(str(dataset.root))
    assert "data.yaml" in caught.value.hint
    with pytest.raises(DatasetError, match="URL"):
        read_source("https://example.org/data.yaml")


def test_an_empty_split_is_refused_and_an_empty_test_split_noted(dataset: Any) -> None:
    (dataset.root / "empty").mkdir()
    with pytest.raises(DatasetError, match="val: empty has no images"):
        read(dataset, "train: images/train\nval: empty\nnames: [a]")
    for missing in ("empty", "images/test"):
        source = read(dataset, SPLITS + f"test: {missing}\nnames: [a]")
        assert list(source.splits) == ["train", "val"]
        assert missing in source.notes[0]


@pytest.mark.parametrize("absolute", [False, True])
def test_a_split_that_leads_elsewhere_is_refused(
    dataset: Any, make_picture: Callable[..., bytes], absolute: bool
) -> None:
    outside = dataset.root.parent / "outside"
    outside.mkdir()
    (outside / "x.png").write_bytes(make_picture(9))
    value = str(outside) if absolute else "images/../../outside"
    with pytest.raises(DatasetError, match="outside of the data set's folder") as caught:
        read(dataset, f"train: {value}\nval: images/val\nnames: [a]")
    assert "path:" in caught.value.hint
    (dataset.root / "list.txt").write_text(f"images/train/a.png\n{outside / 'x.png'}\n")
    with pytest.raises(DatasetError, match=r"list\.txt line 2"):
        read(dataset, "train: list.txt\nval: images/val\nnames: [a]")


def test_an_explicit_path_may_lead_elsewhere(dataset: Any, tmp_path: Path) -> None:
    dataset.plain()
    for value in (str(dataset.root), f"../{dataset.root.name}"):
        file = tmp_path / "elsewhere" / "set.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"path: {value}\n{SPLITS}names: [a, b]")
        source = read_source(str(file))
        assert source.root == dataset.root
        assert names_of(source, "val") == ["images/val/c.png"]


def test_exports_that_say_one_folder_too_many(dataset: Any) -> None:
    source = read(dataset, "train: ../images/train\nvalidation: ../images/val\nnames: [a, b]")
    assert names_of(source, "train") == ["images/train/a.png", "images/train/b.png"]
    assert names_of(source, "val") == ["images/val/c.png"]


def test_lists_of_images_and_of_folders(dataset: Any) -> None:
    lists = dataset.root / "lists"
    lists.mkdir()
    (lists / "train.txt").write_text("\ufeffimages/train/b.png\n\n../images/train/a.png\nimages/train/gone.png\n")
    source = read(dataset, "train: [lists/train.txt, images/val]\nval: images/val\nnames: [a]\ndownload: echo no")
    assert names_of(source, "train") == [
        "images/train/a.png",
        "images/train/b.png",
        "images/val/c.png",
        "lists/images/train/gone.png",
    ]


def test_hidden_files_and_loops_of_links_are_passed_over(dataset: Any) -> None:
    train = dataset.plain().root / "images" / "train"
    (train / "._a.png").write_bytes(b"resource fork")
    (train / "loop").symlink_to(train)
    (train / "notes.md").write_text("x")
    assert len(read(dataset, SPLITS + "names: [a]").splits["train"]) == 2


def test_settings_are_passed_on(dataset: Any) -> None:
    source = read(dataset, SPLITS + "names: [a]\nkpt_shape: [2, 3]\nflip_idx: [1, 0]\nchannels: 1")
    assert source.kpt_shape == (2, 3)
    assert source.settings == {"kpt_shape": [2, 3], "flip_idx": [1, 0], "channels": 1}


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("/data/bccd/data.yaml", "bccd"),
        ("bccd/data.yaml", "bccd"),
        ("cells.yaml", "cells"),
        ("/cells.yaml", "cells"),
        ("/my data (v2)/data.yaml", "my-data-v2"),
        ("/.hidden/data.yaml", "hidden"),
        ("/é/data.yaml", "dataset"),
        (f"/{'x' * 90}/data.yaml", "x" * 60),
    ],
)
def test_the_name(data: str, name: str) -> None:
    assert dataset_name(data) == name
