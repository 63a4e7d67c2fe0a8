"""A certificate of a parent on this machine that lasts."""

from __future__ import annotations

import pytest

from tests.certificates import Authority, Signed


@pytest.fixture(scope="module")
def signed(authority: Authority) -> Signed:
    """What a parent on this machine has."""
    return authority.sign("IP:127.0.0.1", "DNS:localhost", ends=90)
