"""The benchmarks' arithmetic and readings. What they measure is asserted nowhere: it is the machine's."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pod_overhead
from benchmarks.machine import Machine, processor_name, this_machine
from benchmarks.output import report, table
from benchmarks.pairs import measure_in_turns, ratio_of_medians, ratios_of_pairs, turns
from benchmarks.pod_overhead import Run, allowed_extra_seconds, figures
from benchmarks.pod_task import note_first_call
from benchmarks.processes import clean_environment, high_water_bytes, run_measured
from benchmarks.results_csv import epoch_seconds, outcomes

ROOT = Path(__file__).resolve().parents[2]
MACHINE = Machine(cores=2.0, memory_bytes=8 * 2**30, processor="A Processor", python="3.11.7")


def test_the_sides_take_turns_in_going_first() -> None:
    assert list(turns(("a", "b"), 3)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


def test_measurements_are_sorted_back_to_their_sides_in_order() -> None:
    clock = iter(range(100))
    seen: list[tuple[int, str, int]] = []
    ours, theirs = measure_in_turns(
        ("a", "b"), 3, lambda name: next(clock), lambda number, name, value: seen.append((number, name, value))
    )
    assert (ours, theirs) == ([0, 3, 4], [1, 2, 5])
    assert seen[2] == (1, "b", 2)


def test_a_machine_that_slows_down_between_rounds_does_not_move_the_ratio_of_pairs() -> None:
    ours, theirs = [1.1, 2.2, 4.4], [1.0, 2.0, 4.0]
    assert ratios_of_pairs(ours, theirs) == pytest.approx([1.1, 1.1, 1.1])


def test_one_disturbed_run_does_not_move_the_median_over_pairs() -> None:
    assert statistics.median(ratios_of_pairs([1.1, 9.0, 1.1], [1.0, 1.0, 1.0])) == pytest.approx(1.1)


def test_a_run_without_a_neighbour_is_refused() -> None:
    with pytest.raises(ValueError):
        ratios_of_pairs([1.0, 2.0], [1.0])


def test_ratio_of_medians() -> None:
    assert ratio_of_medians([3.0, 1.0, 30.0], [2.0, 1.0, 20.0]) == pytest.approx(1.5)


@pytest.mark.parametrize("head", ["epoch,time,train/box_loss", "  epoch,   time,   train/box_loss"])
def test_epochs_are_differences_without_the_first(head: str) -> None:
    text = f"{head}\n1,10.5,3.2\n2,12,3.1\n3,14.25,3.05\n"
    assert epoch_seconds(text) == pytest.approx((1.5, 2.25))
    assert outcomes(text) == (("1", "3.2"), ("2", "3.1"), ("3", "3.05"))


@pytest.mark.parametrize("text", ["", "epoch,time\n1,2.5\n", "epoch,loss\n1,2.5\n2,3.5\n"])
def test_results_without_two_timed_epochs_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="two epochs"):
        epoch_seconds(text)


def test_high_water_mark_is_read_in_bytes_and_absent_of_a_zombie() -> None:
    assert high_water_bytes("Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t 1024 kB\n") == 2048 * 1024
    assert high_water_bytes("Name:\tpython\nState:\tZ (zombie)\n") == 0


def test_a_peak_is_kept_although_the_process_sets_its_mark_back(tmp_path: Path) -> None:
    # The mark is polled from outside every 0.05 s and there is nothing to wait for; a second is twenty readings.
    program = """
import time
held = b"x" * 200_000_000
time.sleep(1)
del held
open("/proc/self/clear_refs", "w").write("5")
"""
    used = run_measured(
        [sys.executable, "-c", program], environment=os.environ, folder=tmp_path, log=tmp_path / "output.log"
    )
    assert used.peak_rss_bytes > 200_000_000
    assert used.seconds > 0
    assert used.cpu_seconds > 0


def test_a_failing_command_is_named_with_the_end_of_its_output(tmp_path: Path) -> None:
    program = "print('what went wrong'); raise SystemExit(3)"
    with pytest.raises(RuntimeError, match=r"ended with 3:\nwhat went wrong"):
        run_measured(
            [sys.executable, "-c", program], environment=os.environ, folder=tmp_path, log=tmp_path / "output.log"
        )


def test_both_sides_start_without_anyones_configuration() -> None:
    variables = {"PATH": "/bin", "AIRFLOW_HOME": "/a", "_AIRFLOW__X": "1", "YOLO_OFFLINE": "false", "YOLO_JOB": "{}"}
    assert clean_environment(variables) == {"PATH": "/bin"}


def test_processor_name() -> None:
    assert processor_name("processor\t: 0\nmodel name\t: An  Example CPU\nmodel name\t: B\n") == "An Example CPU"
    assert processor_name("processor\t: 0\nFeatures\t: fp\n") == ""


def test_the_machine_is_named_in_one_line() -> None:
    assert str(MACHINE) == "2 cores of A Processor, 8.0 GiB of memory, Python 3.11.7"
    here = this_machine()
    assert here.cores > 0
    assert here.memory_bytes > 0
    assert "\n" not in str(here)


def test_a_table_is_aligned_below_its_head() -> None:
    assert table([["side", "s"], ["ours", "10.5"], ["a", "1"]]) == [
        "side     s",
        "----  ----",
        "ours  10.5",
        "a        1",
    ]


def test_json_is_one_object_with_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    report("name", MACHINE, figures={"figure": 1.5}, rows=[["a"], ["b"]], as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found == {"benchmark": "name", "figure": 1.5, "machine": MACHINE.as_dict()}


def pod(job: str, *, image: str = "worker:1") -> dict[str, Any]:
    environment = [{"name": "YOLO_JOB", "value": job}, {"name": "HOME", "value": "/tmp"}]
    return {"metadata": {"labels": {"run_id": job}}, "spec": {"containers": [{"image": image, "env": environment}]}}


def test_a_pod_task_may_take_a_second_or_five_percent_more_whichever_is_larger() -> None:
    assert allowed_extra_seconds([5.0, 6.0, 90.0]) == 1.0
    assert allowed_extra_seconds([100.0]) == pytest.approx(5.0)


def test_extra_seconds_of_a_pod_task_are_of_medians_with_and_without_what_lies_in_the_pod() -> None:
    ours = [Run(seconds, 0.5, 0.1, pod("ours")) for seconds in (6.0, 5.0, 50.0)]
    theirs = [Run(seconds, 0.2, 0.0, pod("theirs")) for seconds in (4.0, 4.5, 4.8)]
    found = figures(ours, theirs)
    assert found["extra_seconds"] == pytest.approx(1.5)
    assert found["ratio"] == pytest.approx(6.0 / 4.5, abs=1e-4)
    assert found["within_bar"] is False
    assert found["extra_outside_pod_seconds"] == pytest.approx(0.4)
    assert found["ours"]["seconds"] == [6.0, 5.0, 50.0]
    assert found["same_pod"] is True


def test_sides_of_which_one_ran_another_pod_are_told_apart() -> None:
    ours, theirs = Run(5.0, 0.5, 0.1, pod("a")), Run(4.0, 0.2, 0.0, pod("b", image="worker:2"))
    assert figures([ours], [theirs])["same_pod"] is False
    assert pod_overhead.without_job(ours.pod)["containers"][0]["env"] == [{"name": "HOME", "value": "/tmp"}]
    assert ours.pod == pod("a")


def test_the_first_call_of_a_method_is_noted_and_the_method_does_what_it_did() -> None:
    class Adder:
        def add(self, one: int, other: int = 1) -> int:
            return one + other

    first = note_first_call(Adder, "add")
    with pytest.raises(IndexError):
        first()
    assert Adder().add(2, other=3) == 5
    noted = first()
    assert Adder().add(2) == 3
    assert first() == noted


@pytest.mark.parametrize("kubeconfig", [None, "/no/such/file"])
def test_pod_overhead_without_a_cluster_says_what_to_set(
    kubeconfig: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if kubeconfig:
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
    with pytest.raises(SystemExit) as ended:
        pod_overhead.main(["--rounds", "1"])
    assert ended.value.code == 2
    assert "set KUBECONFIG to an administrator's kubeconfig" in capsys.readouterr().err


@pytest.mark.slow
def test_imports_prints_one_json_object_and_nothing_else() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.imports", "--rounds", "1", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout)
    assert found["import_ratio"] > 0
    assert found["machine"]["cores"] > 0
