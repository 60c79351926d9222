"""The container's own figures, from both versions of cgroups. The fixtures are shortened files of real groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from yolo_airflow_provider.contract import PARENT_VARIABLE
from yolo_airflow_provider.worker.measure import cgroup, host
from yolo_airflow_provider.worker.measure.cgroup import CpuPeriods, MemoryPeak

MIB = 2**20

V2_MEMORY = """\
anon 684883968
file 4233334784
kernel 93200384
kernel_stack 1327104
pagetables 4423680
sock 0
vmalloc 0
shmem 138665984
file_mapped 372072448
inactive_anon 763367424
active_anon 49770496
slab_reclaimable 80000000
"""
V1_MEMORY = """\
cache 10895360
rss 5320704
rss_huge 0
shmem 9580544
mapped_file 7282688
swap 0
pgpgin 38928
inactive_anon 0
hierarchical_memory_limit 9223372036854771712
total_cache 4233334784
total_rss 684883968
total_shmem 138665984
total_mapped_file 372072448
"""
V1_OLD_MEMORY = "cache 10895360\nrss 5320704\nmapped_file 0\n"

V2_CPU = """\
usage_usec 123456789
user_usec 100000000
system_usec 23456789
nr_periods 4200
nr_throttled 1428
throttled_usec 99999999
nr_bursts 0
burst_usec 0
"""
V1_CPU = "nr_periods 4200\nnr_throttled 1428\nthrottled_time 99999999000\n"


@pytest.mark.parametrize(
    ("stat", "held"),
    [
        (V2_MEMORY, 684883968 + 138665984),
        (V1_MEMORY, 684883968 + 138665984),
        (V1_OLD_MEMORY, 5320704),
        ("anon 7\n", 7),
        ("", None),
        ("file 4096\n", None),
        ("anon lots\nnonsense\n", None),
    ],
)
def test_memory_that_cannot_be_reclaimed_is_anonymous_and_shared(stat: str, held: int | None) -> None:
    assert cgroup.unreclaimable_bytes(stat) == held


@pytest.mark.parametrize(
    ("stat", "periods"),
    [
        (V2_CPU, CpuPeriods(4200, 1428)),
        (V1_CPU, CpuPeriods(4200, 1428)),
        ("usage_usec 1\nuser_usec 1\nsystem_usec 0\n", None),  # version 2 without the CPU controller
        ("", None),
    ],
)
def test_c7_periods_of_the_cpu_limit(stat: str, periods: CpuPeriods | None) -> None:
    assert cgroup.cpu_periods(stat) == periods


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("8589934592\n", 8 * 2**30), ("9223372036854771712\n", None), ("", None)],
)
def test_the_memory_limit(text: str, limit: int | None) -> None:
    assert cgroup.limit_bytes(text) == limit


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty /sys/fs/cgroup."""
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path)
    return tmp_path


def make(group: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (group / name).parent.mkdir(parents=True, exist_ok=True)
        (group / name).write_text(text)


@pytest.mark.parametrize(
    "files",
    [
        {"memory.max": "8589934592\n", "memory.stat": V2_MEMORY, "cpu.stat": V2_CPU},
        {"memory/memory.limit_in_bytes": "8589934592\n", "memory/memory.stat": V1_MEMORY, "cpu/cpu.stat": V1_CPU},
    ],
    ids=["v2", "v1"],
)
def test_both_versions_are_found_where_containers_see_them(files: dict[str, str], group: Path) -> None:
    make(group, files)
    assert cgroup.read_limit_bytes() == host.memory_limit_bytes() == 8 * 2**30
    assert cgroup.read_unreclaimable_bytes() == 684883968 + 138665984
    assert cgroup.read_cpu_periods() == CpuPeriods(4200, 1428)


def test_outside_a_container_there_is_nothing_to_read(group: Path) -> None:
    assert cgroup.read_limit_bytes() is None
    assert cgroup.read_unreclaimable_bytes() is None
    assert cgroup.read_cpu_periods() is None


def test_a_group_without_a_limit_is_not_the_runs_own(group: Path) -> None:
    make(group, {"memory.max": "max\n", "memory.stat": V2_MEMORY})
    assert cgroup.read_unreclaimable_bytes() is None


def test_a_local_run_does_not_measure_the_airflow_worker_that_it_runs_in(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(group, {"memory.max": "8589934592\n", "memory.stat": V2_MEMORY, "cpu.stat": V2_CPU})
    monkeypatch.setenv(PARENT_VARIABLE, "4711")
    assert cgroup.read_unreclaimable_bytes() is None
    assert cgroup.read_cpu_periods() is None
    assert cgroup.read_limit_bytes() == 8 * 2**30  # which holds for everything in it


def test_c7_the_share_of_throttled_periods_is_that_of_the_run(group: Path) -> None:
    make(group, {"cpu.stat": "nr_periods 1000\nnr_throttled 900\n"})
    before = host.read_counters()
    make(group, {"cpu.stat": "nr_periods 1200\nnr_throttled 968\n"})
    assert host.use_between(before, host.read_counters()).throttled_percent == 34.0


def test_c7_without_a_cpu_limit_there_is_no_share(group: Path) -> None:
    make(group, {"cpu.stat": "nr_periods 0\nnr_throttled 0\n"})
    before = host.read_counters()
    assert host.use_between(before, host.read_counters()).throttled_percent is None


def test_the_peak_is_sampled_once_a_second_and_at_edges() -> None:
    now, readings = [0.0], iter([5 * MIB, 9 * MIB, None, 7 * MIB])
    peak = MemoryPeak(read=lambda: next(readings), clock=lambda: now[0])
    assert peak.bytes is None
    for second in (0.0, 0.5, 0.99, 1.0):
        now[0] = second
        peak.sample()
    assert peak.bytes == 9 * MIB  # two samples
    peak.sample_now()  # nothing to be read any more
    peak.sample_now()
    assert peak.bytes == 9 * MIB
    assert next(readings, "all taken") == "all taken"
