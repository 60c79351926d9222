"""A data set as Ultralytics reads it, without its downloads, and the images of a split."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.worker.failures import JobError

_SAMPLE = 256
"""Files whose size is asked for: a mean within a tenth, in a fraction of a second also on NFS."""


def read_dataset(data: str) -> dict[str, Any]:
    """Read and check a data.yaml with Ultralytics' own reader, so that the trainer finds nothing else to say.

    Raises:
        JobError: there is no such file, a key is missing, or a split does not exist. Nothing is downloaded.
    """
    from ultralytics.data.utils import check_det_dataset

    if not Path(data).is_file():
        raise _refused(f"the data set {data} does not exist", "give the path of a data.yaml inside the run")
    try:
        description: dict[str, Any] = check_det_dataset(data, autodownload=False)
    except Exception as error:
        raise _refused(
            f"the data set {data} cannot be used: {' '.join(str(error).split())[:300]}",
            "run a PreprocessOperator on it: its report names every fault with file and line",
        ) from error
    missing = [place for split in ("train", "val") for place in _places(description, split) if not place.exists()]
    if missing:
        raise _refused(f"the data set {data} names {missing[0]}, which does not exist", "check train: and val:")
    for split in ("train", "val"):
        if next(_images(description, split), None) is None:
            raise _refused(f"the data set {data} has no image in {split}: ({description[split]})", "check the folder")
    return description


def images_of(description: dict[str, Any], split: str) -> list[Path]:
    """The images of a split in order of name; its places are folders, or text files that list images."""
    return sorted(_images(description, split))


def mean_size_bytes(files: Sequence[str | Path]) -> float | None:
    """Mean size of some files, from an even sample of them; None where none of those is there."""
    sizes = []
    for file in files[:: max(-(-len(files) // _SAMPLE), 1)]:
        with contextlib.suppress(OSError):
            sizes.append(Path(file).stat().st_size)
    return sum(sizes) / len(sizes) if sizes else None


def _images(description: dict[str, Any], split: str) -> Iterator[Path]:
    from ultralytics.data.utils import IMG_FORMATS

    listed = (file for place in _places(description, split) for file in _listed(place))
    return (file for file in listed if file.suffix[1:].lower() in IMG_FORMATS)


def _places(description: dict[str, Any], split: str) -> list[Path]:
    named = description[split] if isinstance(description[split], list) else [description[split]]
    return [Path(place) for place in named]


def _listed(place: Path) -> Iterable[Path]:
    if place.is_dir():
        return place.rglob("*")
    lines = place.read_text(encoding="utf-8").splitlines()
    return [place.parent / line.strip() for line in lines if line.strip()]


def _refused(message: str, hint: str) -> JobError:
    return JobError(FailureClass.DATA, message, hint=hint, stage="setup")
