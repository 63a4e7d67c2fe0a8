"""A parent with a certificate and tokens, and the doctor on the way to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from genkidama.config.role import Role
from genkidama.parent import Parent
from genkidama.plugins.doctor import measurements
from genkidama.plugins.doctor.checks import Check
from tests.certificates import Signed
from tests.helpers import running, small, url

TOKEN = "a-token-that-nobody-guesses"


@asynccontextmanager
async def secured(folder: Path, signed: Signed) -> AsyncIterator[tuple[Parent, str]]:
    """A parent with a certificate and tokens, and its address."""
    tokens, token = folder / "tokens", folder / "token"
    for file, text in ((tokens, f"* {TOKEN}\n"), (token, f"{TOKEN}\n")):
        file.write_text(text)
        file.chmod(0o600)
    async with running(
        small(parent={"tokens_file": str(tokens), **signed.settings()}), folder / "run"
    ) as parent:
        yield parent, url(parent.address).replace("ws:", "wss:")


async def examined(**settings: str) -> dict[str, Check]:
    """The rows of a child's way to the parent that this loop serves; its settings are given."""
    return await asyncio.to_thread(
        lambda: {
            check.name: check for check in measurements.examine(Role.from_dict(dict(settings)))
        }
    )
