"""Where a study lies, and what is said if it does not lie there."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.hypertrick import report
from tests.plugins.hypertrick.studies import make_study, url_of


def test_a_study_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    make_study(tmp_path, trials=1, phases=1)
    with pytest.raises(ConfigurationError, match=r"study 'serch' is not in .*; it holds: search"):
        report.report(url_of(tmp_path), "serch", None, "RUN")


def test_a_report_makes_no_file_and_says_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"study 'search': there is no file .*study\.db"):
        report.report(url_of(tmp_path), "search", None, "RUN")
    assert not list(tmp_path.iterdir())
    (tmp_path / "study.db").write_bytes(b"no database " * 1000)
    with pytest.raises(EnvironmentFailure, match=r"study 'search' in sqlite.*cannot be read"):
        report.report(url_of(tmp_path), "search", None, "RUN")
