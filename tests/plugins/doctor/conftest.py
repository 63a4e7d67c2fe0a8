"""An authority, and a certificate of it for a parent on this machine."""

from __future__ import annotations

import pytest

from tests.certificates import Authority, Signed


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "one")


@pytest.fixture(scope="module")
def signed(authority: Authority) -> Signed:
    """What a parent on this machine has."""
    return authority.sign("IP:127.0.0.1", "DNS:localhost", ends=90)
