"""The token and the authority's certificates of a child: where they are found, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.child.child import Child
from genkidama.child.credentials import read_token
from genkidama.config.role import Role
from genkidama.errors import ConfigurationError

TOKEN, OTHER = "token-of-the-pi-01", "token-of-the-pi-02"


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GENKIDAMA_TOKEN", raising=False)


def written(path: Path, content: str | bytes, mode: int = 0o600) -> Role:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return Role(token_file=str(path))


def test_the_token_is_in_the_file_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_token(Role()) == ""
    role = written(tmp_path / "token", f"{TOKEN}\n")
    assert read_token(role) == TOKEN
    monkeypatch.setenv("GENKIDAMA_TOKEN", f" {OTHER}\n")
    assert read_token(role) == OTHER
    assert read_token(Role()) == OTHER
    monkeypatch.setenv("GENKIDAMA_TOKEN", "")
    assert read_token(role) == TOKEN
    monkeypatch.setenv("GENKIDAMA_TOKEN", "too short")
    with pytest.raises(
        ConfigurationError,
        match=r"^GENKIDAMA_TOKEN: holds no token: expected 16 to 1024 characters of ",
    ):
        read_token(role)


@pytest.mark.parametrize(
    "content",
    ["", "\n", "fifteen-letters", f"pi {TOKEN}", f"{TOKEN}\n{OTHER}\n", f"{TOKEN}ü", b"\xff" * 20],
)
def test_a_file_that_holds_no_token_is_named_and_not_shown(
    tmp_path: Path, content: str | bytes
) -> None:
    role = written(tmp_path / "token", content)
    with pytest.raises(ConfigurationError) as caught:
        read_token(role)
    words = (
        "cannot be read: is no UTF-8 text"
        if isinstance(content, bytes)
        else "holds no token: expected 16 to 1024 characters of "
    )
    assert str(caught.value).startswith(f"token_file = {role.token_file!r}: {words}")
    assert TOKEN not in str(caught.value) and "fifteen" not in str(caught.value)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "token")
    with pytest.raises(ConfigurationError) as caught:
        read_token(Role(token_file=path))
    assert str(caught.value) == (
        f"token_file = {path!r}: cannot be read: No such file or directory; "
        "put this child's token there, or take the setting out"
    )


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_token_that_everybody_may_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, warned: bool
) -> None:
    assert read_token(written(tmp_path / "token", TOKEN, mode)) == TOKEN
    assert ("everybody on this machine may read the token" in capsys.readouterr().err) is warned


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "holds no PEM certificate"),
        ("no PEM", "holds no PEM certificate"),
    ],
)
def test_an_authority_that_is_none(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        Child.from_role(Role(parent="wss://parent:1", ca_file=str(path)))
    assert str(caught.value) == f"ca_file = '{path}': {words}"
