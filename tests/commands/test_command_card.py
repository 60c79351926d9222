from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from command_rows import GIB, LATELY, MODEL, ask, measurement, run, url_of

from yolo_airflow_provider.profiles.store import ProfileStore

MIB = 2**20


def card_of(store: ProfileStore, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert ask(store, "card", "yolov8n", "--imgsz", "640", "--json", *options) == 0
    return json.loads(capsys.readouterr().out)


def refusal(store: ProfileStore, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert ask(store, "card", *command) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_a_card_has_every_value_with_its_source_and_interval(
    store: ProfileStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.record(
        [
            measurement(key=run(run_id="a"), hours_ago=3, peak_device_bytes=3 * GIB + 5),
            measurement(key=run(run_id="b"), hours_ago=2, peak_device_bytes=3 * GIB - 7),
            measurement(key=run(run_id="newest"), hours_ago=1),
            # Of no account for the interval: another batch, another device, one that failed.
            measurement(key=run(run_id="c"), hours_ago=4, batch=8, peak_device_bytes=GIB),
            measurement(key=run(run_id="d"), hours_ago=4, mig_profile="2g.10gb", peak_device_bytes=GIB),
            measurement(key=run(run_id="e"), hours_ago=4, outcome="gpu_oom", peak_device_bytes=GIB),
        ],
        models=[MODEL],
    )
    card = card_of(store, capsys)
    assert card["estimated_gpu_memory"] == {
        "value": 3 * GIB,
        "source": "measured",
        "low": 3 * GIB - 7,
        "high": 3 * GIB + 5,
    }
    assert card["expected_duration_per_epoch"] == {"value": 12.0, "source": "measured", "low": 11.5, "high": 12.5}
    assert card["host_memory"] == {"value": 2 * GIB, "source": "measured", "low": None, "high": None}
    assert card["disk_space_required"]["value"] == 3 * MIB
    assert card["shared_memory"]["value"] >= 256 * MIB
    assert card["measured_at"] == store.measurements("cells", "newest")[0].row.finished_at.isoformat()
    expected = {
        "model_type": "yolov8n",
        "input_size": 640,
        "precision": "amp",
        "batch": 16,
        "min_gpu_count": 1,
        "recommended_gpu": "NVIDIA-A100-SXM4-40GB",
        "recommended_slice": "1g.5gb",
        "cpu_cores": 5,
        "dataloader_workers": 4,
        "io_intensive": False,
        "compute_bound_by": "compute",
        "supports_checkpoint_resume": True,
        "measurements": 4,
        "origin": None,
    }
    assert {name: card[name] for name in expected} == expected


def test_what_was_not_measured_has_no_source(store: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.record(
        [
            measurement(
                kind="probe",
                part="probe-16",
                epoch_seconds=None,
                epoch_seconds_spread=None,
                peak_rss_bytes=None,
                dataset_bytes=None,
                workers=None,
                data_wait_percent=None,
            )
        ]
    )
    card = card_of(store, capsys)
    nothing = {"value": None, "source": None, "low": None, "high": None}
    for name in ("expected_duration_per_epoch", "host_memory", "shared_memory", "disk_space_required"):
        assert card[name] == nothing, name
    assert (card["io_intensive"], card["cpu_cores"], card["measured_by"]) == (None, None, "probe")


def test_people_read_yaml_with_units(store: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.record([measurement()])
    assert ask(store, "card", "weights/yolov8n.pt", "--imgsz", "640") == 0
    card = yaml.safe_load(capsys.readouterr().out)
    assert card["estimated_gpu_memory"] == {
        "value": "3.00 GiB",
        "source": "measured",
        "low": "3.00 GiB",
        "high": "3.00 GiB",
    }
    assert card["expected_duration_per_epoch"]["high"] == "12.5 s"
    assert card["measured_at"] == f"{LATELY:%Y-%m-%d %H:%M} UTC"


def test_of_several_profiles_the_newest_is_shown_and_the_others_are_counted(
    store: ProfileStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.record(
        [
            measurement(key=run(run_id="a"), hours_ago=2, dataset="cars", dataset_fingerprint="cd34"),
            measurement(key=run(run_id="b"), hours_ago=1),
            measurement(
                key=run(run_id="c"),
                hours_ago=3,
                accelerator_kind="cpu",
                product=None,
                mig_profile=None,
                precision="fp32",
                dataset_fingerprint=None,
            ),
        ]
    )
    assert ask(store, "card", "yolov8n", "--imgsz", "640") == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["dataset"] == "blood"
    assert text.splitlines()[-1] == "# 2 more profiles match, measured earlier: --all"

    assert ask(store, "card", "yolov8n", "--imgsz", "640", "--all") == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [document["dataset_fingerprint"] for document in documents] == ["ab12", "cd34", None]
    assert documents[2]["estimated_gpu_memory"]["low"] == "3.00 GiB"
    assert [card["dataset"] for card in card_of(store, capsys, "--all")] == ["blood", "cars", "blood"]

    assert card_of(store, capsys, "--dataset", "cars")["dataset"] == "cars"
    assert card_of(store, capsys, "--dataset", "cd34")["dataset"] == "cars"
    assert card_of(store, capsys, "--precision", "fp32")["accelerator"] == "cpu"
    assert card_of(store, capsys, "--precision", "fp32")["min_gpu_count"] == 0
    # Standard output is JSON alone.
    assert ask(store, "card", "yolov8n", "--imgsz", "640", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["dataset"] == "blood"
    assert captured.err == "# 2 more profiles match, measured earlier: --all\n"


def test_a_batch_that_is_not_the_newest_has_a_card_of_its_own(
    store: ProfileStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.record(
        [
            measurement(
                key=run(run_id="old"),
                hours_ago=5,
                batch=8,
                peak_device_bytes=GIB,
                epoch_seconds=20.0,
                epoch_seconds_spread=25.0,
                data_wait_percent=35.0,
                workers=2,
            ),
            measurement(key=run(run_id="new")),
        ]
    )
    card = card_of(store, capsys, "--batch", "8")
    assert card["estimated_gpu_memory"]["value"] == GIB
    # A spread wider than the epoch is not one that could end before it began.
    assert card["expected_duration_per_epoch"] == {"value": 20.0, "source": "measured", "low": 0.0, "high": 45.0}
    assert (card["batch"], card["cpu_cores"], card["io_intensive"]) == (8, 3, True)
    assert "measured batches: 8, 16" in refusal(store, capsys, "yolov8n", "--imgsz", "640", "--batch", "32")


def test_where_nothing_was_measured_what_is_nearby_is_named(
    store: ProfileStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no successful run" in refusal(store, capsys, "yolov8n", "--imgsz", "640")
    store.record([measurement(), measurement(part="b", imgsz=320), measurement(part="c", imgsz=1280, model="yolo11n")])
    assert refusal(store, capsys, "yolov8n", "--imgsz", "1280") == (
        "yolo-airflow profiles card: nothing was measured of yolov8n at 1280; measured sizes of yolov8n: 320, 640; "
        "models measured at 1280: yolo11n\n"
    )
    assert "measured models: yolo11n, yolov8n" in refusal(store, capsys, "yolov5n", "--imgsz", "96")
    said = refusal(store, capsys, "yolov8n", "--imgsz", "640", "--product", "NVIDIA-H100")
    assert "known are: amp on 1x 1g.5gb of NVIDIA-A100-SXM4-40GB with blood" in said


def test_a_store_that_is_not_there_is_not_made(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(f"sqlite:///{tmp_path}/none.db", "card", "yolov8n", "--imgsz", "640") == 1
    assert f"no profile store at {tmp_path}/none.db" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_store_is_named_by_the_environment(
    store: ProfileStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from yolo_airflow_provider.cli import main

    store.record([measurement()])
    monkeypatch.setenv("YOLO_PROFILES_URL", url_of(store))
    assert main(["profiles", "card", "yolov8n", "--imgsz", "640"]) == 0
    monkeypatch.setenv("YOLO_PROFILES_URL", "no url")
    assert main(["profiles", "card", "yolov8n", "--imgsz", "640"]) == 1
    assert "environment variable YOLO_PROFILES_URL cannot be read as a URL" in capsys.readouterr().err
