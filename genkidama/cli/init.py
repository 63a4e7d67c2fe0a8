"""The verbs `init`, `examples` and `completion`."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from importlib import resources
from pathlib import Path

from genkidama.cli.parser import make_parser
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.examples import about, example, examples

__all__ = ["completion", "init", "list_examples"]


def init(options: argparse.Namespace) -> int:
    """Writes a commented experiment."""
    if options.example is None:
        template = resources.files("genkidama.cli").joinpath("template.toml")
        text = template.read_text(encoding="utf-8").format(
            file=options.file, environment=options.environment
        )
    else:
        text = example(options.example).read_text(encoding="utf-8")
    path: Path = options.file
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{path}: is there already; name another file") from None
    except OSError as error:
        raise EnvironmentFailure(f"{path}: cannot be written: {error.strerror}") from None
    verb = "search" if "\n[search]" in text else "train"
    print(f"{path}: written; train it: genkidama {verb} {path}")
    return 0


def list_examples(options: argparse.Namespace) -> int:
    """Lists the examples, or prints one of them."""
    if options.name is not None:
        print(example(options.name).read_text(encoding="utf-8"), end="")
        return 0
    found = examples()
    longest = max(map(len, found), default=0)
    room = max(20, shutil.get_terminal_size((100, 24)).columns - longest - 2)
    for name, file in found.items():
        print(f"{name:<{longest}}  {textwrap.shorten(about(file), room, placeholder=' …')}")
    print("\ngenkidama train NAME runs one, genkidama init --example NAME FILE.toml copies it")
    return 0


def completion(options: argparse.Namespace) -> int:
    """Prints the script with which a shell completes the command."""
    try:
        import shtab
    except ImportError:
        raise EnvironmentFailure("completion needs shtab: pip install shtab") from None
    parser = make_parser()
    for verbs in parser._actions:
        if isinstance(verbs, argparse._SubParsersAction):
            for action in (each for verb in verbs.choices.values() for each in verb._actions):
                if action.type is Path:
                    action.complete = shtab.FILE
    print(shtab.complete(parser, options.shell))
    return 0
