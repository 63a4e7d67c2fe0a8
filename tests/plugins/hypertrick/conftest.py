"""Searches that need not wait: databases whose tables are there, nodes that ask again at once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def ready_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search finds Optuna's tables in its file, and that they are of this version.

    To make and to compare them takes longer than most tests; `tests/test_search_end_to_end.py`
    does it.
    """
    from genkidama.plugins.hypertrick import study
    from tests.plugins.hypertrick.studies import head, make_tables

    really = study._open_database

    def opening(url: str) -> study.optuna.storages.RDBStorage:
        file = study.make_url(url).database if url.startswith("sqlite:") else None
        if file and Path(file).parent.is_dir() and not Path(file).exists():
            make_tables(Path(file))
        return really(url)

    monkeypatch.setattr(study, "_open_database", opening)
    newest = head()
    asked = "optuna.storages._rdb.storage._VersionManager.get_head_version"
    monkeypatch.setattr(asked, lambda _: newest, raising=False)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits in a search asks again after hundredths of a second."""
    monkeypatch.setattr("genkidama.child.transport.BACKOFF_SECONDS", (0.01, 0.05))
    monkeypatch.setattr("genkidama.plugins.hypertrick.search._SOON_SECONDS", 0.01)
    monkeypatch.setattr("genkidama.plugins.hypertrick.search._BUSY_SECONDS", 0.02)
    monkeypatch.setattr("genkidama.plugins.hypertrick.trial_store.RETRY_SECONDS", 0.1)
    monkeypatch.setattr("genkidama.parent.parent.HOUSEKEEPING_SECONDS", 0.02)
