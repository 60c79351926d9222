"""An outage of the database: telling it from trouble that stays, and waiting for its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
import tenacity

from yolo_airflow_provider.profiles import migrate, trouble
from yolo_airflow_provider.profiles.errors import StoreUnavailable

PATIENCE_SECONDS = 120.0
"""For how long a read or a write is tried again while the database cannot serve: a restart, a failover."""
FIRST_WAIT_SECONDS = 0.2
"""The longest wait before the second attempt; the limit doubles with every attempt."""
LONGEST_WAIT_SECONDS = 5.0
"""The longest wait between two attempts."""

T = TypeVar("T")
log = logging.getLogger(__name__)


def patiently(engine: sa.Engine, attempt: Callable[[], T], *, doing: str, patience_seconds: float) -> T:
    """Do something with the database, again and again while an outage prevents it.

    The waits are random within a limit that doubles, so that the tasks that one restart stopped do not come back
    together.

    Args:
        engine: of the database.
        attempt: what is done, as a whole each time. It has to be the same when it is done twice: the answer to a
            commit that took place can be lost.
        doing: what that is, as a verb for the message: "read", "write to", "open".
        patience_seconds: no attempt begins later than this after the first; 0 means one attempt.

    Raises:
        StoreUnavailable: the outage outlasted the patience.
        StoreDenied: the database does not allow it.
        StoreError: it fails for another reason that waiting does not cure.
    """

    def once() -> T:
        try:
            return attempt()
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            raise trouble.explain(error, engine, doing) from error

    def say_that_it_waits(state: tenacity.RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            log.warning("%s. Trying again for up to %g s.", state.outcome.exception(), patience_seconds)

    def give_up(state: tenacity.RetryCallState) -> T:
        error = state.outcome.exception() if state.outcome is not None else None
        tried = f"; tried {state.attempt_number} times in {_since(started):.1f} s" if state.attempt_number > 1 else ""
        raise StoreUnavailable(f"{error}{tried}") from (error and error.__cause__)

    started = time.monotonic()
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(StoreUnavailable),
        wait=tenacity.wait_random_exponential(multiplier=FIRST_WAIT_SECONDS, max=LONGEST_WAIT_SECONDS),
        stop=tenacity.stop_before_delay(patience_seconds),
        before_sleep=say_that_it_waits,
        retry_error_callback=give_up,
    )
    result = retrying(once)
    if retrying.statistics["attempt_number"] > 1:
        log.info("The profile store %s answers again after %.1f s.", migrate.describe(engine), _since(started))
    return result


def _since(started: float) -> float:
    return time.monotonic() - started
