"""The decisions, as pure functions: how much memory a batch takes, and which batch fits what is offered."""

from __future__ import annotations
