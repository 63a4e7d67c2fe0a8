"""The reference of the command: what `--help` prints of every verb, and of the two roles."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Callable, Iterator
from unittest.mock import patch

from genkidama.child.__main__ import main as child
from genkidama.cli.parser import make_parser
from genkidama.parent.__main__ import main as parent

#: The width of what is printed, whatever the terminal's is.
_COLUMNS = "96"


def texts() -> dict[str, str]:
    """The help by what one types: of the command, its verbs, parent and child."""
    with patch.dict(os.environ, COLUMNS=_COLUMNS):
        return dict(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    command = make_parser()
    yield command.prog, command.format_help()
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield verb.prog, verb.format_help()
    for role, main in (("parent", parent), ("child", child)):
        yield f"python -m genkidama.{role}", _printed(main)


def page() -> str:
    """The page's text below its heading, in Markdown."""
    return "\n".join(f"## `{typed}`\n\n```text\n{said}```\n" for typed, said in texts().items())


def _printed(main: Callable[[list[str]], int]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main(["--help"])
    return said.getvalue()
