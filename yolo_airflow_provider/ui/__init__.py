"""The Airflow plugin: what the provider adds to the UI."""

from __future__ import annotations
