"""Two commands on two machines: `genkidama parent` prints what `genkidama join` takes."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import termios
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, HTTPSHandler, build_opener

import pytest
from websockets.exceptions import InvalidStatus

from genkidama.__main__ import main
from genkidama.child.transport import Transport
from genkidama.cli.access import default_folder, fingerprint_of, make_certificate, qr_drawer
from genkidama.config.decoding import parse_setting
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.protocol.tokens import Invitation, find_entry, parse_tokens
from tests.certificates import needs_openssl
from tests.helpers import constant, free_port, history, small, starting, until
from tests.terminals import Terminal, in_terminal


def fetched(link: str) -> bytes:
    """A page of a parent, whatever its certificate; redirected, as a browser, with its cookie."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers = HTTPSHandler(context=context), HTTPCookieProcessor()
    found: bytes = build_opener(*handlers).open(link, timeout=30.0).read()
    return found


@needs_openssl
def test_two_commands_and_another_token_without_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.toml").write_text(constant().to_toml())
    place = ["--credentials", str(tmp_path / "keys"), "--listen", f"127.0.0.1:{free_port()}"]
    with starting(tmp_path) as start:
        parent = start("genkidama", "parent", "e.toml", *place, "--out", "run")
        printed = until(lambda: re.search(r"join '(\S+)'", parent.out), "a join string")[1]
        invitation = Invitation.parse(printed)
        assert invitation.token not in (tmp_path / "keys" / "tokens").read_text()
        link = until(lambda: re.search(r"    (https://\S+\?key=\S+)\n", parent.out), "a link")[1]
        until(lambda: "listening" in parent.err)
        assert b"<title>" in fetched(link)
        with pytest.raises(HTTPError, match=r"^HTTP Error 40"):
            fetched(link.partition("?")[0])  # nobody's
        # The parent runs. The first token is taken out, and another one is made.
        assert run(monkeypatch, "token", *place, "--revoke") == 0
        assert run(monkeypatch, "token", "pi-3", *place, "--days", "30") == 0
        mine = ["--allow", "tests.helpers"]
        renewed = start("genkidama", "join", capsys.readouterr().out.strip(), *mine)
        late = Transport(
            invitation.parent, token=invitation.token, fingerprint=invitation.fingerprint
        )
        with pytest.raises(InvalidStatus, match="401"):
            asyncio.run(late.open())
        until(lambda: history(tmp_path / "run", "exchange"), "an exchange")
        until(lambda: history(tmp_path / "run", "refused"))
        assert {line["child"] for line in history(tmp_path / "run", "join")} == {"pi-3"}
        assert {line["code"] for line in history(tmp_path / "run", "refused")} == {"token"}
        for process in (parent, renewed):
            assert "Traceback" not in process.err and invitation.token not in process.err


@pytest.mark.parametrize("words", [["mine.toml"], ["cartpole", "--set", "seed=-1"]])
def test_a_wrong_experiment_makes_no_token(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    assert run(monkeypatch, "parent", *words, "--credentials", str(tmp_path / "keys")) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert not (tmp_path / "keys").exists()


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["genkidama", *words])
    return main(words)


@needs_openssl
def test_tokens_end_and_are_listed_and_nothing_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_certificate(tmp_path / "certificate.pem", tmp_path / "key.pem")
    tokens = tmp_path / "tokens"
    tokens.write_text("pi an-old-token-of-16  # by hand")
    tokens.chmod(0o640)
    place = ["--credentials", str(tmp_path), "--host", "parent.local"]
    assert run(monkeypatch, "token", "pi", *place, "--rotate", "3", "--days", "90") == 0
    made = Invitation.parse(capsys.readouterr().out)
    assert (made.parent, made.name) == ("wss://parent.local:8765", "pi")
    old, new = parse_tokens(tokens.read_text(), "tokens")
    assert find_entry(made.token, [new]) and find_entry("an-old-token-of-16", [old])
    assert 86_400 * 86 < new.until - old.until < 86_400 * 88
    assert tokens.stat().st_mode & 0o777 == 0o640 and "an-old" not in tokens.read_text()
    assert run(monkeypatch, "token", *place, "--list") == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 2 and "until 20" in said and made.token not in said
    before = tokens.read_text()
    for words, problem in (
        (["pi", "--rotate", "0", "--days", "-1"], "error: -1 days: 0 to 36500 are allowed"),
        (["pi", "--rotate", "0", "--listen", "[::]:0"], "error: --listen [::]:0: children need"),
        (["no name"], "error: NAME = 'no name': expected"),
        (["other", "--revoke"], f"error: {tokens}: has no token for 'other'"),
        (["--listen", "0.0.0.0:0"], "error: --listen 0.0.0.0:0: children need to know the port"),
        (["--days", "-1"], "error: -1 days: 0 to 36500 are allowed"),
    ):
        assert run(monkeypatch, "token", *words, *place) == 2
        said = capsys.readouterr().err
        assert said.startswith(problem) and said.count("\n") == 1
    assert tokens.read_text() == before
    monkeypatch.delenv("GENKIDAMA_JOIN", raising=False)
    assert run(monkeypatch, "join") == 2 and run(monkeypatch, "join", "nonsense") == 2
    assert capsys.readouterr().err.count("error: ") == 2


@needs_openssl
def test_the_command_that_goes_on_is_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr("genkidama.parent.__main__.main", lambda _, go_on, __: given.append(go_on))
    keys = str(tmp_path / "my keys")
    run(monkeypatch, "parent", "cartpole", "--browsers", "--set", "seed=3", "--credentials", keys)
    words = shlex.split(given[0])
    assert words[3:5] == ["--credentials", keys]
    assert words[-5:] == ["--set", "seed=3", "--set", "parent.browsers=true", "--out"]
    shown = ("--credentials", keys, "--demonstrations", str(tmp_path / "🎮 ä.steps"))
    run(monkeypatch, "parent", "cartpole/dqn", *shown)
    setting = parse_setting(shlex.split(given[1])[-2])
    assert setting == ("algorithm.demonstrations", [str(tmp_path / "🎮 ä.steps")])


def test_the_signature_is_that_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.toml").write_text(small().to_toml())
    assert (
        run(monkeypatch, "signature", str(tmp_path / "e.toml"), "--set", "network.hidden=[9]") == 0
    )
    said = capsys.readouterr()
    assert re.fullmatch(r"[0-9a-f]{64}\n", said.out)
    assert "[9, 4]" in said.err


@needs_openssl
def test_it_is_made_once_and_has_openssls_fingerprint(tmp_path: Path) -> None:
    certificate, key = tmp_path / "new" / "certificate.pem", tmp_path / "new" / "key.pem"
    make_certificate(certificate, key)
    assert key.stat().st_mode & 0o777 == 0o600
    for each in (certificate, key):  # as a full disk leaves them
        each.write_bytes(b"")
        make_certificate(certificate, key)
    text = certificate.read_bytes()
    make_certificate(certificate, key)
    assert certificate.read_bytes() == text
    said = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-noout", "-fingerprint", "-sha256"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert fingerprint_of(certificate) == said.strip().partition("=")[2].replace(":", "").lower()
    with pytest.raises(ConfigurationError, match="holds no PEM certificate"):
        fingerprint_of(key)


@pytest.mark.parametrize(
    ("host", "address"),
    [("[2001:db8::1]", "[2001:db8::1]:8765"), ("2001:db8::1", "[2001:db8::1]:8765")],
)
def test_the_host_of_a_join_string_may_stand_in_brackets_and_has_no_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str, address: str
) -> None:
    place = ["--credentials", str(tmp_path), "--host"]
    assert main(["token", *place, host, "--viewer"]) == 0
    assert f"@{address}" in capsys.readouterr().out
    assert main(["token", *place, "home.example:9000"]) == 2
    assert "--host home.example:9000: expected a name or address without" in capsys.readouterr().err


def test_a_key_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (key := tmp_path / "key.pem").mkdir()
    with pytest.raises(EnvironmentFailure, match=r"key\.pem: cannot be written: Is a directory"):
        make_certificate(tmp_path / "certificate.pem", key)


def test_without_openssl_the_way_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentFailure, match="apt install openssl"):
        make_certificate(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with pytest.raises(ConfigurationError, match="`genkidama parent` makes it"):
        fingerprint_of(tmp_path / "certificate.pem")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "genkidama"


def read(text: str) -> str:
    """The text of the code that was drawn in half blocks."""
    cv2, numpy = pytest.importorskip("cv2"), pytest.importorskip("numpy")
    lines = re.findall(r"\x1b\[97;40m([^\x1b]*)\x1b\[0m", text)
    above, below = ([[(c in "█" + half) * 255 for c in line] for line in lines] for half in "▀▄")
    rows = [row for pair in zip(above, below, strict=True) for row in pair]
    for side in (8, 3, 5, 12, 4, 6, 7, 10, 16):  # OpenCV reads not every code at each size
        square = numpy.ones((side, side), numpy.uint8)
        pixels = numpy.kron(numpy.array(rows, numpy.uint8), square)
        pixels = numpy.pad(pixels, 4 * side, constant_values=255)
        for reader in (cv2.QRCodeDetector(), cv2.QRCodeDetectorAruco()):
            found: str = reader.detectAndDecode(pixels)[0]
            if found:
                return found
    return ""


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What `genkidama token --qr` shows on a terminal of so many columns."""
    pytest.importorskip("segno")

    def shown(columns: int, *more: str) -> str:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        words = ["token", "--qr", "--host", "shelf.example", "--credentials", str(tmp_path), *more]
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(all_of, ours)
            with open(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as here:
                here.setattr(sys, "stdout", terminal)
                here.setattr(sys, "stderr", terminal)
                code = run(here, *words)
            text = reading.result(30.0)
        assert code == 0, text
        return text

    return shown


def all_of(terminal: int) -> str:
    """All that is written to a terminal until nobody has it any more."""
    text = b""
    with suppress(OSError):  # as Linux says that
        while piece := os.read(terminal, 1 << 16):
            text += piece
    os.close(terminal)
    return text.decode()


def test_a_camera_reads_the_join_string_and_the_link_to_the_page(
    tmp_path: Path, token: Callable[..., str]
) -> None:
    make_certificate(tmp_path / "certificate.pem", tmp_path / "key.pem")
    for more, pattern in ((), r"wss://\*:\S+"), (("--viewer",), r"https://shelf\S+\?key=\S+"):
        text = token(80, *more)
        wanted = re.search(pattern, text)
        assert wanted is not None and read(text) == wanted[0]


def test_a_narrow_terminal_gets_the_string_and_a_line_about_the_code(
    token: Callable[..., str],
) -> None:
    text = token(30, "--viewer")
    assert "http://shelf.example:8765/?key=" in text and "█" not in text
    assert re.search(r"--qr: no code is shown: it takes \d+ columns, and the terminal has 30", text)


def test_where_there_is_no_terminal_a_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("segno")
    qr_drawer(True)("text")
    qr_drawer(False)("text")
    words = "--qr: no code is shown: standard error is no terminal with UTF-8\n"
    assert capsys.readouterr().err == words


def test_without_segno_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"--qr: needs segno: pip install '.*\[page\]'"):
        qr_drawer(True)


@needs_openssl
def test_a_parent_shows_its_run_and_a_child_its_work(tmp_path: Path) -> None:
    (tmp_path / "cart.toml").write_text(constant(stop={"updates": 100_000}).to_toml())
    place = f"--credentials keys --listen 127.0.0.1:{free_port()}"
    seen: dict[str, tuple[subprocess.Popen[bytes], Terminal]] = {}

    def show(*words: str) -> Terminal:
        command = [sys.executable, "-m", "genkidama", *words]
        return in_terminal(
            command,
            120,
            30,
            folder=tmp_path,
            meanwhile=lambda process, terminal: seen.update({words[0]: (process, terminal)}),
        )

    def ended(name: str, terminal: Future[Terminal]) -> list[str]:
        seen[name][0].send_signal(signal.SIGINT)
        return terminal.result(30.0).lines

    with ThreadPoolExecutor() as pool:
        parent = pool.submit(show, "parent", "cart.toml", "--out", "run", *place.split())
        joining = until(
            lambda: "parent" in seen and re.search(r"join '(\S+)'", seen["parent"][1].text)
        )[1]
        child = pool.submit(show, "join", joining, "--name", "pi-1", "--allow", "tests")
        until(lambda: len(history(tmp_path / "run", "exchange")) > 5, "some exchanges")
        until(lambda: re.search("[1-9][0-9]* exchanges", seen["join"][1].text), "a display")
        told = "\n".join(ended("join", child))
        assert "pi-1: training CartPole-v1 on " in told and "0 steps/s" not in told
        assert "ended: stopped; to go on, type the same command again" in told
        told = "\n".join(ended("parent", parent))
    assert re.search("CartPole-v1 · .* · run run", told)
    assert re.search(r"pi-1 +(training|away)", told)
    assert "run: run, saved: version " in told
    assert f"  go on:      genkidama parent cart.toml {place} --out run" in told
    assert "genkidama evaluate run" in told and "Traceback" not in told


@needs_openssl
def test_tokens_of_owners_viewers_and_browsers_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_certificate(tmp_path / "certificate.pem", tmp_path / "key.pem")
    tokens = tmp_path / "tokens"
    place = ["--credentials", str(tmp_path), "--host", "parent.local"]

    def made(*words: str) -> str:
        assert run(monkeypatch, "token", *words, *place) == 0
        return capsys.readouterr().out

    owner, viewer = made("--owner"), made("anna", "--viewer")
    link = made("phone", "--browser").strip()
    entries = parse_tokens(tokens.read_text(), "tokens")
    kinds = [("owner", "owner"), ("anna", "viewer"), ("phone", "")]
    assert [(entry.name, entry.kind) for entry in entries] == kinds
    for said, kind, entry in ((owner, "owner", entries[0]), (viewer, "viewer", entries[1])):
        found = re.search(rf"https://{kind}:(\S+)@parent.local:8765#[0-9a-f]{{64}}", said)
        assert found is not None and find_entry(found[1], entries) is entry
        assert f"Bearer {found[1]}" in said and "https://parent.local:8765/?key=" in said
    address, _, fragment = link.partition("#")
    assert address == "https://parent.local:8765/join"
    assert find_entry(fragment.removeprefix("phone:"), entries) is entries[2]
    listed = made("--list").splitlines()
    assert [line.endswith(kind) for line, (_, kind) in zip(listed, kinds, strict=True)] == [
        True
    ] * 3
    assert run(monkeypatch, "token", "anna", *place, "--revoke", "--owner") == 2
    assert "has no owner's token for 'anna'" in capsys.readouterr().err
    assert run(monkeypatch, "token", *place, "--viewer", "--owner") == 2
    assert "--viewer and --owner: give one" in capsys.readouterr().err
    assert run(monkeypatch, "token", "owner", *place, "--revoke", "--owner") == 0
    assert [entry.kind for entry in parse_tokens(tokens.read_text(), "")] == ["viewer", ""]
