"""The benchmark of the store on a real Postgres, with a history so short that its times mean nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from benchmarks import store as benchmark
from yolo_airflow_provider.profiles.engine import open_store

if TYPE_CHECKING:
    from postgres_server import GivenServer, PostgresServer


def test_a_run_reports_every_figure_and_leaves_no_database(
    postgres: PostgresServer | GivenServer, capsys: pytest.CaptureFixture[str]
) -> None:
    names = sa.text("SELECT datname FROM pg_database ORDER BY datname")
    admin = sa.create_engine(postgres.admin_url, poolclass=sa.NullPool)
    with admin.connect() as connection:
        before = connection.execute(names).scalars().all()
    url = postgres.admin_url.render_as_string(hide_password=False)
    sizes = ["--measurements", "300", "--small", "200", "--reads", "4", "--writes", "2"]
    assert benchmark.main([*sizes, "--url", url, "--explain", "--json"]) == 0

    said = capsys.readouterr()
    found = json.loads(said.out)
    assert {"read_p50_ms", "read_p99_ms", "read_growth", "write_p50_ms", "query_max_s"} <= found.keys()
    assert found["read_p99_ms"] >= found["read_p50_ms"] > 0
    assert found["measurements"] == {"small": 200, "large": 300}
    assert set(found["query_s"]) == {path.stem for path in benchmark.QUERIES.glob("*.sql")}
    assert found["query_max_s"] == max(found["query_s"].values())
    assert min(found["table_bytes"].values()) > 0
    assert "evidence\nAppend" in said.err
    with admin.connect() as connection:
        assert connection.execute(names).scalars().all() == before


def test_a_history_holds_what_was_asked_for_and_its_summaries_are_those_of_a_recount(
    postgres: PostgresServer | GivenServer,
) -> None:
    url = postgres.create_database()
    store = open_store(url)
    try:
        benchmark.fill(store.engine, 300)
        kinds = store.frame("measurement")["kind"].value_counts()
        assert dict(kinds) == {"probe": 150, "train": 120, "preprocess": 15, "export": 15}
        assert len(store.frame("epoch")) == 3000
        assert store.frame("prediction_error")["within_interval"].eq(1).sum() > 90
        assert store.frame("usage_day")["measurements"].sum() == 300
        # A primary key again, without which a second record of a run would fail.
        store.record(*benchmark.training(0, benchmark.profiles_to_read(store, 1)[0]))
        store.record(*benchmark.training(0, benchmark.profiles_to_read(store, 1)[0]))
        assert len(store.frame("epoch")) == 3003
        assert store.frame("usage_day")["measurements"].sum() == 301
    finally:
        store.release()
        postgres.drop_database(str(url.database))
