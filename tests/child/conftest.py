"""What parents ask a child for, and how long it waits for an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.child import transport
from tests.certificates import Authority, Signed
from tests.child.talking import TOKEN


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"pi {TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="session")
def signed(authority: Authority) -> Signed:
    return authority.sign("IP:127.0.0.1", "DNS:localhost")


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason to be given for a parent that is not reached."""
    monkeypatch.setattr(transport, "REPLY_SECONDS", 30.0)
