"""The verbs `init`, `examples` and `completion`."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from importlib import resources
from pathlib import Path

from genkidama.cli.parser import make_parser
from genkidama.config.examples import about, example, examples
from genkidama.errors import ConfigurationError, EnvironmentFailure

__all__ = ["completion", "init", "list_examples"]

#: Lines of the template with the same lanes, sizes and rate for any number of children.
_FIXED = {
    "lanes": "lanes = 8                         # environments that each core plays at once\n",
    "sizes": """\
batch_size = 1024                 # steps that are learned from together
epochs = 10                       # passes over each batch
minibatch_size = 128
""",
    "rate": "learning_rate = 1e-3\n",
}

#: Ways in which children cooperate, each in a sentence, and their lines of the template.
_WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "act": (
        "children only act, and one learner beside the parent learns from all: the fastest "
        "that was measured; the parent's machine learns, and should have the fastest core",
        {
            **_FIXED,
            "cooperation": """\
[parent]
rule = "experience"               # children only act, and a learner beside the parent learns

[child]
""",
        },
    ),
    "average": (
        "every child learns by itself, and their weights are averaged: take it for equal machines, "
        "large observations, or links that are often cut",
        {
            "lanes": "# lanes = 8                       # absent: follows the number of children\n",
            "sizes": "# minibatch_size = 64             # absent: follows the number of children\n",
            "rate": "# learning_rate = 1.4e-3          # absent: follows the number of children\n",
            "cooperation": """\
[parent]
rule = "difference"               # "blend" is the thesis' rule
# alpha = 0.5                     # absent: follows the number of children

[child]
exchange = "chunk"                # act, take the parent's weights, learn, and push
""",
        },
    ),
    "thesis": (
        "as average, but once an episode, with the α and β of your choice: take it to study the "
        "thesis",
        {
            **_FIXED,
            "cooperation": """\
[parent]
rule = "blend"
alpha = 0.5                       # the parent's step towards each child

[child]
beta = 0.5                        # a child's step towards the parent
exchange = "episode"              # once per episode of the whole child, while its cores wait
""",
        },
    ),
}


def init(options: argparse.Namespace) -> int:
    """Writes a commented experiment."""
    if options.example is None:
        template = resources.files("genkidama.cli").joinpath("template.toml")
        text = template.read_text(encoding="utf-8").format(
            file=options.file, environment=options.environment, **_WAYS[options.way][1]
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
    if options.example is None:
        print("\nIts children cooperate in one of three ways (--way):")
        for name, (sentence, _) in _WAYS.items():
            mark = " (this file)" if name == options.way else ""
            line = f"{name}{mark}: {sentence}"
            print(textwrap.fill(line, 78, initial_indent="  ", subsequent_indent="    "))
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
