from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ultralytics.nn.tasks import DetectionModel

from yolo_airflow_provider.planner.catalogue import architecture
from yolo_airflow_provider.worker import models

PUBLISHED_MILLIONS = {
    "yolov7-tiny": 6.2,
    "yolov7": 36.9,
    "yolov7x": 71.3,
    "yolov7-w6": 70.4,
    "yolov7-e6": 97.2,
    "yolov7-d6": 154.7,
    "yolov7-e6e": 151.7,
}


def built(name: str) -> DetectionModel:
    source = models.resolve(name, trusted_weights=False)
    assert source.name == name
    module, task = models.build(source, task=None, classes=None, trusted_weights=False)
    assert task == "detect"
    return module


@pytest.mark.parametrize("name", PUBLISHED_MILLIONS)
def test_the_family_has_the_published_size(name: str) -> None:
    module = built(name)
    millions = sum(parameter.numel() for parameter in module.parameters()) / 1e6
    assert millions == pytest.approx(PUBLISHED_MILLIONS[name], rel=0.1)
    levels = [8, 16, 32] if name in ("yolov7-tiny", "yolov7", "yolov7x") else [8, 16, 32, 64]
    assert module.stride.tolist() == levels
    side = max(levels)
    with torch.no_grad():
        predictions = module.eval()(torch.zeros(1, 3, side, side))[0]
    assert predictions.shape == (1, 4 + 80, sum((side // stride) ** 2 for stride in levels))
    row = architecture(name)
    assert row is not None
    assert row.parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", ["yolov7-tiny", "yolov7", "yolov7-e6e"])
def test_every_layer_takes_part_in_a_step(name: str) -> None:
    module = built(name).train()
    outputs = module(torch.rand(2, 3, 64, 64))
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    torch.stack([leaf.float().pow(2).mean() for leaf in leaves if leaf.requires_grad]).sum().backward()
    idle = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    assert idle == []


def test_the_files_say_what_differs_from_the_publication() -> None:
    files = sorted(models.OWN_ARCHITECTURES.glob("*.yaml"))
    assert {file.stem for file in files} == set(PUBLISHED_MILLIONS)
    for file in files:
        head = [line for line in file.read_text().splitlines() if line.startswith("#")]
        assert f"Published: {PUBLISHED_MILLIONS[file.stem]:g} M parameters" in "\n".join(head)


def test_a_name_that_is_nearly_one_is_asked_back() -> None:
    with pytest.raises(models.JobError) as refused:
        models.resolve("yolov7-tini", trusted_weights=False)
    assert "yolov7-tiny" in refused.value.hint


@pytest.mark.slow
def test_the_trainer_takes_it_for_two_epochs(make_job: Any, shapes: Path, start_worker: Any) -> None:
    spec = make_job("train", model="yolov7-tiny", data=str(shapes), imgsz=64, epochs=2, batch=4)
    run = start_worker(spec)
    assert run.end() == 0, run.log
    assert run.answer["train"]["epochs_done"] == 2
    assert run.answer["model"]["name"] == "yolov7-tiny"
    epochs = [json.loads(line) for line in (Path(spec["run_folder"]) / "epochs.jsonl").read_text().splitlines()]
    losses = [value for epoch in epochs for value in epoch["losses"].values()]
    assert len(losses) >= 6
    assert all(math.isfinite(value) for value in losses)
