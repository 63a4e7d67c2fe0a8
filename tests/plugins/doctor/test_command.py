"""The real command against real parents, real certificates and real deaths."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import genkidama
from genkidama.cli.access import fingerprint_of
from genkidama.cli.parser import make_parser
from genkidama.config.role import Role
from genkidama.plugins.doctor.__main__ import _examine, _for_each_part, _role, _Step, main
from genkidama.plugins.doctor.checks import Check
from genkidama.plugins.doctor.measurements import examine
from genkidama.protocol.messages import PROTOCOL
from genkidama.protocol.tokens import Invitation
from tests.certificates import Authority, Signed, needs_openssl
from tests.helpers import ROOT, Ended, free_port, history, python, small
from tests.plugins.doctor.parents import TOKEN, examined, secured

MISSING = "libmissing.so.0: cannot open shared object file"

#: Packages that are as broken as on some shelf. Each stands before the real one on PYTHONPATH.
FAKES = {
    "killed": {"torch/__init__.py": "import os, signal; os.kill(os.getpid(), signal.SIGILL)\n"},
    "missing": {
        "torch/__init__.py": "raise ModuleNotFoundError(\"No module named 'torch'\")\n",
        "Box2D/__init__.py": "raise ModuleNotFoundError(\"No module named 'Box2D'\")\n",
        "msgspec/__init__.py": f"raise ImportError({MISSING!r})\n",
    },
    "no optuna": {
        "torch/__init__.py": "import os, signal; os.kill(os.getpid(), signal.SIGILL)\n",
        "optuna/__init__.py": "raise ImportError('no module of that name')\n",
    },
}


class Ran(Ended):
    """What the command has said, in a process of its own."""

    @property
    def rows(self) -> dict[str, dict[str, str]]:
        found: dict[str, Any] = json.loads(self.out)
        return {row["name"]: row for row in found["checks"]}

    def failed(self) -> list[str]:
        return [name for name, row in self.rows.items() if row["status"] == "failed"]


def run(folder: Path, *arguments: object, fakes: str = "", module: str = "genkidama doctor") -> Ran:
    """`python -m genkidama doctor ARGUMENTS…` in `folder`, where some packages may be fakes."""
    path = folder / f"fakes-{fakes}"
    for name, text in FAKES.get(fakes, {}).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    words = "-m", *module.split(), *map(str, arguments)
    ended = python(*words, folder=folder, PYTHONPATH=f"{path}{os.pathsep}{ROOT}")
    assert "Traceback" not in ended.stderr, ended.stderr
    return Ran(ended.returncode, ended.stdout, ended.stderr)


@needs_openssl
async def test_all_is_well_and_the_parent_has_noticed_nothing(
    tmp_path: Path, authority: Authority, signed: Signed
) -> None:
    async with secured(tmp_path, signed) as (parent, address):
        role = tmp_path / "child.toml"
        role.write_text(
            f'parent = "{address}"\ncores = 1\nstate = "state"\n'
            f'token_file = "token"\nca_file = "{authority.file}"\n'
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
        module="genkidama.plugins.doctor",
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
    assert found.failed() == ["msgspec"]
    assert MISSING in rows["msgspec"]["found"]
    assert rows["torch"]["found"].startswith("not installed: only")
    assert rows["torch"]["found"].endswith("(pip install 'genkidama-rl[torch]')")
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
        == f"error: this installation is not complete: {MISSING}; see `genkidama doctor`\n"
    )


@needs_openssl
async def test_the_way_to_a_parent_fails_in_many_ways(
    tmp_path: Path, authority: Authority, signed: Signed
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another-token-of-somebody\n")
    wrong.chmod(0o600)
    other = str(Authority(tmp_path / "other").file)
    async with secured(tmp_path, signed) as (holding, address):
        unknown, refused, without, plain = await asyncio.gather(
            examined(parent=address, ca_file=other, token_file=str(tmp_path / "token")),
            examined(parent=address, ca_file=authority.file, token_file=str(wrong)),
            examined(parent=address, ca_file=authority.file),
            examined(parent=address.replace("wss:", "ws:")),
        )
        # Two came without the right token, and nobody else was refused.
        assert holding.server.refusals == {"token": 2}

    assert [name for name, row in unknown.items() if row.status == "failed"] == ["tls"]
    assert unknown["tls"].found == "the parent's certificate is of an unknown authority"
    assert unknown["tls"].advice == f"does {other} hold the authority that signed it?"
    assert unknown["token"].status == "skipped"
    # A wrong clock may be the reason, so it is compared all the same.
    assert unknown["clock"].found == "as the parent's, to a second"

    assert [name for name, row in refused.items() if row.status == "failed"] == ["token"]
    assert refused["tls"].status == refused["version"].status == "ok"
    assert refused["token"].found == "wrong token"
    assert TOKEN not in str(refused) and "another-token" not in str(refused)

    assert without["token"].status == "failed"
    assert without["token"].advice.startswith("the parent asks for one; join with the string")
    assert plain["version"].status == "failed" and "use wss://" in plain["version"].advice


@needs_openssl
def test_a_parents_machine_needs_no_torch_and_that_of_a_search_optuna(
    tmp_path: Path, signed: Signed
) -> None:
    file = tmp_path / "search.toml"
    plan = {
        "trials": 4,
        "phase_steps": 100,
        "space": {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2}},
    }
    file.write_text(small(parent=signed.settings(), search=plan).to_toml())
    words = file, "--parent-role", "--json", "--out", "all/runs"
    found = run(tmp_path, *words, fakes="no optuna")
    assert found.code == 1 and found.failed() == ["optuna"]
    assert (
        "no module of that name" in found.rows["optuna"]["found"]
        and "optuna" in found.rows["optuna"]["advice"]
    )
    assert (
        found.rows["certificate"]["status"] == "ok" and found.rows["tokens"]["status"] == "warning"
    )
    assert found.rows["runs"]["found"] == "all/runs can be made"
    assert not {"torch", "box2d", "gymnasium"} & set(found.rows)
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.toml", "--parent-role"], "error: nowhere.toml: no such file"),
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


def test_each_part_of_a_parent_is_examined() -> None:
    one, other = "1" * 64, "2" * 64
    for given, known in (("", ("", "")), (one, (one, one)), (f"{one},{other}", (one, other))):
        role = Role.from_dict({"parent": "wss://a:1, wss://b:2", "cores": 3, "fingerprint": given})
        parts = [msgspec.to_builtins(each) for each in _for_each_part(role) if each is not None]
        assert [(each["parent"], each["fingerprint"], each["cores"]) for each in parts] == [
            ("wss://a:1", known[0], 3),
            ("wss://b:2", known[1], 3),
        ]
    assert _for_each_part(None) == [None]


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--childern", "3"])
    assert capsys.readouterr().err.startswith("usage: python -m genkidama.plugins.doctor")


def test_the_doctor_starts_with_the_standard_library_alone() -> None:
    foreign = {"msgspec", "numpy", "structlog", "websockets"}
    foreign |= {"gymnasium", "torch", "safetensors", "tomli_w"}
    code = "import sys, genkidama.plugins.doctor.__main__; "
    code += f"print(sorted({foreign} & set(sys.modules)))"
    assert python("-c", code).stdout == "[]\n"


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
        "\033[33m!\033[0m   torch        old and slow\r\n"
        "                 -> renew it\r\n... importing torch",
        "",
    ]


def test_no_color_and_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "\033[33m" not in show(monkeypatch, NO_COLOR="1")
    monkeypatch.undo()
    _examine([_Step("importing torch", lambda: [Check("torch", "ok", "2.9.1")])], quiet=False)
    assert capsys.readouterr().out == "ok  torch        2.9.1\n"


def test_what_is_not_typed_is_absent_but_the_directory_of_runs() -> None:
    found = vars(make_parser().parse_args(["doctor"]))
    del found["verb"]
    assert found.pop("out") == Path("runs")
    assert not any(found.values())


@needs_openssl
async def test_a_join_string_is_enough_to_reach_a_parent(
    tmp_path: Path, signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ})
    async with secured(tmp_path, signed) as (_, address):
        fingerprint = fingerprint_of(Path(signed.certificate))
        text = str(Invitation(address, token=TOKEN, fingerprint=fingerprint))
        for words, variables in ((["--parent", text], {}), ([], {"GENKIDAMA_JOIN": text})):
            # As with `join`, the string's token counts.
            os.environ.update({"GENKIDAMA_TOKEN": "that-of-another-run", **variables})
            role = _role(make_parser().parse_args(["doctor", *words]))
            assert role is not None
            rows = {row.name: row for row in await asyncio.to_thread(list, examine(role))}
            assert rows["tls"] == Check("tls", "ok", "TLSv1.3, with the fingerprint")
            assert (rows["token"].status, rows["token"].found) == ("ok", "accepted")
            assert TOKEN not in str(rows)
