from __future__ import annotations

import pytest
from command_rows import ask, decision, epoch, measurement, run

from yolo_airflow_provider.profiles import prune
from yolo_airflow_provider.profiles.store import ProfileStore

DAYS = 24


@pytest.fixture
def filled(store: ProfileStore) -> ProfileStore:
    old, retried, new = run(run_id="old"), run(run_id="retried"), run(run_id="new")
    again, killed = run(run_id="retried", try_number=2), run(run_id="old", try_number=2)
    store.record(
        [
            measurement(key=old, hours_ago=200 * DAYS),
            # Its second try is of today, so that the run is.
            measurement(key=retried, hours_ago=200 * DAYS, outcome="gpu_oom"),
            measurement(key=again),
            measurement(key=new),
            measurement(key=run(run_id="unrecorded"), hours_ago=300 * DAYS),
        ],
        # A try that was killed has epochs and no measurement.
        [epoch(number, key=key) for key in (old, killed, retried, again, new) for number in (1, 2, 3)],
    )
    store.decide(decision(key=old, hours_ago=200 * DAYS))
    return store


def epochs(store: ProfileStore) -> list[str]:
    return sorted(store.frame("epoch_history")["run_id"])


def test_epochs_of_old_runs_are_deleted_and_nothing_else(
    filled: ProfileStore, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("run_history", "decision_history", "usage_by_dag", "resource_card", "prediction_error")
    before = [filled.frame(name) for name in names]
    assert ask(filled, "prune", "--older-than", "180d", "--yes") == 0
    assert "deleted 6 epochs of 1 runs that ended before" in capsys.readouterr().out
    assert epochs(filled) == ["new"] * 3 + ["retried"] * 6
    for name, frame in zip(names, before, strict=True):
        assert filled.frame(name).equals(frame), name
    assert ask(filled, "prune", "--older-than", "180d", "--yes") == 0
    assert "deleted 0 epochs of 0 runs" in capsys.readouterr().out


def test_nothing_is_deleted_before_it_is_wanted(filled: ProfileStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(filled, "prune", "--older-than", "180d") == 1
    assert "nothing was deleted; --yes deletes 6 epochs of 1 runs" in capsys.readouterr().err
    assert ask(filled, "prune", "--older-than", "180d", "--dry-run") == 0
    assert "would delete 6 epochs of 1 runs" in capsys.readouterr().out
    assert len(epochs(filled)) == 15
    with pytest.raises(SystemExit):
        ask(filled, "prune", "--older-than", "180d", "--dry-run", "--yes")
    with pytest.raises(SystemExit):
        ask(filled, "prune", "--yes")


def test_many_runs_are_deleted_in_batches(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "RUNS_AT_ONCE", 3)
    keys = [run(run_id=f"r{number}", map_index=number % 2) for number in range(8)]
    store.record(
        [measurement(key=key, hours_ago=48) for key in keys], [epoch(n, key=key) for key in keys for n in (1, 2)]
    )
    store.record([measurement(key=run(run_id="r99"))], [epoch(1, key=run(run_id="r99"))])
    before = store.measurements("cells", "r99")[0].row.finished_at
    assert prune.count_old(store, before) == prune.Old(runs=8, epochs=16)
    deleted = list(prune.delete_old(store, before))
    assert deleted == [prune.Old(3, 6), prune.Old(3, 6), prune.Old(2, 4)]
    assert epochs(store) == ["r99"]
