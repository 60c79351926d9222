"""The instrument: what a run used and what it waited for, read from inside the pod."""

from __future__ import annotations
