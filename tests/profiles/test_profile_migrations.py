from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from profile_rows import decision

from yolo_airflow_provider.profiles import engine as engine_module, migrate, tables
from yolo_airflow_provider.profiles.engine import make_engine, open_store
from yolo_airflow_provider.profiles.errors import StoreError, StoreOutdatedError, StoreVersionError

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "profiles 50% ü.db"


def open_file(file: Path, **options: Any):
    return open_store(sa.URL.create("sqlite", database=str(file)), **options)


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def set_revision(file: Path, revision: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute("UPDATE yolo_profiles_version SET version_num = ?", [revision])
    connection.commit()
    connection.close()


def test_the_constants_are_the_scripts():
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts_folder()))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [migrate.HEAD_REVISION]
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == migrate.KNOWN_REVISIONS


def test_the_migrations_make_the_tables(file: Path):
    store = open_file(file)
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
        assert compare_metadata(context, tables.metadata) == []


def test_the_migrations_make_the_constraints(file: Path):
    """Autogenerate does not look at these."""
    plain = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    tables.metadata.create_all(plain)
    migrated, expected = sa.inspect(open_file(file).engine), sa.inspect(plain)
    for table in tables.metadata.tables:
        for what in ("check_constraints", "unique_constraints", "foreign_keys"):
            lists = [getattr(found, f"get_{what}")(table) for found in (migrated, expected)]
            left, right = (sorted(entries, key=lambda entry: entry["name"]) for entries in lists)
            assert left == right, (table, what)
        assert migrated.get_pk_constraint(table) == expected.get_pk_constraint(table)
        where = [
            {
                i["name"]: (i["column_names"], str(i["dialect_options"].get("sqlite_where")))
                for i in f.get_indexes(table)
            }
            for f in (migrated, expected)
        ]
        assert where[0] == where[1]


def test_a_new_store_is_made_with_its_folder_and_settings(file: Path):
    store = open_file(file)
    assert file.exists()
    with store.engine.connect() as connection:
        for pragma, value in (
            ("journal_mode", "wal"),
            ("busy_timeout", 30_000),
            ("foreign_keys", 1),
            ("synchronous", 1),
        ):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
        assert migrate.current_revision(connection) == migrate.HEAD_REVISION


def test_opening_again_changes_nothing(file: Path):
    open_file(file)
    before = digest(file.parent)
    open_file(file)
    open_file(file, upgrade=False)
    assert digest(file.parent) == before


def test_alembic_is_not_imported_for_a_current_store(file: Path):
    open_file(file)
    code = (
        "import sys\nfrom yolo_airflow_provider.profiles.engine import open_store\n"
        f"open_store('sqlite:///{file}')\n"
        "print([name for name in ('alembic', 'pandas', 'airflow', 'pydantic') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


def test_the_rows_need_no_sqlalchemy():
    code = "import sys\nimport yolo_airflow_provider.profiles.records\nprint('sqlalchemy' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "False"


def test_upgrading_is_quiet_and_leaves_logging_alone(file: Path, capfd: pytest.CaptureFixture[str]):
    before = (logging.root.level, list(logging.root.handlers), logging.getLogger("alembic").level)
    open_file(file)
    assert (logging.root.level, list(logging.root.handlers), logging.getLogger("alembic").level) == before
    assert not logging.getLogger("yolo_airflow_provider").disabled
    assert capfd.readouterr() == ("", "")


def test_a_newer_store_is_refused_and_left_as_it_is(file: Path):
    open_file(file)
    set_revision(file, "0999")
    before = digest(file.parent)
    for options in ({}, {"upgrade": False}):
        with pytest.raises(StoreVersionError) as caught:
            open_file(file, **options)
        said = str(caught.value)
        assert str(file) in said
        assert "revision 0999" in said
        assert f"knows is {migrate.HEAD_REVISION}" in said
        assert "pip install --upgrade yolo-airflow-provider" in said
    assert digest(file.parent) == before


def test_a_newer_store_is_refused_by_the_upgrade_itself(file: Path):
    store = open_file(file)
    set_revision(file, "0999")
    with pytest.raises(StoreVersionError):
        migrate.upgrade(store.engine)


def test_an_upgrade_that_fails_leaves_an_empty_store(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import shutil

    broken = tmp_path / "scripts"
    shutil.copytree(migrate.scripts_folder(), broken)
    (script,) = (broken / "versions").glob("0001*.py")
    script.write_text(script.read_text().replace("CREATE VIEW model_spectrum AS\nSELECT", "CREATE VIEW nonsense"))
    with monkeypatch.context() as patched:
        patched.setattr(migrate, "scripts_folder", lambda: broken)
        with pytest.raises(StoreError, match=r"cannot open the profile store .*syntax error"):
            open_file(file)
    with make_engine(sa.URL.create("sqlite", database=str(file))).connect() as connection:
        assert sa.inspect(connection).get_table_names() == []
    open_file(file).decide(decision())


def test_without_upgrade_an_empty_or_missing_store_is_refused(file: Path):
    with pytest.raises(StoreError, match="there is no profile store at"):
        open_file(file, upgrade=False)
    assert not file.parent.exists()
    file.parent.mkdir()
    sqlite3.connect(file).close()
    file.touch()
    with pytest.raises(StoreOutdatedError, match=r"has no tables yet.*`yolo-airflow db upgrade`"):
        open_file(file, upgrade=False)


def test_a_database_of_someone_else_is_not_touched(file: Path):
    file.parent.mkdir()
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE model (x)")
    connection.close()
    before = digest(file.parent)
    with pytest.raises(StoreError, match="has tables named model but no yolo_profiles_version"):
        open_file(file)
    assert digest(file.parent) == before


def test_a_file_that_is_no_database_is_named(file: Path):
    file.parent.mkdir()
    file.write_text("not a database, whatever its name says" * 50)
    with pytest.raises(StoreError, match=r"cannot open the profile store .*not a database"):
        open_file(file)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make the profile store"):
        open_file(tmp_path / "file" / "profiles.db")


def test_a_lock_that_is_never_released_ends_in_an_error(file: Path, monkeypatch: pytest.MonkeyPatch):
    import fcntl

    monkeypatch.setattr(engine_module, "LOCK_TIMEOUT_SECONDS", 0)
    file.parent.mkdir()
    with open(f"{file}.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match=r"another process has held .*\.lock"):
            open_file(file)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("no url, password hunter2", "cannot be read"),
        ("postgresql://u:hunter2@host:port/db", "cannot be read"),
        ("mysql://u:hunter2@host/db", "not on 'mysql'"),
        ("sqlite://", "needs a file of its own"),
        ("sqlite:///:memory:", "needs a file of its own"),
        ("sqlite:///file:x?mode=memory&uri=true", "needs a file of its own"),
    ],
)
def test_a_url_that_names_no_store_is_refused_without_repeating_it(url: str, said: str):
    with pytest.raises(StoreError, match=said) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_is_reached_by_psycopg(scheme: str):
    pytest.importorskip("psycopg")
    assert make_engine(f"{scheme}://u:hunter2@host/db").driver == "psycopg"


def test_a_server_that_is_not_there_is_named_without_the_password():
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match=r"u:\*\*\*@127\.0\.0\.1:1/db") as caught:
        open_store("postgresql://u:hunter2@127.0.0.1:1/db?connect_timeout=2", patience_seconds=0)
    assert "hunter2" not in str(caught.value)


def test_the_alembic_command_line_works_for_developers(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'dev.db'}"
    command = [
        sys.executable,
        "-m",
        "alembic",
        "-c",
        str(REPOSITORY / "profiles_db" / "alembic.ini"),
        "-x",
        f"url={url}",
    ]
    subprocess.run(
        [*command, "upgrade", "head"],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    open_store(url, upgrade=False)
