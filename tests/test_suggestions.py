"""Commands that the program suggests can be typed; those of a parent and a child do what they say.

tests/test_end_to_end.py has those of `genkidama train`.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genkidama.cli.parser import all_verbs, make_parser
from tests.helpers import ROOT, constant, history, starting, until

#: A command in a message: to the end of its quotation or its sentence.
COMMAND = re.compile(r"(?<![\w./-])genkidama ([a-z]+\b[^`\n]*)")

#: What ends a command in the middle of a sentence.
END = re.compile(
    r"[;,()`…<>]|  |\. |: | (?:#|and|or|is|makes|prints|lists|shows|says|writes|starts|on|runs|"
    r"gives|draws|at|the|in|for|tells|knows|takes|with|has|does|that|alone|as|admits)\b"
)


def suggested() -> Iterator[tuple[str, str]]:
    """File and command of each message, with a word for each value that is filled in."""
    verbs = all_verbs()
    for path in sorted((ROOT / "genkidama").rglob("*.py")):
        if "genkidama " not in (code := path.read_text(encoding="utf-8")):
            continue
        nodes = [*ast.walk(ast.parse(code))]
        documented = {
            id(node.body[0].value)
            for node in nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        inside = {
            id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values
        }
        skipped = documented | inside
        for node in nodes:
            if id(node) in skipped:
                continue
            if isinstance(node, ast.JoinedStr):
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "7"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            for found in COMMAND.finditer(text):
                words = END.split(found[1])[0].strip()
                words = re.sub(r"(--[a-z]+)7$", r"\1", words)  # more options are filled in
                if words.split()[0] in verbs:
                    yield str(path.relative_to(ROOT)), words


def test_every_command_in_a_message_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    parse = make_parser().parse_args
    commands = sorted(set(suggested()))
    assert len(commands) > 60
    for file, words in commands:
        typed = shlex.split(words)
        if typed == [typed[0]]:
            continue  # the verb itself is meant
        try:
            parse(typed)
        except SystemExit:
            # The last value is filled in elsewhere.
            assert "expected one argument" in capsys.readouterr().err, f"{file}: genkidama {words}"
            parse([*typed, "7"])


def test_what_a_parent_and_a_child_suggest_when_they_are_stopped_works(tmp_path: Path) -> None:
    (tmp_path / "cart.toml").write_text(constant(stop={"updates": 10_000}).to_toml())
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"127.0.0.1:{found.getsockname()[1]}"

    def lines(process: Any, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in process.err.splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    with starting(tmp_path) as start:
        first = "genkidama.parent cart.toml --out run --listen"
        parent = start(*first.split(), address)
        one = start(*f"genkidama.child --parent ws://{address} --cores 1 --allow tests".split())
        until(lambda: history(tmp_path / "run", "exchange"), "an exchange")
        for process in (one, parent):
            process.signal(signal.SIGINT)
            process.wait(20.0)
        said = [lines(one, "left")[0]["next"], lines(parent, "ended")[0]["next"]]
        before = len(history(tmp_path / "run", "exchange"))
        typed = [shlex.split(line.removeprefix("python -m ")) for line in said]
        start(*typed[1])
        start(*typed[0])
        until(lambda: len(history(tmp_path / "run", "exchange")) > before, "another exchange")
