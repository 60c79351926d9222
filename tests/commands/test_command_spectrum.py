from __future__ import annotations

import json
import struct
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from command_rows import GIB, MODEL, ask, measurement, run

from yolo_airflow_provider.profiles.store import ProfileStore


@pytest.fixture
def filled(store: ProfileStore) -> ProfileStore:
    store.record([measurement(), measurement(part="b", imgsz=320, peak_device_bytes=GIB)], models=[MODEL])
    # Its operations are not known, so that it has no place in the picture.
    store.record([measurement(key=run(run_id="b"), model="custom")])
    return store


def test_the_spectrum_is_a_table(filled: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(filled, "spectrum", "--json") == 0
    rows = {(row["model"], row["imgsz"]): row for row in json.loads(capsys.readouterr().out)}
    assert rows["yolov8n", 640]["peak_bytes_per_image"] == 3 * GIB / 16
    assert rows["yolov8n", 640]["io_sensitivity_percent"] == 4.0
    assert rows["custom", 640]["flops_per_byte"] is None
    assert ask(filled, "spectrum") == 0
    text = capsys.readouterr().out
    assert "192.0 MiB" in text
    assert "3.01 M" in text


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_the_spectrum_is_drawn(filled: ProfileStore, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    png, svg = tmp_path / "spectrum.png", tmp_path / "spectrum.svg"
    assert ask(filled, "spectrum", "--plot", str(png)) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "drew 2 of 3 rows" in captured.err
    header = png.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:])
    assert (width, height) == (1210, 825)

    assert ask(filled, "spectrum", "--plot", str(svg), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    # Letters are drawn as paths, with the text as a comment before them.
    assert "yolov8n@320" in svg.read_text()
    assert ET.parse(svg).getroot().tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.glob("spectrum*")) == ["spectrum.png", "spectrum.svg"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_what_cannot_be_drawn_is_said(
    store: ProfileStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert ask(store, "spectrum", "--plot", str(tmp_path / "spectrum.pdf")) == 1
    assert "let it end in .png or .svg" in capsys.readouterr().err
    store.record([measurement()])
    assert ask(store, "spectrum", "--plot", str(tmp_path / "spectrum.png")) == 1
    assert "of 1 rows none has both its memory and its FLOPs" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert ask(store, "spectrum", "--plot", str(tmp_path / "spectrum.png")) == 1
    assert "yolo-airflow-provider[plot]" in capsys.readouterr().err


def test_labels_stand_apart(tmp_path: Path) -> None:
    """Thirty marks close together: hardly a label covers another, none another's mark."""
    pytest.importorskip("matplotlib")
    import random

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation, Text

    from yolo_airflow_provider.commands import plot

    chance = random.Random(7)
    points = [
        {
            "model": chance.choice(["yolov8n", "yolo11n", "yolov8-worldv2-x"]),
            "imgsz": 640,
            "accelerator_kind": "cpu",
            "flops_per_byte": 50 * chance.uniform(0.8, 1.3),
            "peak_bytes_per_image": 3e8 * chance.uniform(0.9, 1.2),
            "io_sensitivity_percent": None,
        }
        for _ in range(30)
    ]
    figure = Figure(figsize=(11, 7.5), dpi=110)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    plot._draw_marks(figure, axes, points)
    plot._set_up(axes)
    figure.draw_without_rendering()
    plot._place_labels(axes, points, canvas.get_renderer(), pixels_per_point=110 / 72)
    labels = [item for item in axes.texts if isinstance(item, Annotation)]
    boxes = [Text.get_window_extent(label) for label in labels]
    assert len(boxes) == 30
    covering = sum(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    assert covering <= 2
    marks = axes.transData.transform([plot._position(row) for row in points])
    assert not any(box.contains(x, y) for box in boxes for x, y in marks)
