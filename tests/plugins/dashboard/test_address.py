"""Where a parent's page is."""

from __future__ import annotations

import pytest

from genkidama.plugins.dashboard.address import page_of


@pytest.mark.parametrize(
    ("host", "secure", "page"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8765/"),
        ("0.0.0.0", True, "https://127.0.0.1:8765/"),
        ("fd00::1", True, "https://[fd00::1]:8765/"),
    ],
)
def test_the_page_of(host: str, secure: bool, page: str) -> None:
    assert page_of(host, 8765, secure=secure) == page
