"""Export, reload and compare: an artefact is only handed on when it answers as the model does.

It is made in a folder of the try's own and moved to its place last, so that neither a broken one nor a zombie's stands
where the next task looks.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from yolo_airflow_provider.contract import ExportJob, ExportSummary, FailureClass, JobResult, JobSpec
from yolo_airflow_provider.worker import models
from yolo_airflow_provider.worker.data import images_of, read_dataset
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.fence import Fence
from yolo_airflow_provider.worker.files import make_folder
from yolo_airflow_provider.worker.log import say

WEIGHTS = "model.pt"
"""The copy that is exported; artefacts are named after it."""

# What each format needs besides the extra `worker`, for an error that says what to install.
_PACKAGES = {
    "onnx": "onnx onnxruntime onnxslim",
    "openvino": "openvino",
    "engine": "tensorrt",
    "ncnn": "ncnn",
    "mnn": "MNN",
}


def export(spec: JobSpec, job: ExportJob, fence: Fence) -> JobResult:
    """Export the weights, reload the artefact and compare both on real images.

    The outputs compared are the raw ones, before non-maximum suppression, which would hide or blow up a difference.

    Raises:
        JobError: the weights or the format are wrong, a package is missing, the outputs differ by more than the
            tolerance, or a later try has the folder.
    """
    folder = make_folder(Path(spec.run_folder) / "export")
    formats = known_formats()
    if job.format not in formats:
        raise _refused(
            f"export format {job.format!r} is not one of {', '.join(sorted(formats))}", "choose one of these"
        )
    source = models.resolve(job.weights, trusted_weights=job.trusted_weights)
    if not source.weights:
        raise _refused(f"weights={job.weights!r} names an architecture", "give the .pt file that a training wrote")
    images = _images(job)
    fence.check()  # loading the weights took seconds, and what is cleared next may be a later try's
    # Exporters write beside the weights; the training's folder is not theirs.
    work = _own_folder(folder, fence)
    weights = Path(shutil.copyfile(source.path, work / WEIGHTS))
    made = _export(weights, job)
    difference = largest_difference(weights, made, images, imgsz=job.imgsz)
    if not difference <= job.tolerance:  # NaN is not within a tolerance either
        raise JobError(
            FailureClass.CODE,
            f"{made} answers differently from its weights: {difference:.3g} of the largest output on"
            f" {len(images)} images, tolerance {job.tolerance:.3g}",
            hint="half precision wants a tolerance of about 1e-2; otherwise the export is broken, do not deploy it",
            stage="export",
        )
    fence.check()
    artefact = _hand_on(made, work, folder)
    summary = ExportSummary(
        format=job.format,
        artefact=str(artefact.relative_to(spec.run_folder)),
        size_bytes=sum(file.stat().st_size for file in _files(artefact)),
        sha256=sha256(artefact),
        largest_difference=float(f"{difference:.3g}"),
        tolerance=job.tolerance,
        images=len(images),
    )
    _write_checksum(artefact, summary.sha256)
    say(
        f"exported {summary.artefact}: {summary.size_bytes / 2**20:.1f} MiB, SHA-256 {summary.sha256[:12]}…, largest"
        f" difference {difference:.2e} of the largest output on {len(images)} images (tolerance {job.tolerance:.0e})"
    )
    return JobResult(kind="export", try_number=spec.identity.try_number, export=summary)


def known_formats() -> dict[str, str]:
    """Ultralytics' export formats by argument, with the suffix of the file each makes."""
    from ultralytics.engine.exporter import export_formats

    table: dict[str, Any] = export_formats()
    return {
        argument: suffix for argument, suffix in zip(table["Argument"], table["Suffix"], strict=True) if argument != "-"
    }


def largest_difference(weights: Path, artefact: Path, images: list[Path], *, imgsz: int) -> float:
    """Largest absolute difference of the raw outputs, over the model's largest absolute output."""
    from ultralytics.nn.autobackend import AutoBackend

    device = torch.device("cpu")
    reference = AutoBackend(str(weights), device=device, verbose=False)
    reloaded = AutoBackend(str(artefact), device=device, verbose=False)
    worst = scale = 0.0
    for image in images:
        batch = _letterboxed(image, imgsz)
        with torch.inference_mode():
            expected, actual = _first(reference(batch)), _first(reloaded(batch))
        if expected.shape != actual.shape:
            raise JobError(
                FailureClass.CODE,
                f"{artefact} answers in shape {tuple(actual.shape)}, its weights in {tuple(expected.shape)}",
                stage="export",
            )
        worst = float(np.maximum(worst, (expected - actual).abs().max().item()))  # np.maximum keeps NaN
        scale = max(scale, expected.abs().max().item())
    return worst / max(scale, 1e-12)


def sha256(artefact: Path) -> str:
    """SHA-256 of a file; of a folder, over its files' names and contents in order of name."""
    if artefact.is_file():
        with artefact.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for file_path in _files(artefact):
        digest.update(f"{file_path.relative_to(artefact)}\0{sha256(file_path)}\0".encode())
    return digest.hexdigest()


def _own_folder(folder: Path, fence: Fence) -> Path:
    """An empty folder for this try's work; what earlier tries left of theirs is removed."""
    for left in folder.glob(".try-*"):
        shutil.rmtree(left, ignore_errors=True)
    return make_folder(folder / f".try-{fence.label}")


def _hand_on(made: Path, work: Path, folder: Path) -> Path:
    """Move what the exporter wrote over what an earlier try made; returns the artefact's place.

    All of it: some formats keep large weights in a second file beside the artefact.
    """
    for new in work.iterdir():
        place = folder / new.name
        if new.name == WEIGHTS:
            continue
        if place.is_dir():
            shutil.rmtree(place)
        new.replace(place)
    shutil.rmtree(work)
    return folder / made.absolute().relative_to(work.absolute())


def _export(weights: Path, job: ExportJob) -> Path:
    from ultralytics import YOLO

    try:
        path = YOLO(weights).export(format=job.format, imgsz=job.imgsz, half=job.half, device="cpu", verbose=False)
    except (ImportError, AssertionError) as error:
        packages = _PACKAGES.get(job.format, job.format)
        raise _refused(
            f"export to {job.format} failed: {error}",
            f"the worker image may lack a package: pip install {packages}",
        ) from error
    return Path(path)


def _images(job: ExportJob) -> list[Path]:
    """Real images to compare on: the first of the validation split, in order of name."""
    if job.data is None:
        raise _refused("no data set was given to compare the artefact on", "pass data= as to the training")
    description = read_dataset(job.data)
    if description.get("channels", 3) != 3:
        raise _refused(
            f"{job.data} has images of {description['channels']} channels", "only colour images are compared"
        )
    files = images_of(description, "val")
    return files[: job.images]


def _letterboxed(image: Path, imgsz: int) -> torch.Tensor:
    """One image as the predictor feeds it: letterboxed to a square, RGB, 0 to 1, shape (1, 3, imgsz, imgsz)."""
    import cv2
    from ultralytics.data.augment import LetterBox

    pixels = cv2.imread(str(image))
    square = LetterBox(new_shape=(imgsz, imgsz), auto=False)(image=pixels)
    planes = np.ascontiguousarray(square[..., ::-1].transpose(2, 0, 1))
    return torch.from_numpy(planes).float().div(255).unsqueeze(0)


def _first(output: Any) -> torch.Tensor:
    """The detections' tensor of an output: exporters return it alone, the model returns it before its features."""
    while isinstance(output, list | tuple):
        output = output[0]
    return torch.as_tensor(output).float()


def _files(artefact: Path) -> list[Path]:
    return [artefact] if artefact.is_file() else sorted(file for file in artefact.rglob("*") if file.is_file())


def _write_checksum(artefact: Path, digest: str) -> None:
    """In the form that `sha256sum --check` reads; a folder's digest is ours and says so."""
    note = "" if artefact.is_file() else "  # names and contents"
    (artefact.parent / f"{artefact.name}.sha256").write_text(f"{digest}  {artefact.name}{note}\n", encoding="utf-8")


def _refused(message: str, hint: str) -> JobError:
    return JobError(FailureClass.DATA, message, hint=hint, stage="export")
