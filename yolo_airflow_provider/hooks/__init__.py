"""Airflow hooks: from an Airflow connection to the profile store."""

from __future__ import annotations
