"""The playbooks as files, and the secrets that they make: what can be said without a machine."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

from genkidama.config.role import Role
from tests.helpers import ROOT

PLAYBOOKS = ROOT / "deploy/ansible"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PARENT = ["pi0.local", "localhost", "127.0.0.1", "::1"]

pytestmark = pytest.mark.deploy


def tool(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(folder),
        "NO_COLOR": "1",
    }
    return subprocess.run(
        [str(binaries / command[0]), *command[1:]],
        cwd=PLAYBOOKS,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_ansible_lint_is_content_at_its_strictest(tmp_path: Path) -> None:
    said = tool(
        "ansible-lint",
        "--offline",
        "--profile",
        "production",
        "--config-file",
        "/dev/null",
        folder=tmp_path,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert "0 failure(s), 0 warning(s)" in said.stdout + said.stderr


@pytest.mark.parametrize(
    "path", sorted(PLAYBOOKS.rglob("*.yml")), ids=lambda path: str(path.relative_to(PLAYBOOKS))
)
def test_every_module_comes_with_ansible_itself(path: Path) -> None:
    named = set(
        re.findall(r"(?m)^\s+([a-z_]+\.[a-z_]+)\.[a-z_]+:", path.read_text(encoding="utf-8"))
    )
    assert named <= {"ansible.builtin"}


def test_the_example_names_one_parent_and_four_children(tmp_path: Path) -> None:
    said = json.loads(
        tool("ansible-inventory", "-i", "inventory.example.ini", "--list", folder=tmp_path).stdout
    )
    assert said["parent"]["hosts"] == ["raspberrypi-0.local"]
    assert said["children"]["hosts"] == [f"raspberrypi-{number}.local" for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("text", "learns"),
    [
        ('[parent]\n  rule="experience" # ', "true"),
        ("parent.rule = 'experience'", "true"),
        ('parent."rule" = """experience"""', "true"),
        ('parent = { alpha = 1.0, rule = "experience" }', "true"),
        ('[parent]\nrule = "blend" # or "experience"\n# rule = "experience"', "false"),
    ],
)
def test_a_parent_that_learns_is_known_by_its_experiment(
    tmp_path: Path, text: str, learns: str
) -> None:
    (tmp_path / "experiment.toml").write_text(text)
    debug = ["-i", "inventory.example.ini", "localhost", "-m", "ansible.builtin.debug"]
    debug += ["-a", "var=genkidama_parent_learns"]
    debug += ["-e", f"genkidama_experiment={tmp_path}/experiment.toml"]
    said = tool("ansible", *debug, folder=tmp_path)
    assert f"genkidama_parent_learns: {learns}\n" in said.stdout, said.stderr


@pytest.mark.parametrize(
    ("name", "allow"), [("7", "\"['mine', 'theirs']\""), ('"pi"', '["mine", "theirs"]')]
)
def test_a_childs_settings_are_those_of_the_inventory(
    tmp_path: Path, name: str, allow: str
) -> None:
    """A name may be a number, and -e gives a list as its text."""
    given = f'{{"genkidama_name": {name}, "genkidama_allow": {allow}, "genkidama_cores": "4"}}'
    template = ["-i", "inventory.example.ini", "raspberrypi-1.local", "-c", "local"]
    template += ["-m", "ansible.builtin.template", "-e", "@roles/child/vars/main.yml", "-e", given]
    template += ["-e", f"ansible_python_interpreter={sys.executable}"]
    template += ["-a", f"src=roles/child/templates/child.toml.j2 dest={tmp_path}/child.toml"]
    said = tool("ansible", *template, folder=tmp_path)
    assert said.returncode == 0, said.stdout + said.stderr
    role = Role.from_dict(tomllib.loads((tmp_path / "child.toml").read_text()))
    assert (role.name, role.allow, role.cores) == (name.strip('"'), ("mine", "theirs"), 4)


def test_secrets_of_another_computer_are_said_to_be_that(tmp_path: Path) -> None:
    (tmp_path / "secrets.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n" + "61" * 40 + "\n")
    (tmp_path / "play.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  roles: [credentials]\n"
    )
    play = ["-i", "inventory.example.ini", tmp_path / "play.yml"]
    play += ["-e", f"genkidama_secrets={tmp_path}/secrets.yml"]
    said = tool("ansible-playbook", *map(str, play), folder=tmp_path)
    assert "cannot be read with the vault's password of this computer" in said.stdout, said.stdout


def test_the_vaults_password_is_made_once_and_is_ones_own(tmp_path: Path) -> None:
    script = [str(PLAYBOOKS / "vault-password.sh")]
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    first, second = (
        subprocess.run(script, env=environment, capture_output=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second and len(first) == 44
    kept = tmp_path / ".config/genkidama/vault-password"
    assert kept.read_bytes() == first and kept.stat().st_mode & 0o077 == 0
    other = subprocess.run(
        script,
        env=environment | {"GENKIDAMA_VAULT_PASSWORD_FILE": str(tmp_path / "other")},
        capture_output=True,
        check=True,
    )
    assert other.stdout != first


# Secrets.


@pytest.fixture(scope="module")
def credentials() -> ModuleType:
    pytest.importorskip("cryptography")
    specification = importlib.util.spec_from_file_location(
        "credentials", ROOT / "deploy/credentials.py"
    )
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_first_run_makes_everything(credentials: ModuleType) -> None:
    made, found = credentials.renew(None, PARENT, ["pi1", "pi2"], NOW)
    assert made == [
        "certificate authority",
        "certificate for pi0.local, localhost, 127.0.0.1, ::1",
        "token for pi1",
        "token for pi2",
    ]
    assert len({*found["tokens"].values()}) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", token) for token in found["tokens"].values())


def test_what_is_right_is_kept(credentials: ModuleType) -> None:
    _, found = credentials.renew(None, PARENT, ["pi1", "pi2"], NOW)
    assert credentials.renew(found, PARENT, ["pi1", "pi2"], NOW + timedelta(days=1000)) == (
        [],
        found,
    )


def test_a_child_more_or_less_changes_no_others_token(credentials: ModuleType) -> None:
    _, before = credentials.renew(None, PARENT, ["pi1", "pi2"], NOW)
    made, after = credentials.renew(before, PARENT, ["pi2", "pi3"], NOW)
    assert made == ["token for pi3", "no token for pi1 any more"]
    assert after["tokens"]["pi2"] == before["tokens"]["pi2"] and list(after["tokens"]) == [
        "pi2",
        "pi3",
    ]
    assert after["parent"] == before["parent"] and after["authority"] == before["authority"]


@pytest.mark.parametrize(
    ("names", "days", "made"),
    [
        (["10.0.0.1"], 0, ["certificate for 10.0.0.1"]),
        (PARENT, 1095 - 59, [f"certificate for {', '.join(PARENT)}"]),
        (PARENT, 3650 - 1094, ["certificate authority", f"certificate for {', '.join(PARENT)}"]),
    ],
    ids=["another name", "it ends soon", "the authority ends before a new one would"],
)
def test_a_certificate_is_renewed(
    credentials: ModuleType, names: list[str], days: int, made: list[str]
) -> None:
    _, before = credentials.renew(None, PARENT, ["pi1"], NOW)
    reasons, after = credentials.renew(before, names, ["pi1"], NOW + timedelta(days=days))
    assert reasons == made
    assert after["parent"] != before["parent"] and after["tokens"] == before["tokens"]
    assert (after["authority"] != before["authority"]) == ("certificate authority" in made)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is what looks at them")
def test_the_certificate_satisfies_a_strict_reader(credentials: ModuleType, tmp_path: Path) -> None:
    _, found = credentials.renew(None, PARENT, ["pi1"], datetime.now(UTC))
    for name, text in (
        ("ca", found["authority"]["certificate"]),
        ("leaf", found["parent"]["certificate"]),
        ("key", found["parent"]["key"]),
    ):
        (tmp_path / f"{name}.pem").write_text(text)
    # A machine without a battery may have any time since its system was made.
    past = f"-attime {int((datetime.now(UTC) - timedelta(days=900)).timestamp())}"
    for name in ("-verify_hostname pi0.local", "-verify_ip 127.0.0.1", "-verify_ip ::1", past):
        command = [
            "openssl",
            "verify",
            "-x509_strict",
            "-purpose",
            "sslserver",
            *name.split(),
            "-CAfile",
            "ca.pem",
            "leaf.pem",
        ]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert said.stdout == "leaf.pem: OK\n", said.stderr
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        tmp_path / "leaf.pem", tmp_path / "key.pem"
    )
