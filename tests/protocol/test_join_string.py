"""Join strings: what is written is read, and what is not one is not shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.protocol.join_string import Invitation

PRINT = "0123456789abcdef" * 4
TOKEN = "a-secret_of.sixteen"

secrets = st.text("ABCxyz019._~+/=-", min_size=16, max_size=40)
hosts = st.sampled_from(["192.168.1.10", "parent.local", "[fe80::1]", "pi-01"])


@given(hosts, st.integers(1, 65535), st.sampled_from(["*", "pi-01", "a"]), secrets, st.booleans())
def test_what_is_written_is_read(host: str, port: int, name: str, token: str, tls: bool) -> None:
    scheme = "wss" if tls else "ws"
    there = Invitation(f"{scheme}://{host}:{port}", name, token, PRINT if tls else "")
    assert Invitation.parse(f" {there}\n") == there
    assert token not in repr(there)


def test_by_values() -> None:
    text = f"wss://pi:{TOKEN}@10.0.0.1:8765#{PRINT}"
    assert str(Invitation("wss://10.0.0.1:8765", "pi", TOKEN, PRINT)) == text
    assert Invitation.parse("ws://localhost:1/") == Invitation("ws://localhost:1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is incomplete, or was not in quotes"),
        (f"wss://pi:{TOKEN}@host:1#{PRINT[:-1]}", "it is incomplete"),
        (f"wss://pi:{TOKEN}@host:1", "wss:// ends with a fingerprint"),
        (f"ws://pi:{TOKEN}@host:1#{PRINT}", "ws:// without one"),
        (f"wss://-:{TOKEN}@host:1#{PRINT}", "no name and token"),
        (f"wss://pi:{TOKEN}ü@host:1#{PRINT}", "no name and token"),
        (f"https://pi:{TOKEN}@host:1#{PRINT}", "it is incomplete"),
        (f"wss://pi:{TOKEN}@host#{PRINT}", "it is incomplete"),
    ],
)
def test_what_is_none_is_not_shown(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Invitation.parse(text)
    assert words in str(caught.value) and TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)
