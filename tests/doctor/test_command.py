"""The real command against real parents, real certificates and real deaths."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import genkidama
from genkidama.doctor import holder, host, parent, software
from genkidama.doctor.__main__ import main
from genkidama.doctor.command import _examine, _Step
from genkidama.doctor.judgements import Check
from genkidama.messages import PROTOCOL
from genkidama.parent import Parent
from genkidama.parent import channel as channel_module
from genkidama.role import Role
from genkidama.settings import ParentSettings
from tests.certificates import Authority, Signed, needs_openssl
from tests.helpers import ROOT, history, running, small, url

TOKEN = "a-token-that-nobody-guesses"

#: Packages that are as broken as those on a shelf may be. Each stands before the real one on PYTHONPATH.
FAKES = {
    "killed": {"torch/__init__.py": "import os, signal; os.kill(os.getpid(), signal.SIGILL)\n"},
    "missing": {
        "torch/__init__.py": "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n",
        "Box2D/__init__.py": "raise ModuleNotFoundError(\"No module named 'Box2D'\", name='Box2D')\n",
        "msgspec/__init__.py": "raise ImportError('libmissing.so.0: cannot open shared object file')\n",
    },
    "no optuna": {"optuna/__init__.py": "raise ImportError('no module of that name')\n"},
}


class Ran:
    """What the command has said, in a process of its own."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def rows(self) -> dict[str, dict[str, str]]:
        found: dict[str, Any] = json.loads(self.out)
        return {row["name"]: row for row in found["checks"]}

    def failed(self) -> list[str]:
        return [name for name, row in self.rows.items() if row["status"] == "failed"]


def run(
    folder: Path,
    *arguments: object,
    fakes: str = "",
    module: str = "genkidama doctor",
    **environment: str,
) -> Ran:
    """`python -m genkidama doctor ARGUMENTS…` in `folder`, where some packages may be fakes."""
    path = folder / f"fakes-{fakes}"
    for name, text in FAKES.get(fakes, {}).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    command = [sys.executable, "-m", *module.split(), *map(str, arguments)]
    variables = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", **environment}
    ended = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return Ran(ended.returncode, ended.stdout, ended.stderr)


async def doctor(folder: Path, *arguments: object) -> Ran:
    """`run` while this loop serves a parent; looks at no torch, which takes seconds."""
    return await asyncio.to_thread(
        run, folder, "--parent-role", "--json", *arguments, module="genkidama.doctor"
    )


async def examined(**settings: str) -> dict[str, Check]:
    """The rows of the way to the parent of a child with these settings, while this loop serves it."""
    return await asyncio.to_thread(
        lambda: {check.name: check for check in parent.examine(Role.from_dict(dict(settings)))}
    )


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "one")


@pytest.fixture(scope="module")
def signed(authority: Authority) -> Signed:
    """What a parent on this machine has."""
    return authority.sign("IP:127.0.0.1", "DNS:localhost", ends=90)


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


@needs_openssl
async def test_all_is_well_and_the_parent_has_noticed_nothing(
    tmp_path: Path, authority: Authority, signed: Signed
) -> None:
    async with secured(tmp_path, signed) as (parent, address):
        role = tmp_path / "child.toml"
        role.write_text(
            f'parent = "{address}"\ncores = 1\nstate = "state"\ntoken_file = "token"\nca_file = "{authority.file}"\n'
        )
        found = await asyncio.to_thread(run, tmp_path, role)
        assert (found.code, found.err) == (0, "")
        lines = found.out.splitlines()
        rows = {line.split()[1]: line for line in lines[:-2]}
        assert {line[:4] for line in lines[:-2] if not line.startswith(" ")} <= {"ok  ", "!   "}
        assert lines[0] == f"ok  python       {'.'.join(map(str, sys.version_info[:3]))}"
        assert rows["torch"].endswith(", a forward and a backward pass")
        assert rows["box2d"] == "ok  box2d        LunarLander-v3 made and stepped"
        assert "TLSv1.3, certificate for 127.0.0.1, localhost, 90 days left" in rows["tls"]
        assert rows["version"].endswith(
            f"{genkidama.__version__}, protocol {PROTOCOL}, on both sides"
        )
        assert rows["token"] == "ok  token        accepted"
        assert rows["clock"] == "ok  clock        as the parent's, to a second"
        assert lines[-1].endswith(" 0 failed, 0 skipped")
        assert [line["event"] for line in history(tmp_path / "run")] == ["start"]
        assert not parent.server.refusals and not parent.server.children
    assert [line["event"] for line in history(tmp_path / "run")] == ["start", "stop"]
    assert not (tmp_path / "state").exists()


def test_a_torch_that_kills_its_process_too_many_cores_and_nobody_there(tmp_path: Path) -> None:
    port = free_port()
    found = run(
        tmp_path,
        "--json",
        "--cores",
        1_000_000,
        "--parent",
        f"ws://127.0.0.1:{port}",
        fakes="killed",
    )
    assert (found.code, found.err) == (1, "")
    rows = found.rows
    assert found.failed() == ["memory", "torch", "port"]
    assert (
        "its process dies of SIGILL" in rows["torch"]["found"]
        and "pip install 'torch" in rows["torch"]["advice"]
    )
    assert " fits; or " in rows["memory"]["advice"] and "1000000 cores" in rows["memory"]["found"]
    assert rows["cores"]["status"] == "warning"
    assert rows["port"]["found"] == f"127.0.0.1:{port}: refused: nothing listens there"
    assert [rows[name]["found"] for name in ("tls", "version", "token")] == ["because of port"] * 3
    assert rows["clock"]["status"] == "ok"


def test_what_is_missing_does_not_keep_the_doctor_from_saying_so(tmp_path: Path) -> None:
    found = run(tmp_path, "--json", fakes="missing")
    assert (found.code, found.err) == (1, "")
    plain = json.loads(found.out)
    assert set(plain) == {"ok", "checks", "software"} and plain["ok"] is False
    assert all(set(row) == {"name", "status", "found", "advice"} for row in plain["checks"])
    assert all(isinstance(value, str) for row in plain["checks"] for value in row.values())
    assert {row["status"] for row in plain["checks"]} <= {"ok", "warning", "failed", "skipped"}
    assert all(row["advice"] for row in plain["checks"] if row["status"] in ("warning", "failed"))
    assert (
        plain["software"]["genkidama"] == genkidama.__version__
        and plain["software"]["protocol"] is None
    )
    rows = found.rows
    assert found.failed() == ["msgspec", "torch", "box2d"]
    assert "libmissing.so.0: cannot open shared object file" in rows["msgspec"]["found"]
    assert rows["torch"]["found"] == "not installed" and rows["torch"]["advice"].startswith(
        "pip install 'torch"
    )
    assert (
        "LunarLander-v3 cannot be made" in rows["box2d"]["found"]
        and "pip install" in rows["box2d"]["advice"]
    )
    assert rows["parent"]["status"] == "skipped"


def test_another_command_of_a_broken_installation_points_to_the_doctor(tmp_path: Path) -> None:
    found = run(tmp_path, "train", "x.toml", fakes="missing", module="genkidama")
    assert (found.code, found.out) == (1, "")
    assert (
        found.err
        == "error: this installation is not complete: libmissing.so.0: cannot open shared object file; see `genkidama doctor`\n"
    )


@needs_openssl
async def test_the_way_to_a_parent_fails_in_many_ways(
    tmp_path: Path, authority: Authority, signed: Signed
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another-token-of-somebody\n")
    wrong.chmod(0o600)
    other = Authority(tmp_path / "other").file
    async with secured(tmp_path, signed) as (holding, address):
        unknown, refused, without, plain = await asyncio.gather(
            doctor(tmp_path, "--parent", address, "--ca-file", other, "--token-file", "token"),
            doctor(
                tmp_path, "--parent", address, "--ca-file", authority.file, "--token-file", wrong
            ),
            examined(parent=address, ca_file=authority.file),
            examined(parent=address.replace("wss:", "ws:")),
        )
        assert holding.server.refusals == {
            "token": 2
        }  # those without the right token, and no other

    assert (unknown.code, unknown.failed()) == (1, ["tls"])
    assert unknown.rows["tls"]["found"] == "the parent's certificate is of an unknown authority"
    assert unknown.rows["tls"]["advice"] == f"does {other} hold the authority that signed it?"
    assert unknown.rows["token"]["status"] == "skipped"
    assert (
        unknown.rows["clock"]["found"] == "as the parent's, to a second"
    )  # a wrong clock may be the reason

    assert (refused.code, refused.failed()) == (1, ["token"])
    assert refused.rows["tls"]["status"] == refused.rows["version"]["status"] == "ok"
    assert refused.rows["token"]["found"] == "the parent does not know this child's token"
    assert TOKEN not in refused.out and "another-token" not in refused.out

    assert without["token"].status == "failed" and without["token"].advice.startswith(
        "give it one with token_file"
    )
    assert plain["version"].status == "failed" and "use wss://" in plain["version"].advice


async def test_another_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SERVER", "genkidama/9.9 protocol/99")
    async with running(small(), tmp_path / "run") as parent:
        found = await doctor(tmp_path, "--parent", url(parent.address))
    assert (found.code, found.failed()) == (1, ["version"])
    assert (
        f"the parent has 9.9 with protocol 99, this machine {genkidama.__version__}"
        in found.rows["version"]["found"]
    )
    assert found.rows["version"]["advice"].endswith("genkidama==9.9")
    assert found.rows["token"]["status"] == "skipped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--parent", "http://pi:8765"],
            "error: the command line: parent = 'http://pi:8765': expected ws://HOST:PORT or wss://HOST:PORT",
        ),
        (
            ["--parent", "ws://pi:876543"],
            "error: parent = 'ws://pi:876543': expected ws://HOST:PORT or wss://HOST:PORT: ",
        ),
        (["nowhere.toml"], "error: nowhere.toml: no such file"),
        (["nowhere.toml", "--parent-role"], "error: nowhere.toml: no such file"),
        (["--cores", "0"], "error: the command line: cores = 0: "),
        (["--cores", "many"], "error: the command line: cores = 'many': "),
    ],
)
def test_a_wrong_argument_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(words) and err.count("\n") == 1


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--childern", "3"])
    assert capsys.readouterr().err.startswith("usage: python -m genkidama.doctor")


def test_the_doctor_starts_with_the_standard_library_alone() -> None:
    foreign = "{'msgspec', 'numpy', 'structlog', 'websockets', 'gymnasium', 'torch', 'safetensors', 'tomli_w'}"
    code = f"import sys, genkidama.doctor.__main__; print(sorted({foreign} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        ).stdout
        == "[]\n"
    )


# Steps of the way, one by one.


@needs_openssl
@pytest.mark.parametrize(
    ("names", "days", "words"),
    [
        (
            "DNS:parent.example",
            (-1.0, 1.0),
            "the parent's certificate is for other names than 127.0.0.1",
        ),
        ("IP:127.0.0.1", (-9.0, -1.0), "the parent's certificate has expired"),
        ("IP:127.0.0.1", (1.0, 9.0), "the parent's certificate is not yet valid"),
    ],
)
async def test_a_certificate_that_cannot_be_verified(
    tmp_path: Path, authority: Authority, names: str, days: tuple[float, float], words: str
) -> None:
    signed = authority.sign(names, begins=days[0], ends=days[1])
    async with running(small(parent=signed.settings()), tmp_path / "run") as running_parent:
        address = url(running_parent.address).replace("ws:", "wss:")
        found = await examined(parent=address, ca_file=authority.file)
    assert (found["tls"].status, found["tls"].found) == ("failed", words) and found["tls"].advice
    assert found["clock"].found == "as the parent's, to a second"


async def test_a_parent_without_tls(tmp_path: Path) -> None:
    async with running(small(), tmp_path / "run") as running_parent:
        address = url(running_parent.address)
        secure, plain = await asyncio.gather(
            examined(parent=address.replace("ws:", "wss:")), examined(parent=address)
        )
        assert not running_parent.server.refusals
    assert secure["tls"].status == "failed" and "use ws://" in secure["tls"].advice
    assert secure["version"].found == "because of tls"
    assert plain["tls"] == Check("tls", "skipped", "ws:// is not encrypted")
    assert plain["token"] == Check("token", "ok", "not needed")


@pytest.mark.parametrize(
    ("address", "advice"),
    [("ws://no-such-machine.invalid:1", "IP address"), ("ws://a..b:1", "IP address")],
)
async def test_a_name_that_nobody_has(address: str, advice: str) -> None:
    found = await examined(parent=address)
    assert found["name"].status == "failed" and advice in found["name"].advice
    assert {found[name].status for name in ("port", "tls", "version", "token")} == {"skipped"}


def test_somebody_who_is_no_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = parent.Target("127.0.0.1", server.getsockname()[1], False)
        check, connection = parent.reach(target)
        assert check.status == "ok" and connection is not None
        other, _ = server.accept()
        other.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        other.close()
        with connection:
            found, greeting = parent.greet(target, connection)
    assert (
        found.status == "failed" and found.found.startswith("no HTTP answer: ") and greeting is None
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file or directory"), ("no PEM", "holds no PEM certificate")],
)
async def test_an_authority_that_cannot_be_used(
    tmp_path: Path, signed: Signed, content: str | None, words: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    async with secured(tmp_path, signed) as (_, address):
        found = await examined(parent=address, ca_file=str(file))
    assert (
        found["tls"].status == "failed"
        and found["tls"].found == f"ca_file = {str(file)!r}: {words}"
    )


async def test_a_token_that_cannot_be_read(tmp_path: Path) -> None:
    async with running(small(), tmp_path / "run") as running_parent:
        found = await examined(
            parent=url(running_parent.address), token_file=str(tmp_path / "none")
        )
    assert (
        found["token"].status == "failed"
        and "No such file" in found["token"].found
        and found["token"].advice
    )


# A machine that holds weights.


@needs_openssl
def test_a_certificate_on_a_disk(tmp_path: Path, authority: Authority, signed: Signed) -> None:
    def found(pair: Signed) -> Check:
        (check,) = holder.certificate(ParentSettings(**pair.settings()))
        assert check.status == "ok" or check.advice
        return check

    assert found(signed) == Check(
        "certificate", "ok", "TLSv1.3, certificate for 127.0.0.1, localhost, 90 days left"
    )
    soon = found(authority.sign("DNS:pi", ends=10))
    assert soon.status == "warning" and "10 days left" in soon.found
    over = found(authority.sign("DNS:pi", begins=-9, ends=-1))
    assert over.status == "failed" and "certificate has expired" in over.found
    nameless = found(authority.sign("email:pi@example.org"))
    assert nameless.status == "failed" and "names no host" in nameless.found
    mixed = found(Signed(signed.certificate, authority.sign("DNS:pi").key))
    assert mixed.status == "failed" and "the key is not the certificate's" in mixed.found
    absent = found(Signed(str(tmp_path / "none.pem"), signed.key))
    assert absent.status == "failed" and "No such file" in absent.found
    assert (
        holder.certificate(None)[0].status
        == holder.certificate(ParentSettings())[0].status
        == "skipped"
    )


def test_tokens_on_a_disk(tmp_path: Path) -> None:
    def found(text: str, mode: int = 0o600) -> Check:
        file = tmp_path / "tokens"
        file.write_text(text)
        file.chmod(mode)
        return holder.tokens(ParentSettings(tokens_file=str(file)))[0]

    assert found(f"pi-1 {TOKEN}\n* {TOKEN}2\n") == Check(
        "tokens", "ok", "2 names, any name among them"
    )
    assert found(f"pi-1 {TOKEN}\n", 0o644).advice == f"chmod o-r {tmp_path / 'tokens'}"
    assert found("# nobody\n").status == "warning"
    assert found("pi-1\n").status == "failed"
    assert holder.tokens(ParentSettings(tokens_file=str(tmp_path / "none")))[0].status == "failed"
    assert holder.tokens(None)[0].status == "warning"


@needs_openssl
def test_a_parents_machine_needs_no_torch(tmp_path: Path, signed: Signed) -> None:
    experiment = tmp_path / "parent.toml"
    experiment.write_text(small(parent=signed.settings()).to_toml())
    found = run(
        tmp_path, experiment, "--parent-role", "--json", "--out", "all/runs", fakes="killed"
    )
    assert (found.code, found.err) == (0, "")
    assert (
        found.rows["certificate"]["status"] == "ok" and found.rows["tokens"]["status"] == "warning"
    )
    assert found.rows["runs"]["found"] == "all/runs can be made"
    assert not {"torch", "box2d", "gymnasium"} & set(found.rows)
    assert not (tmp_path / "all").exists()


def test_a_parents_machine_needs_optuna_for_a_search_only(tmp_path: Path) -> None:
    plain, search = tmp_path / "plain.toml", tmp_path / "search.toml"
    plain.write_text(small().to_toml())
    plan = {
        "trials": 4,
        "phase_steps": 100,
        "space": {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2}},
    }
    search.write_text(small(search=plan).to_toml())
    assert "optuna" not in run(tmp_path, plain, "--parent-role", "--json", fakes="no optuna").rows
    found = run(tmp_path, search, "--parent-role", "--json", fakes="no optuna")
    assert found.code == 1 and found.failed() == ["optuna"]
    assert (
        "no module of that name" in found.rows["optuna"]["found"]
        and "optuna" in found.rows["optuna"]["advice"]
    )


# The machine.


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    assert host.writable("state", tmp_path / "a/b") == [
        Check("state", "ok", f"{tmp_path / 'a/b'} can be made")
    ]
    assert host.writable("state", tmp_path) == [Check("state", "ok", f"{tmp_path} can be written")]
    (failed,) = host.writable("state", Path("/proc/genkidama"))
    assert failed.status == "failed" and "/proc cannot be written" in failed.found
    assert list(tmp_path.iterdir()) == []


def test_a_quota_of_any_group_above_counts(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/system.slice/genkidama-child.service"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/genkidama-child.service\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert host.cores(1, tmp_path)[0].status == "ok"
    (group.parent / "cpu.max").write_text("50000 100000\n")
    (found,) = host.cores(1, tmp_path)
    assert found.status == "warning" and "a cgroup allows 0.5" in found.found


def test_memory_is_that_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    meminfo = tmp_path / "proc/meminfo"
    meminfo.write_text(
        "MemTotal: 948304 kB\nMemAvailable: 716800 kB\nSwapTotal: 102396 kB\nSwapFree: 102400 kB\n"
    )
    assert host.memory(4, tmp_path)[0].found.startswith(
        "700 MiB available, 100 MiB of swap; a child with 4 cores takes about "
    )
    meminfo.write_text("MemAvailable: 102400 kB\n")
    (found,) = host.memory(1, tmp_path)
    assert found.status == "failed" and found.found.startswith("100 MiB available, no swap")


def test_what_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "SECONDS", 0.5)
    monkeypatch.setattr(software, "_BOX2D", "import time; time.sleep(60)")
    assert software.box2d()[0].found == "making LunarLander-v3 does not end"


# A terminal.


def show(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    """What a terminal gets to see of a warning."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        _examine(
            [
                _Step(
                    "importing torch",
                    lambda: [Check("torch", "warning", "old\nand slow", "renew it")],
                )
            ],
            quiet=False,
        )
        terminal.write("END")
        terminal.flush()
        seen = b""
        while not seen.endswith(b"END"):
            seen += os.read(master, 4096)
    os.close(master)
    return seen.decode().removesuffix("END")


def test_a_terminal_shows_what_is_tried_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert show(monkeypatch).split("\r\033[K") == [
        "... importing torch",
        "\033[33m!\033[0m   torch        old and slow\r\n                 -> renew it\r\n... importing torch",
        "",
    ]


def test_no_color_and_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "\033[33m" not in show(monkeypatch, NO_COLOR="1")
    monkeypatch.undo()
    _examine([_Step("importing torch", lambda: [Check("torch", "ok", "2.9.1")])], quiet=False)
    assert capsys.readouterr().out == "ok  torch        2.9.1\n"
