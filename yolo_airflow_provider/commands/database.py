"""`yolo-airflow db`: make, upgrade, check and downgrade a store, and make its roles."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from yolo_airflow_provider.commands.arguments import Subparsers, add_command
from yolo_airflow_provider.commands.errors import CommandError
from yolo_airflow_provider.commands.opening import PATIENCE_SECONDS, as_owner, store_url

if TYPE_CHECKING:
    import sqlalchemy as sa

T = TypeVar("T")


def add_parser(commands: Subparsers) -> None:
    """Add `db` and its commands."""
    text = "Make, upgrade and check a profile store."
    actions = commands.add_parser("db", help=text, description=text).add_subparsers(dest="action", required=True)
    add_command(actions, "upgrade", upgrade, text="Make a profile store, or bring one up to date. What is in it stays.")
    add_command(
        actions,
        "check",
        check,
        text="Compare a profile store with what this package expects. Exits with 1 and names each difference.",
    )
    parser = add_command(
        actions,
        "downgrade",
        downgrade,
        text="Take a profile store back to an older revision. What the revisions after it added is lost.",
    )
    parser.add_argument("revision", help="revision to go back to, such as 0002")
    parser.add_argument("--yes", action="store_true", help="do it; without, only what would be lost is said")
    add_command(
        actions,
        "roles",
        roles,
        text="Make the roles yolo_writer and yolo_reader on PostgreSQL, or give them their rights again."
        " Run it as the owner of the tables, who may create roles.",
    )


def upgrade(options: argparse.Namespace) -> int:
    """Make a store or bring it to the newest revision."""
    from yolo_airflow_provider.profiles import migrate
    from yolo_airflow_provider.profiles.engine import open_store

    # Often the first step of a deployment, whose database may still be starting: as patient as a task.
    store = open_store(store_url(options.url))
    print(f"{migrate.describe(store.engine)} is up to date, at revision {migrate.HEAD_REVISION}")
    return 0


def check(options: argparse.Namespace) -> int:
    """Say whether a store is what this package expects."""
    from yolo_airflow_provider.profiles import migrate

    engine = _engine(options.url)
    differences = _patiently(engine, lambda: migrate.check(engine), "check")
    for difference in differences:
        print(f"{options.title}: {migrate.describe(engine)}: {difference}", file=sys.stderr)
    if not differences:
        print(f"{migrate.describe(engine)} is at revision {migrate.HEAD_REVISION}, and nothing differs")
    return 1 if differences else 0


def downgrade(options: argparse.Namespace) -> int:
    """Go back to an older revision."""
    from yolo_airflow_provider.profiles import migrate

    engine = _engine(options.url)
    if not options.yes:
        losses = _patiently(engine, lambda: _losses(engine, options.revision), "read")
        listed = "\n".join(f"  {line}" for line in losses)
        raise CommandError(
            f"nothing was changed. Taking {migrate.describe(engine)} back to {options.revision} undoes these "
            f"revisions, and every value in what they added is lost:\n{listed}\n"
            "Keep a copy (yolo-airflow profiles export), then add --yes"
        )
    _patiently(engine, lambda: migrate.downgrade(engine, options.revision), "downgrade")
    print(f"{migrate.describe(engine)} is at revision {options.revision}")
    return 0


def roles(options: argparse.Namespace) -> int:
    """Make the roles that tasks write and people read with."""
    from yolo_airflow_provider.profiles import migrate

    engine = _engine(options.url)
    _patiently(engine, lambda: migrate.create_roles(engine), "make the roles of")
    print(f"{migrate.describe(engine)} has the roles yolo_writer and yolo_reader; grant them to your logins")
    return 0


def _engine(url: str | None) -> sa.Engine:
    """An engine for a store that has to be there already."""
    from yolo_airflow_provider.profiles.engine import make_engine

    engine = make_engine(store_url(url))
    # Connecting to a file that does not exist would make one.
    if engine.dialect.name == "sqlite" and not Path(str(engine.url.database)).exists():
        raise CommandError(f"there is no profile store at {engine.url.database}")
    return engine


def _patiently(engine: sa.Engine, work: Callable[[], T], doing: str) -> T:
    from yolo_airflow_provider.profiles.errors import StoreDenied
    from yolo_airflow_provider.profiles.outage import patiently

    try:
        return patiently(engine, work, doing=doing, patience_seconds=PATIENCE_SECONDS)
    except StoreDenied as error:
        raise as_owner(engine, error, doing) from error


def _losses(engine: sa.Engine, revision: str) -> list[str]:
    """The revisions that would be undone, newest first, each with what it says of itself."""
    from alembic.script import ScriptDirectory

    from yolo_airflow_provider.profiles import migrate

    known = migrate.KNOWN_REVISIONS
    if revision not in known:
        raise CommandError(f"there is no revision {revision!r}; expected one of {', '.join(known)}")
    migrate.is_current(engine)  # refuses a store of a newer version
    with engine.connect() as connection:
        current = migrate.current_revision(connection)
    undone = () if current is None else known[known.index(revision) + 1 : known.index(current) + 1]
    if not undone:
        state = "has no tables" if current is None else f"is at revision {current}"
        raise CommandError(f"{migrate.describe(engine)} {state}; there is nothing to undo down to {revision}")
    scripts = ScriptDirectory(str(migrate.scripts_folder()))
    return [f"{name}: {scripts.get_revision(name).doc}" for name in reversed(undone)]
