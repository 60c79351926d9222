"""A worker's process ignores SIGTERM once it answers; the tests' process, which runs many, does not."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """What SIGTERM did before the test it does after it, here and in what is started from here."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
