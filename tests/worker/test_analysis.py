from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from yolo_airflow_provider.contract import ArchitectureFacts
from yolo_airflow_provider.planner.catalogue import Architecture, architecture
from yolo_airflow_provider.worker import analysis, models
from yolo_airflow_provider.worker.analysis import analyse, attempt
from yolo_airflow_provider.worker.failures import JobError
from yolo_airflow_provider.worker.fakestep import BLOCK_BYTES, training_step


class Chain(torch.nn.Module):
    """One convolution of a kernel of one, whose step can be counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 16, 1, bias=False)

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(images)
        return out


def test_a_step_that_can_be_counted_by_hand() -> None:
    step = training_step(Chain(), imgsz=64, amp=False)
    pixels = 2 * 64 * 64
    images, outputs, weights = 4 * 3 * pixels, 4 * 16 * pixels, 4 * 48
    # Weights, gradients, momentum and the sum are a block each; the gradient of a sum is one number.
    assert images + outputs <= step.peak_bytes(2) <= images + outputs + 8 * BLOCK_BYTES
    assert weights < BLOCK_BYTES
    # Forward, and the gradient of the weights; the images need none.
    assert 2 * step.flops == 2 * (2 * 3 * 16 * pixels)


def test_nothing_is_computed_and_the_module_is_left_as_it_is() -> None:
    module = Chain()
    before = module.layer.weight.detach().clone()
    step = training_step(module, imgsz=4096, amp=True)
    assert step.peak_bytes(1024) > 2**40  # more than any machine has
    assert torch.equal(before, module.layer.weight)
    assert module.layer.weight.grad is None


def test_it_says_what_the_catalogue_says() -> None:
    """Both have the same fields: `yolo-airflow plan` reads the one as the other."""
    assert list(ArchitectureFacts.model_fields) == [field.name for field in fields(Architecture)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["yolov5n", "yolo11n", "yolov8n-seg"])
def test_the_catalogue_has_not_drifted(name: str) -> None:
    fresh, shipped = analyse(name), architecture(name)
    assert shipped is not None
    for field in fields(Architecture):
        now, then = getattr(fresh, field.name), getattr(shipped, field.name)
        assert now == (pytest.approx(then, rel=0.01) if isinstance(then, float) else then), field.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("yolov5s", "detect"),
        ("yolov6n", "detect"),
        ("yolov8n-pose", "pose"),
        ("yolov8n-cls", "classify"),
        ("yolov9t", "detect"),
        ("yolov10n", "detect"),
        ("yolo11n-obb", "obb"),
        ("yolo12n", "detect"),
        ("yolo26n-seg", "segment"),
        ("rtdetr-resnet50", "detect"),
    ],
)
def test_its_figures_are_those_of_ultralytics(name: str, task: str) -> None:
    from ultralytics import RTDETR, YOLO

    found = analyse(name)
    _, parameters, _, gflops = (RTDETR if name.startswith("rtdetr") else YOLO)(f"{name}.yaml").info(verbose=True)
    assert (found.task, found.parameters, round(found.gflops, 1)) == (task, parameters, round(gflops, 1))


def test_a_custom_architecture_is_analysed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    custom = tmp_path / "mine.yaml"
    custom.write_text(
        "nc: 2\n"
        "backbone:\n  - [-1, 1, Conv, [16, 3, 2]]\n  - [-1, 1, Conv, [32, 3, 2]]\n  - [-1, 1, Conv, [64, 3, 2]]\n"
        "head:\n  - [[2], 1, Detect, [nc]]\n"
    )
    assert analysis.main([str(custom)]) == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert (found["name"], found["classes"], found["task"]) == ("mine", 2, "detect")
    assert found["anchors_per_pixel"] == pytest.approx(1 / 64)
    assert found["parameters"] > 0


def test_a_checkpoint_is_analysed_as_what_it_holds(tmp_path: Path) -> None:
    module, _ = models.build(
        models.resolve("yolov8n", trusted_weights=False), task=None, classes=3, trusted_weights=False
    )
    torch.save({"model": module, "ema": None}, tmp_path / "best.pt")
    found = analyse(str(tmp_path / "best.pt"))
    assert found.classes == 3
    assert found.parameters == sum(p.numel() for p in module.parameters())


def test_a_job_goes_on_without_an_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise NotImplementedError("no fake of an operator")

    monkeypatch.setattr(analysis, "training_step", fails)
    said: list[str] = []
    assert attempt("yolov8n", task="detect", trusted_weights=False, say=said.append) is None
    assert said == ["yolov8n could not be analysed: NotImplementedError: no fake of an operator"]
    with pytest.raises(JobError, match="no model is called"):
        attempt("yolov99", task="detect", trusted_weights=False, say=said.append)


def test_what_is_no_model_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analysis.main(["yolov99"]) == 1
    assert "no model is called 'yolov99'" in capsys.readouterr().err
    broken = tmp_path / "broken.yaml"
    broken.write_text("nc: 2\nbackbone:\n  - [-1, 1, NoSuchLayer, [16]]\nhead:\n  - [[0], 1, Detect, [nc]]\n")
    with pytest.raises(JobError, match="cannot be built"):
        analyse(str(broken))
