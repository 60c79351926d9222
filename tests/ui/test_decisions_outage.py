"""The page of decisions while the profile store is away."""

from __future__ import annotations

import logging
from unittest.mock import patch

import pytest
from fastapi import HTTPException

from yolo_airflow_provider.hooks.profile_store import ProfileStoreHook
from yolo_airflow_provider.profiles.errors import StoreUnavailable


def test_the_page_does_not_wait_for_a_store_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    from yolo_airflow_provider.ui.decisions import decisions

    away = StoreUnavailable("no answer from db.internal")
    with (
        caplog.at_level(logging.WARNING),
        patch.object(ProfileStoreHook, "get_store", side_effect=away) as get_store,
        pytest.raises(HTTPException) as raised,
    ):
        decisions()
    get_store.assert_called_once_with(patience_seconds=0)
    assert raised.value.status_code == 503
    assert "db.internal" not in raised.value.detail  # where the database is, is not every viewer's business
    assert "db.internal" in caplog.text
