"""From the first revision to the last and back, with rows in the store, on both databases; and the check for drift."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from profile_rows import GIB, MODEL, decision, epoch, measurement, run_key

from yolo_airflow_provider.profiles import migrate, tables, views
from yolo_airflow_provider.profiles.engine import make_engine, open_store
from yolo_airflow_provider.profiles.errors import StoreError, StoreOutdatedError
from yolo_airflow_provider.profiles.store import ProfileStore

RUN = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "try_number": 1}
NOON = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
ODD = "grün ✅ \U0001f9ea 'x' \"; DROP TABLE model; -- \\ %s :name {}"


@contextmanager
def writing(url: str) -> Iterator[sa.Connection]:
    engine = make_engine(url)
    if engine.dialect.name == "sqlite":
        Path(str(engine.url.database)).parent.mkdir(parents=True, exist_ok=True)
    with engine.connect().execution_options(yolo_write=True) as connection, connection.begin():
        yield connection
    engine.dispose()


def migrate_to(url: str, revision: str) -> None:
    """Alembic itself, as `migrate.upgrade` calls it, to any revision."""
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts_folder()).replace("%", "%%"))
    with writing(url) as connection:
        config.attributes["connection"] = connection
        known = ["", *migrate.KNOWN_REVISIONS]
        now = migrate.current_revision(connection) or ""
        move = command.upgrade if known.index(revision) > known.index(now) else command.downgrade
        move(config, revision)


def insert(connection: sa.Connection, table: str, row: dict[str, Any]) -> None:
    """A row by names alone: the tables of today are not those of the first revision."""
    columns = [
        sa.column(name, tables.UtcDateTime() if isinstance(value, datetime) else None) for name, value in row.items()
    ]
    connection.execute(sa.table(table, *columns).insert(), row)


def rows(connection: sa.Connection, table: str) -> list[dict[str, Any]]:
    everything = sa.text(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4, 5, 6")  # noqa: S608
    return [dict(row) for row in connection.execute(everything).mappings()]


def fill(connection: sa.Connection) -> None:
    """As version 0.1.0 may have left it."""
    facts = {"name": ODD, "task": "detect", "classes": 3, "parameters": 2**40, "stride": 32, "gflops": 6.4}
    insert(connection, "model", facts | {"gflops_imgsz": 640})
    insert(connection, "model", facts | {"classes": 80})
    model_id = connection.execute(sa.text("SELECT min(id) FROM model")).scalar_one()
    trained = {
        "kind": "train",
        "model": "yolo11n",
        "model_task": "detect",
        "classes": 3,
        "imgsz": 640,
        "batch": 16,
        "model_id": model_id,
        "precision": "amp",
        "accelerator_kind": "mig",
        "product": "A100",
    }
    for number, (outcome, extra) in enumerate(
        [
            ("succeeded", {"peak_device_bytes": 2**62, "message": ODD * 1000, "epoch_seconds": 2.0, "epochs_done": 9}),
            ("succeeded", {"batch": 32, "resumed_epochs": 2, "epoch_seconds": 3.0, "epochs_done": 5}),
            ("gpu_oom", {"batch": 64, "data_wait_percent": 0.1 + 0.2}),
            ("lost", {"model_id": None, "model": None, "epoch_seconds": 1.0, "epochs_done": 1, "resumed_epochs": 1}),
        ]
    ):
        row = (
            RUN | trained | {"try_number": number + 1, "part": "train", "outcome": outcome, "finished_at": NOON} | extra
        )
        insert(connection, "measurement", row)
    probe = RUN | trained | {"task_id": "p", "part": "batch-2", "kind": "probe", "outcome": "succeeded"}
    insert(connection, "measurement", probe | {"finished_at": NOON.replace(day=5)})
    columns = [sa.column(name, tables.epoch.c[name].type) for name in (*RUN, "epoch", "seconds", "losses", "metrics")]
    series = {"seconds": 1.5, "losses": {ODD: 1.0}, "metrics": {}}
    epochs = sa.table("epoch", *columns)
    for number in (1, 2, 3):
        connection.execute(epochs.insert(), RUN | series | {"epoch": number})
    # What is left out has no column yet.
    row = {name: value for name, value in vars(decision()).items() if name != "key" and value is not None}
    connection.execute(tables.decision.insert(), RUN | row | {"candidates": [{"why": ODD}], "evidence": [1, 2]})


def test_every_row_of_the_first_revision_is_there_in_the_last(store_url: str) -> None:
    migrate_to(store_url, "0001")
    with writing(store_url) as connection:
        fill(connection)
        before = {name: rows(connection, name) for name in ("model", "measurement", "epoch", "decision")}
    with pytest.raises(
        StoreOutdatedError, match=f"is at revision 0001, and this package needs {migrate.HEAD_REVISION}"
    ):
        open_store(store_url, upgrade=False)

    store = open_store(store_url)
    assert migrate.check(store.engine) == []
    with writing(store_url) as connection:
        for name, old in before.items():
            new = rows(connection, name)
            assert [{key: row[key] for key in kept} for row, kept in zip(new, old, strict=True)] == old, name
            assert all(row[key] is None for row in new for key in set(row) - set(old[0]) - {"trained_seconds"})
    store.engine.dispose()


def test_the_summaries_are_filled_from_what_is_there(store_url: str) -> None:
    migrate_to(store_url, "0001")
    with writing(store_url) as connection:
        fill(connection)
    store = open_store(store_url)
    # 4.5 s of the first try's epochs, 3 x 3 s of the second's median; the lost one ran none itself.
    usage = store.frame("usage_by_dag")
    assert usage["training_seconds"].sum() == pytest.approx(4.5 + 9.0)
    assert list(usage["measurements"].sort_values()) == [1, 4]
    assert (usage["succeeded"].sum(), usage["out_of_memory"].sum()) == (3, 1)
    (card,) = store.frame("resource_card").to_dict("records")
    assert (card["kind"], card["batch"], card["measurements"]) == ("train", 32, 3)

    # And go on from there as if they had always been kept.
    store.record([measurement(key=run_key(dag_id="d"), product="A100", mig_profile=None, finished_at=NOON)], [epoch(1)])
    assert store.frame("usage_by_dag")["measurements"].sum() == 6
    assert store.frame("resource_card")["measurements"].sum() == 4
    store.engine.dispose()


def described(url: str) -> dict[str, Any]:
    """The database as it describes itself: tables, indexes, constraints, views."""
    engine = make_engine(url)
    inspector = sa.inspect(engine)
    found: dict[str, Any] = {
        table: json.dumps(
            [
                inspector.get_columns(table),
                *(
                    sorted(getattr(inspector, f"get_{what}")(table), key=lambda entry: str(entry["name"]))
                    for what in ("indexes", "check_constraints", "unique_constraints", "foreign_keys")
                ),
                inspector.get_pk_constraint(table),
            ],
            default=str,
        )
        for table in inspector.get_table_names()
    }
    found |= {view: inspector.get_view_definition(view) for view in inspector.get_view_names()}
    engine.dispose()
    return found


@pytest.mark.parametrize("revision", migrate.KNOWN_REVISIONS[:-1])
def test_a_downgrade_gives_an_older_revision_back(store_url: str, revision: str) -> None:
    migrate_to(store_url, revision)
    with writing(store_url) as connection:
        fill(connection)
        kept = rows(connection, "measurement"), rows(connection, "epoch")
    before = described(store_url)
    store = open_store(store_url)
    assert described(store_url) != before
    migrate.downgrade(store.engine, revision)
    assert described(store_url) == before
    with writing(store_url) as connection:
        assert (rows(connection, "measurement"), rows(connection, "epoch")) == kept
    store.engine.dispose()
    assert migrate.check(open_store(store_url).engine) == []


def test_a_downgrade_to_nowhere_changes_nothing(store: ProfileStore) -> None:
    with pytest.raises(StoreError, match="there is no revision '0000'; expected one of 0001"):
        migrate.downgrade(store.engine, "0000")
    migrate.downgrade(store.engine, "0001")
    with pytest.raises(StoreError, match="is at revision 0001, which is below 0002"):
        migrate.downgrade(store.engine, "0002")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE measurement ADD COLUMN mood TEXT", "unknown column mood of measurement"),
        ("DROP INDEX ix_measurement_evidence", "missing index ix_measurement_evidence of measurement"),
        ("CREATE INDEX mine ON epoch (seconds)", "unknown index mine of epoch"),
        ("DROP VIEW oom_history", "view oom_history lacks accelerator_kind"),
        ("ALTER TABLE epoch RENAME TO epochs", "missing table epoch"),
        ("ALTER TABLE usage_day DROP COLUMN last_at", "missing column last_at of usage_day"),
    ],
)
def test_drift_is_found(store: ProfileStore, change: str, said: str) -> None:
    assert migrate.check(store.engine) == []
    with store.engine.connect() as connection:
        if "usage_day" in change:
            connection.execute(sa.text("DROP VIEW usage_by_dag"))
        connection.execute(sa.text(change))
        connection.commit()
    differences = migrate.check(store.engine)
    assert [line for line in differences if said in line], differences


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE measurement DROP CONSTRAINT ck_measurement_batch", "missing constraint ck_measurement_batch"),
        ("ALTER TABLE epoch ADD CONSTRAINT mine CHECK (epoch < 5)", "unknown constraint mine of epoch"),
        ("ALTER TABLE measurement ALTER node TYPE int USING 1", "different type of measurement.node"),
        ("ALTER TABLE decision ALTER basis DROP NOT NULL", "different nullable of decision.basis"),
    ],
)
def test_drift_that_only_postgres_allows_is_found(store: ProfileStore, change: str, said: str) -> None:
    with store.engine.connect() as connection:
        for view in views.VIEWS:
            connection.execute(sa.text(f"DROP VIEW {view}"))
        connection.execute(sa.text(change))
        connection.commit()
    assert [line for line in migrate.check(store.engine) if said in line]


def test_the_views_have_the_columns_that_the_package_knows(store: ProfileStore) -> None:
    inspector = sa.inspect(store.engine)
    assert set(inspector.get_view_names()) == set(views.VIEWS)
    for name, view in views.VIEWS.items():
        assert {column["name"] for column in inspector.get_columns(name)} == {column.name for column in view.c}


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
class TestRoles:
    """What the two group roles may do."""

    @pytest.fixture(autouse=True)
    def roles(self, store: ProfileStore) -> None:
        migrate.create_roles(store.engine)

    @contextmanager
    def as_role(self, store: ProfileStore, role: str) -> Iterator[None]:
        """Every connection of the store as a member of a role; SET ROLE leaves it with just its rights."""

        def become(connection: Any, record: object) -> None:
            connection.execute(f"SET ROLE {role}")
            connection.commit()

        store.engine.dispose()
        sa.event.listen(store.engine, "connect", become)
        yield
        sa.event.remove(store.engine, "connect", become)
        store.engine.dispose()

    def test_the_writer_writes_and_reads(self, store: ProfileStore) -> None:
        with self.as_role(store, "yolo_writer"):
            migrate.require_current(store.engine)
            store.record([measurement()], [epoch(1)], [MODEL])
            store.record([measurement(part="again")], [epoch(1)], [MODEL])
            store.decide(decision())
            store.decide(decision(margin_percent=20))
            assert len(store.measurements("yolo", "manual__1")) == 2
            for name in views.VIEWS:
                assert len(store.frame(name)) >= (name != "oom_history"), name

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM measurement",
            "UPDATE measurement SET batch = 1",
            "UPDATE epoch SET seconds = 1",
            "DROP TABLE epoch",
            "TRUNCATE decision",
            "CREATE TABLE mine (x int)",
            "UPDATE yolo_profiles_version SET version_num = '0001'",
        ],
    )
    def test_the_writer_changes_no_fact(self, store: ProfileStore, statement: str) -> None:
        with self.as_role(store, "yolo_writer"), store.engine.connect() as connection:
            with pytest.raises(sa.exc.ProgrammingError) as refused:
                connection.execute(sa.text(statement))
            assert refused.value.orig.sqlstate == "42501"

    def test_the_reader_reads_views_alone(self, store: ProfileStore) -> None:
        store.record([measurement(), measurement(part="oom", outcome="gpu_oom")], [epoch(1)], [MODEL])
        store.decide(decision())
        with self.as_role(store, "yolo_reader"):
            migrate.require_current(store.engine)
            for name in views.VIEWS:
                assert len(store.frame(name)) > 0, name
            for table in tables.metadata.tables:
                with pytest.raises(StoreError, match=r"yolo_reader|permission denied"):
                    store.frame(table)
            with pytest.raises(StoreError):
                store.record([measurement(part="mine")])

    def test_they_keep_their_rights_over_an_upgrade(self, store: ProfileStore) -> None:
        migrate.downgrade(store.engine, "0001")
        migrate.upgrade(store.engine)
        with self.as_role(store, "yolo_reader"):
            store.frame("run_history")

    def test_they_can_be_made_again(self, store: ProfileStore) -> None:
        migrate.create_roles(store.engine)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_file_has_no_roles(store: ProfileStore) -> None:
    with pytest.raises(StoreError, match="is a SQLite file, which has no roles"):
        migrate.create_roles(store.engine)


def test_gigantic_sums_stay_within_their_columns(store: ProfileStore) -> None:
    for number in (1, 2):
        store.record(
            [measurement(key=run_key(try_number=number), read_bytes=2**63 - 1, epoch_seconds=1e300, epochs_done=9)]
        )
    usage = store.frame("usage_by_dag").iloc[0]
    assert (usage["read_bytes"], usage["training_seconds"], usage["measurements"]) == (2**63 - 1, 1e300, 2)
    assert usage["peak_device_bytes"] == 3 * GIB
