"""The verbs `init`, `examples` and `completion`."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from dataclasses import dataclass
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
    seen = _Seen()
    if options.example is None:
        seen = _look(options.environment)
        text = _for_images(options, seen) if seen.image else _for_vectors(options, seen)
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
    alone = " --children 1" if seen.image else ""
    print(f"{path}: written; train it: genkidama {verb} {path}{alone}")
    if seen.note:
        print(seen.note)
    elif seen.image:
        print(f"It learns from images, on GA3C, which needs torch: {pip_install('torch')}")
    elif options.example is None:
        print("\nIts children cooperate in one of three ways (--way):")
        for name, (sentence, _) in _WAYS.items():
            mark = " (this file)" if name == options.way else ""
            line = f"{name}{mark}: {sentence}"
            print(textwrap.fill(line, 78, initial_indent="  ", subsequent_indent="    "))
    return 0


@dataclass(frozen=True)
class _Seen:
    """Facts about an environment that decide what an experiment for it needs."""

    #: The shape of its images; () if it has none, or nothing here can learn from them.
    image: tuple[int, ...] = ()
    #: Lines for `[environment]`, each with its end.
    lines: str = ""
    #: The number of lanes, if it is not free.
    lanes: int = 0
    #: What to say about the file.
    note: str = ""


def _look(environment: str) -> _Seen:
    """Has a process make the environment, and close it.

    Raises:
        ConfigurationError: there is no such environment, or it cannot be made.
    """
    from genkidama.config.experiment import Experiment
    from genkidama.runtime.forkserver import prefork
    from genkidama.runtime.task import call

    named = import_string(environment)
    ale = environment.startswith("ALE/")
    settings = Environment(id=environment, vectorized=ale)
    own = named is not None and not settings.prefix
    if own and named is not None and find_spec(named.module.partition(".")[0]) is None:
        note = (
            f"There is no {named.module!r} here yet. This file is for observations that are "
            "vectors; write it anew when the environment is there, if it gives images"
        )
        return _Seen(note=note)
    prefork()
    task = "genkidama.learning.environment_checks:look", (settings,)
    what = f"environment.id = {environment!r}: cannot be built"
    shape, is_image, lanes, agents = call(Experiment(environment=settings), *task, what)
    if agents:  # each of them is a lane
        lanes = agents * max(1, 8 // agents)
    lanes = lanes if lanes > 1 else 0
    if not is_image and len(shape) != 3:
        return _Seen(lanes=lanes)
    if find_spec("torch") is not None:
        return _Seen(image=shape, lanes=lanes)
    lines = _WITHOUT_TORCH["ALE" if ale else "grey" if shape[-1] == 3 else "flat"]
    note = (
        "It has images, and torch is not installed. This file learns without: from "
        f"{'the memory of the console' if ale else 'each pixel, in grey, and slowly'}. With torch, "
        f"init writes another one: {pip_install('torch')}"
    )
    return _Seen(lines=lines if is_image or ale else "", lanes=lanes, note=note)


#: Lines of `[environment]` with which a perceptron learns in place of convolutions.
_WITHOUT_TORCH = {
    "ALE": 'options = { obs_type = "ram" }\n',
    "grey": 'wrappers = [{ name = "GrayscaleObservation" }, { name = "FlattenObservation" }]\n',
    "flat": 'wrappers = [{ name = "FlattenObservation" }]\n',
}


def _for_vectors(options: argparse.Namespace, seen: _Seen) -> str:
    """The template for perceptrons."""
    parts = dict(_WAYS[options.way][1])
    if seen.lanes:
        parts["lanes"] = f"lanes = {seen.lanes}\n"
        step = 4 * seen.lanes  # a batch is four chunks at most, in all lanes
        batch = f"batch_size = {step * max(1, 1024 // step)}"
        sizes = parts["sizes"].replace("batch_size = 1024", batch)
        parts["sizes"] = sizes if batch in sizes else f"{batch}\n{sizes}"
    parts["lanes"] = seen.lines + parts["lanes"]
    template = resources.files("genkidama.cli").joinpath("template.toml")
    return template.read_text(encoding="utf-8").format(
        file=options.file, environment=options.environment, **parts
    )


def _for_images(options: argparse.Namespace, seen: _Seen) -> str:
    """The example of Pong, for another environment with images."""
    _, _, rest = example("atari/pong-ppo").read_text(encoding="utf-8").partition("[algorithm]\n")
    rest = re.sub(r"(?m)^mean_return = .*\n", "", rest)
    rest = re.sub(r"(?m)^environments = .*$", f"environments = {seen.lanes or 8}", rest)
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
    lines += [
        "",
        "[network]",
        'name = "convolutional"',
        "# convolutions = [[16, 8, 4], [32, 4, 2]]   # channels, kernel, stride; by size if absent",
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
