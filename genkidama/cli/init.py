"""The verbs `init`, `examples` and `completion`."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from genkidama._version import pip_install
from genkidama.cli.parser import make_parser
from genkidama.config.allowlist import import_string
from genkidama.config.examples import about, example, examples
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError, EnvironmentFailure

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
        "children only act, and one learner beside the parent learns from all, the fastest "
        "that was measured: take it if the parent's machine, which learns, has the fastest core",
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
    shape: tuple[int, ...] = ()
    note = ""
    if options.example is None:
        shape, note = _observed(options.environment)
        if len(shape) == 3:
            text = _for_images(options, shape)
        else:
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
    images = options.example is None and len(shape) == 3
    alone = " --children 1" if images else ""
    print(f"{path}: written; train it: genkidama {verb} {path}{alone}")
    if note:
        print(note)
    elif images:
        print(f"It learns from images, on GA3C, which needs torch: {pip_install('torch')}")
    elif options.example is None:
        print("\nIts children cooperate in one of three ways (--way):")
        for name, (sentence, _) in _WAYS.items():
            mark = " (this file)" if name == options.way else ""
            line = f"{name}{mark}: {sentence}"
            print(textwrap.fill(line, 78, initial_indent="  ", subsequent_indent="    "))
    return 0


def _observed(environment: str) -> tuple[tuple[int, ...], str]:
    """The shape of an environment's observations, and a note if that is not known.

    Raises:
        ConfigurationError: there is no such environment, or it cannot be made.
    """
    from genkidama.learning.environments import make_environment

    named = import_string(environment)
    settings = Environment(id=environment, vectorized=environment.startswith("ALE/"))
    if named is not None and find_spec(named.module.partition(".")[0]) is None:
        return (), (
            f"There is no {named.module!r} here yet. This file is for observations that are "
            "vectors; write it anew when the environment is there, if it gives images"
        )
    made = make_environment(settings)
    made.close()
    return made.observation_space.shape or (), ""


def _for_images(options: argparse.Namespace, shape: tuple[int, ...]) -> str:
    """The example of Pong, for another environment with such images."""
    _, _, rest = example("atari/pong-ppo").read_text(encoding="utf-8").partition("[algorithm]\n")
    rest = re.sub(r"(?m)^mean_return = .*\n", "", rest)
    lines = [
        "# An experiment that learns from images, with PPO on GA3C. Train it with",
        f"#   genkidama train {options.file} --children 1",
        "# Absent settings have their defaults. A wrong key is reported when the run starts.",
        "seed = 0",
        "",
        "[environment]",
        f'id = "{options.environment}"',
    ]
    if options.environment.startswith("ALE/"):
        lines += [
            "vectorized = true               # ALE repeats frames, scales and stacks by itself",
            "options = { reward_clipping = false }   # it would report clipped returns",
            "clip_rewards = 1.0",
        ]
    last = shape[2] < min(shape[:2])
    side = min(shape[:2] if last else shape[1:])
    convolutions = "[[16, 8, 4], [32, 4, 2]]" if side >= 36 else "[[16, 3, 1]]"
    lines += [
        "",
        "[network]",
        'name = "convolutional"',
        f'channels = "{"last" if last else "first"}"',
        f"convolutions = {convolutions}   # channels, kernel, stride",
        "hidden = [256]",
        'activation = "relu"',
        "",
        "[algorithm]",
    ]
    return "\n".join(lines) + "\n" + rest


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
