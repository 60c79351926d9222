"""A data set as its owner wrote it down: data.yaml, its classes and the images of each split. Reads only.

Nothing is downloaded, and nothing outside the data set's folder is read: a `download:` is ignored, a URL or a
path that leads elsewhere is refused. To use images elsewhere, `path:` has to say so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from yolo_airflow_provider.worker.dataset.errors import DatasetError
from yolo_airflow_provider.worker.dataset.images import SUFFIXES

SPLITS = ("train", "val", "test")
_REQUIRED = ("train", "val")
_MAX_CLASSES = 100_000
_NAME_LENGTH = 60


@dataclass(frozen=True)
class Source:
    """A data set where it lies.

    Attributes:
        yaml_path: absolute path of its YAML file.
        root: the folder that its paths are relative to.
        names: class names by number, 0 to n - 1.
        splits: images of train, val and (if there is one) test, sorted by path. An image that is named twice
            stands here twice, as training would see it.
        settings: `kpt_shape`, `flip_idx` and `channels`, where the YAML has them.
        notes: what is unusual but allowed, one sentence each.
    """

    yaml_path: Path
    root: Path
    names: Mapping[int, str]
    splits: Mapping[str, tuple[Path, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def kpt_shape(self) -> tuple[int, int] | None:
        """Keypoints an object, and values a keypoint."""
        shape = self.settings.get("kpt_shape")
        return None if shape is None else (int(shape[0]), int(shape[1]))

    def relative(self, path: Path) -> str:
        """The path below the root (or below the YAML's folder), the same wherever the data set is mounted."""
        for base in (self.root, self.yaml_path.parent):
            if path.is_relative_to(base):
                return path.relative_to(base).as_posix()
        return os.path.relpath(path, self.root)


def dataset_name(data: str) -> str:
    """What the store calls a data set: its folder's name, or the file's stem where no folder is given."""
    path = Path(data)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.parent.name or path.stem)
    return name[:_NAME_LENGTH].strip(".-") or "dataset"


def read_source(data: str) -> Source:
    """Read a data set's YAML and list its images.

    Raises:
        DatasetError: it is missing or wrong; the message has the file, the key, and the value.
    """
    path = _yaml_file(data)
    content = _load(path)
    if "val" not in content and "validation" in content:
        content["val"] = content["validation"]
    for key in _REQUIRED:
        if not content.get(key):
            raise DatasetError(
                f"{path}: the key {key!r} is missing or empty",
                f"add `{key}: images/{key}` (a folder, a .txt list of images, or a list of those)",
            )
    names = _names(path, content)
    settings = _settings(path, content)
    places = _Places(path, _root(path, content.get("path")))
    splits: dict[str, tuple[Path, ...]] = {}
    notes: list[str] = []
    for split in SPLITS:
        if not content.get(split):
            continue
        try:
            splits[split] = places.images(split, content[split])
        except _NothingThereError as error:
            # Exported data sets often name a test split that was never filled; training does not look at it.
            if split in _REQUIRED:
                raise
            notes.append(f"there is no {split} split: {error.message}")
    return Source(path, places.root, names, splits, settings, tuple(notes))


class _NothingThereError(DatasetError):
    """A split's path does not exist or holds no image."""


def _yaml_file(data: str) -> Path:
    if "://" in data:
        raise DatasetError(
            f"data={data!r} is a URL, and nothing is downloaded",
            "put the data set on a volume that the pod mounts, and give the path of its data.yaml",
        )
    path = Path(os.path.abspath(data))
    if path.is_dir():
        found = sorted(file.name for file in path.iterdir() if file.suffix in (".yaml", ".yml"))
        hint = f"give one of the files in it: {', '.join(found)}" if found else "it has no .yaml file"
        raise DatasetError(f"data={data!r} is a folder, not a YAML file", hint)
    return path


def _load(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise DatasetError(
            f"the data set's file {path} does not exist (nothing is downloaded)",
            "check the path as the pod sees it, and that the volume is mounted there",
        ) from error
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be read by user {os.getuid()}: {error.strerror}", "make it readable for this user"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())
        raise DatasetError(f"{path} is not a YAML file: {words[:200]}", "correct the line that is named") from error
    if not isinstance(content, dict):
        raise DatasetError(
            f"{path} holds {_kind(content)}, not keys and values", "it needs the keys train, val and names"
        )
    return content


def _names(path: Path, content: Mapping[str, Any]) -> dict[int, str]:
    count = _class_count(path, content.get("nc")) if "nc" in content else None
    raw = content.get("names")
    if raw is None:
        if count is None:
            raise DatasetError(
                f"{path}: the key 'names' is missing",
                "add the class names, `names: {0: cat, 1: dog}`, or `nc: 2`",
            )
        return {index: f"class_{index}" for index in range(count)}
    if not isinstance(raw, list | dict) or not raw:
        raise DatasetError(f"{path}: names is {_kind(raw)}, not a list or mapping of class names", "name every class")
    pairs = raw.items() if isinstance(raw, dict) else enumerate(raw)
    names = {_class_number(path, number): _class_name(path, number, name) for number, name in pairs}
    missing = next((index for index in range(len(raw)) if index not in names), None)
    if missing is not None:
        raise DatasetError(
            f"{path}: names has {len(raw)} classes numbered {_numbers(raw)}, but no class {missing}",
            f"number them 0 to {len(raw) - 1} without a gap, and the labels accordingly",
        )
    if count is not None and count != len(names):
        raise DatasetError(
            f"{path}: nc is {count}, but names has {len(names)} classes",
            "remove nc, or correct the one that is wrong",
        )
    return dict(sorted(names.items()))


def _numbers(raw: Any) -> str:
    shown = [str(number) for number in raw] if isinstance(raw, dict) else []
    return ", ".join(shown[:8]) + (", …" if len(shown) > 8 else "")


def _class_count(path: Path, raw: Any) -> int:
    try:
        count = float(raw)
        if count.is_integer() and 1 <= count <= _MAX_CLASSES:
            return int(count)
    except (TypeError, ValueError):
        pass
    raise DatasetError(
        f"{path}: nc is {raw!r}, not a whole number from 1 to {_MAX_CLASSES:,}", "nc is the number of classes"
    )


def _class_number(path: Path, raw: Any) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,9}", raw):
        return int(raw)
    raise DatasetError(
        f"{path}: names has the class number {raw!r}, not a whole number", "write `names: {0: cat, 1: dog}`"
    )


def _class_name(path: Path, number: object, raw: Any) -> str:
    if isinstance(raw, str | int | float) and not isinstance(raw, bool) and str(raw).strip():
        return str(raw)
    # YAML 1.1 reads yes, no, on and off as booleans: a class called "no" would become "False".
    raise DatasetError(
        f"{path}: the name of class {number} is read as {raw!r}, not as text",
        'put the name in quotes, `"no"`' if isinstance(raw, bool) else "give the class a name",
    )


def _settings(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    shape = content.get("kpt_shape")
    if shape is not None:
        if not (_integers(shape) and len(shape) == 2 and shape[0] >= 1 and shape[1] in (2, 3)):
            raise DatasetError(
                f"{path}: kpt_shape is {shape!r}",
                "write `kpt_shape: [17, 3]`: keypoints, and 2 or 3 values each",
            )
        settings["kpt_shape"] = list(shape)
    flip = content.get("flip_idx")
    if flip is not None:
        if not _integers(flip):
            raise DatasetError(f"{path}: flip_idx is {flip!r}", "it is a list of keypoint numbers")
        settings["flip_idx"] = list(flip)
    channels = content.get("channels")
    if channels is not None:
        if not (_integers([channels]) and channels >= 1):
            raise DatasetError(f"{path}: channels is {channels!r}", "it is the number of image channels, 3 if left out")
        settings["channels"] = channels
    return settings


def _integers(raw: Any) -> bool:
    return isinstance(raw, list) and all(isinstance(part, int) and not isinstance(part, bool) for part in raw)


def _root(path: Path, raw: Any) -> Path:
    if raw is None or raw == "":
        return path.parent
    if not isinstance(raw, str) or "://" in raw:
        raise DatasetError(f"{path}: path is {raw!r}, not a folder", "path is the folder that train and val are in")
    root = Path(os.path.normpath(path.parent / raw))
    if not root.is_dir():
        raise DatasetError(
            f"{path}: path: {raw} is no folder here (resolved to {root})",
            "correct path:, or remove it if train and val are relative to the YAML's own folder",
        )
    return root


@dataclass(frozen=True)
class _Places:
    """Resolves what a YAML's split says to images."""

    yaml_path: Path
    root: Path

    def images(self, split: str, raw: Any) -> tuple[Path, ...]:
        """Every image of the split, sorted by path."""
        values = raw if isinstance(raw, list) else [raw]
        found: list[Path] = []
        others: set[str] = set()
        for value in values:
            if not isinstance(value, str) or not value:
                raise DatasetError(
                    f"{self.yaml_path}: {split} has {value!r}, not a path",
                    "give a folder or a .txt list of images",
                )
            for file in self._files(split, value):
                if file.suffix.lower() in SUFFIXES:
                    found.append(file)
                else:
                    others.add(file.suffix)
        if not found:
            also = f"; it has files of other kinds: {', '.join(sorted(others)[:5]) or 'none'}" if others else ""
            raise _NothingThereError(
                f"{self.yaml_path}: {split}: {raw} has no images{also}",
                f"put images there; these are read: {' '.join(sorted(SUFFIXES))}",
            )
        return tuple(sorted(found))

    def _files(self, split: str, value: str) -> Iterator[Path]:
        path = self._locate(split, value)
        if path.is_dir():
            return _walk(path)
        if path.suffix.lower() == ".txt":
            return self._listed(split, path)
        raise DatasetError(
            f"{self.yaml_path}: {split}: {value} is a file that is no .txt list (resolved to {path})",
            "give a folder or a .txt list of images",
        )

    def _locate(self, split: str, value: str) -> Path:
        where = f"{self.yaml_path}: {split}: {value}"
        if "://" in value:
            raise DatasetError(f"{where} is a URL, and nothing is downloaded", "give a folder on a mounted volume")
        path = Path(os.path.normpath(self.root / value))
        if not path.exists() and value.startswith("../"):
            # Exports say ../train/images in a data.yaml that lies beside train; training reads them so.
            beside = Path(os.path.normpath(self.root / value[3:]))
            path = beside if beside.exists() else path
        if not path.exists():
            backslash = "; paths are written with / here" if "\\" in value else ""
            raise _NothingThereError(
                f"{where} does not exist (resolved to {path})",
                f"correct {split}:, or path: which it is relative to{backslash}",
            )
        self._refuse_outside(path, where)
        return path

    def _listed(self, split: str, path: Path) -> Iterator[Path]:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DatasetError(
                f"{path}, the list of {split} images, cannot be read: {error}",
                "it is UTF-8 text, one image a line",
            ) from error
        for number, line in enumerate(lines, start=1):
            entry = line.strip()
            if not entry:
                continue
            if "://" in entry:
                raise DatasetError(f"{path} line {number}: {entry} is a URL, and nothing is downloaded", "list files")
            image = Path(os.path.normpath(path.parent / entry))
            below_root = Path(os.path.normpath(self.root / entry))
            if not image.exists() and below_root.exists():
                image = below_root
            self._refuse_outside(image, f"{path} line {number}: {entry}")
            yield image

    def _refuse_outside(self, path: Path, where: str) -> None:
        for base in (self.root, self.yaml_path.parent):
            # As written, so that links inside the folder may lead where its owner wants; or as it is, so that
            # two spellings of one folder agree.
            if path.is_relative_to(base) or path.resolve().is_relative_to(base.resolve()):
                return
        raise DatasetError(
            f"{where} is pointing outside of the data set's folder {self.root} (resolved to {path})",
            f"if that is meant, set `path: {path.parent}` in the YAML and write the splits relative to it",
        )


def _walk(folder: Path) -> Iterator[Path]:
    """Every file below a folder that is not hidden; links are followed, once each."""

    def refuse(error: OSError) -> None:
        raise DatasetError(
            f"{error.filename} cannot be read by user {os.getuid()}: {error.strerror}",
            "make the data set's folders readable for this user",
        ) from error

    seen: set[str] = set()
    for current, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(current)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if not name.startswith("."):
                yield Path(current, name)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
