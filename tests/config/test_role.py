"""A child machine's own file, `child.toml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.config.decoding import NAME
from genkidama.config.role import Role
from genkidama.errors import ConfigurationError


def test_a_role_by_values(tmp_path: Path) -> None:
    path = tmp_path / "child.toml"
    path.write_text("")
    assert Role.load(path) == Role(
        parent="ws://127.0.0.1:8765", name="", cores="experiment", state=""
    )
    path.write_text(
        'parent = "wss://genki.example:443/x"\nname = "pi-3"\n'
        'cores = 4\nstate = "/var/lib/genkidama"\n'
    )
    assert Role.load(path) == Role(
        parent="wss://genki.example:443/x", name="pi-3", cores=4, state="/var/lib/genkidama"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'parent = "http://pi"',
            "parent = 'http://pi': expected ws://HOST:PORT or wss://HOST:PORT",
        ),
        (
            'parent = "ws://a:1,b:2"',
            "parent = 'ws://a:1,b:2': expected ws://HOST:PORT or wss://HOST:PORT",
        ),
        ('name = "my pi"', f"name = 'my pi': expected {NAME}"),
        ('cores = "many"', "cores = 'many': expected one of 'auto', 'experiment', or int >= 1"),
        ("cores = 0", "cores = 0: expected int >= 1"),
        (
            "[settings.network]\nhidden = [8]",
            "settings.network.hidden = [8]: is the same for all children; a child may have "
            "its own environment.options, environment.lanes, environment.period, environment.safe, "
            "environment.offline_seconds, algorithm.demonstrations, child.backend, "
            "child.hang_seconds, ga3c",
        ),
        (
            "beta = 0.5",
            "beta = 0.5: no such setting; "
            "known here: allow, ca_file, cores, fingerprint, name, parent, role, settings, state, "
            "stay, token_file",
        ),
    ],
)
def test_a_role_that_is_wrong_is_told_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "child.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        Role.load(path)
    assert str(caught.value) == f"{path}: {line}"


def test_settings_of_its_own_are_tables_or_dotted_names(tmp_path: Path) -> None:
    path = tmp_path / "child.toml"
    path.write_text(
        '[settings]\nchild.backend = "ga3c"\n"ga3c.agents" = 3\n'
        '[settings.environment]\noptions = { port = "/dev/ttyUSB0", motor = { volts = 5.5 } }\n'
    )
    assert Role.load(path).changes == {
        "child.backend": "ga3c",
        "ga3c.agents": 3,
        "environment.options.port": "/dev/ttyUSB0",
        "environment.options.motor.volts": 5.5,
    }


def test_a_parent_in_parts_has_several_addresses() -> None:
    places = "ws://a:8765, wss://b:8765/x,ws://[::1]:9"
    assert Role.from_dict({"parent": places}).parent == places


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("", True), ("pi-3.local_2", True), ("3", True), ("-pi", False), ("pi\n", False)],
)
def test_a_name_is_one_that_a_folder_can_have(name: str, allowed: bool) -> None:
    if allowed:
        assert Role.from_dict({"name": name}).name == name
    else:
        with pytest.raises(ConfigurationError, match=NAME):
            Role.from_dict({"name": name})


def test_a_name_has_64_letters_at_most() -> None:
    assert len(Role.from_dict({"name": "a" * 64}).name) == 64
    with pytest.raises(ConfigurationError, match="expected str of length <= 64"):
        Role.from_dict({"name": "a" * 65})
