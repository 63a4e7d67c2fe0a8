"""docs/security.md is held to the code: a parent and a child can use what its commands make."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from genkidama.child import transport
from genkidama.child.child import Child
from genkidama.child.transport import read_token
from genkidama.config.role import Role
from tests.certificates import needs_openssl
from tests.helpers import Serving, command, constant, running
from tests.texts import code_blocks

MAKING, STARTING = code_blocks("docs/security.md", "bash")


@needs_openssl
async def test_what_is_made_by_hand_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GENKIDAMA_TOKEN", raising=False)
    done = subprocess.run(
        ["bash", "-e"], input=MAKING, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "certificate.pem: OK" in done.stdout
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    make = transport.make_context

    def strict(ca_file: str) -> ssl.SSLContext:
        """As Python does by itself from 3.13 on."""
        context = make(ca_file)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(transport, "make_context", strict)
    files = {
        f"{key}_file": str(tmp_path / name)
        for key, name in (
            ("tokens", "tokens"),
            ("certificate", "certificate.pem"),
            ("key", "key.pem"),
        )
    }
    token, authority = (
        read_token(Role(token_file=str(tmp_path / "token-pi-02"))),
        str(tmp_path / "ca.pem"),
    )
    async with running(constant(parent=files), tmp_path / "run") as parent:
        for host in ("127.0.0.1", "localhost"):
            async with Serving(
                Child(
                    f"wss://{host}:{parent.address[1]}",
                    name="pi-02",
                    token=token,
                    ca_file=authority,
                )
            ) as child:
                await child.exchanged(2)
        assert parent.server.trial.version >= 2
        assert not parent.server.refusals


def test_what_is_started_knows_these_options(tmp_path: Path) -> None:
    lines = STARTING.splitlines()
    assert len(lines) == 2
    for line in lines:
        module, *rest = line.removeprefix("python -m ").split()
        said = command(tmp_path, module, "--help").out
        for option in (word for word in rest if word.startswith("--")):
            assert f"{option} " in said
