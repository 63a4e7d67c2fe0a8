"""The verbs `init`, `examples` and `completion`."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import textwrap
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from genkidama._version import pip_install
from genkidama.cli.parser import make_parser
from genkidama.config.allowlist import import_string
from genkidama.config.examples import about, example, examples
from genkidama.config.formatting import toml_value
from genkidama.config.recommended import Choice, Line, Look, describe, recommend, stop
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError, EnvironmentFailure

#: Ways in which children cooperate, each in a sentence.
_WAYS = {
    "act": (
        "children only act, and one learner beside the parent learns from all, the fastest "
        "that was measured: take it if the parent's machine, which learns, has the fastest core"
    ),
    "average": (
        "every child learns by itself, and their weights are averaged: take it for equal machines, "
        "large observations, or links that are often cut"
    ),
    "thesis": (
        "as average, but once an episode, with the α and β of your choice: take it to study the "
        "thesis"
    ),
}

_WIDTH = 100

#: The command in an example: what trains it, and with which options.
_COMMAND = re.compile(r"(?:cd \S+ && )?(genkidama (?:train|search)) \S+(.*)")


def init(options: argparse.Namespace) -> int:
    """Writes a commented experiment."""
    look, note = None, ""
    path: Path = options.file
    named = shlex.quote(str(path))
    names = [options.example] if options.example else []
    if not names and options.way == "act" and not options.period:
        names = _examples_for(options.environment)
    if not names:
        look, note = _look(options.environment, options.period)
        first, second = recommend(look, find_spec("torch") is not None, options.way)
        text = written(named, options.environment, look, first, second)
        command = f"genkidama train {named}{first.options}"
    else:
        text = example(names[0]).read_text(encoding="utf-8")
        found = _COMMAND.search(text)
        assert found is not None, "each example says how to train it"
        command = f"{found[1]} {named}{found[2]}"
        text = text.replace(found[0], command)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"{path}: is there already; name another file") from None
    except OSError as error:
        with suppress(OSError):
            path.unlink()  # the part that found room
        raise EnvironmentFailure(f"{path}: cannot be written: {error.strerror}") from None
    print(f"{path}: written; train it: {command}")
    if look is None:
        if options.example is None:
            print(f"It is the example {names[0]!r}, whose settings were tuned")
            if others := ", ".join(names[1:]):
                print(_wrapped(f"Others for it (--example): {others}", 78))
        return 0
    for choice, rank in ((first, "First"), (second, "Second")):
        print(_wrapped(f"{rank} choice: {choice.title}: {choice.why}", 78))
    if note:
        print(note)
    elif "convolutions" in first.title:
        print(f"Its convolutions need torch: {pip_install('torch')}")
    elif "convolutions" in second.title:
        print(f"With torch, init writes a file with convolutions: {pip_install('torch')}")
    elif first.title.startswith(("PPO", "A3C")) and not look.clock:
        print("\nIts children cooperate in one of three ways (--way):")
        for way, sentence in _WAYS.items():
            mark = " (this file)" if way == options.way else ""
            print(_wrapped(f"  {way}{mark}: {sentence}", 78, "    "))
    return 0


def _wrapped(text: str, width: int, indent: str = "  ") -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


#: Examples whose settings were tuned in their environment.
_TUNED = ("cartpole", "lunarlander", "lunarlander/continuous", "mountaincar", "pendulum")


def _examples_for(environment: str) -> list[str]:
    """The examples with this environment, if one of them was tuned in it, which is the first."""
    line = f'\nid = "{environment}"'
    found = [name for name, file in examples().items() if line in file.read_text(encoding="utf-8")]
    return found if found and found[0] in _TUNED else []


def _look(environment: str, period: float) -> tuple[Look, str]:
    """Has a process make the environment, play it for a second, and close it.

    Returns:
        What it has seen, and a sentence if that is nothing.

    Raises:
        ConfigurationError: there is no such environment, or it cannot be made.
    """
    named = import_string(environment)
    ale = environment.startswith("ALE/")
    settings = Environment(id=environment, vectorized=ale, period=period)
    own = named is not None and not settings.prefix
    if own and named is not None and find_spec(named.module.partition(".")[0]) is None:
        return Look(problem=f"there was no {named.module!r} yet"), (
            f"There is no {named.module!r} here yet. This file is for observations that are "
            "vectors; write it anew when the environment is there"
        )
    from genkidama.config.experiment import Experiment
    from genkidama.runs.resume import default_threshold
    from genkidama.runtime.forkserver import prefork
    from genkidama.runtime.machine import available_bytes, available_cores
    from genkidama.runtime.task import call

    prefork()
    plays = " and not playing it" if period else ", and playing random actions for a second"
    print(f"{environment}: building one{plays} …", flush=True)
    task = "genkidama.learning.first_look:look", (settings,)
    what = f"environment.id = {environment!r}: cannot be built"
    look: Look = call(Experiment(environment=settings), *task, what)
    room = available_bytes()
    look = replace(
        look,
        ale=ale,
        period=period,
        threshold=default_threshold(settings),
        room=None if room is None else room // available_cores(),
    )
    return look, ""


def written(file: str, environment: str, look: Look, first: Choice, second: Choice) -> str:
    """The text of an experiment: the figures, the first choice, and the second one in comments."""
    said = describe(look)
    room = max(map(len, said)) + 2
    lines = [
        f"{environment}, after a look at it. Train it with",
        f"  genkidama train {file}{first.options}",
        "Absent settings have their defaults. A wrong key is reported when the run starts.",
        "",
    ]
    for subject, sentence in said.items():
        lines += _wrapped(f"{subject:<{room}}{sentence}", _WIDTH - 2, " " * room).splitlines()
    lines += ["", *_wrapped(f"First choice: {first.title}: {first.why}.", _WIDTH - 2).splitlines()]
    lines += _wrapped(
        f"Second choice, at the end: {second.title}: {second.why}.", _WIDTH - 2
    ).splitlines()
    head = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    other = [
        f"Second choice: {second.title}.",
        "To take it, put a # before all lines above, back to [environment], take the first # from",
        "all lines below, and train it with",
        f"  genkidama train {file}{second.options}",
    ]
    return (
        f"{head}seed = 0\n\n[stop]\n{_section(stop(look))}\n"
        + _sections(environment, first)
        + "".join(f"# {line}\n" for line in other)
        + "#\n"
        + textwrap.indent(_sections(environment, second).rstrip(), "# ", lambda _: True).replace(
            "# \n", "#\n"
        )
        + "\n"
    )


#: What is said of settings, where a choice has nothing else to say.
_ABOUT = {
    "alpha": "the parent's step towards each child",
    "beta": "a child's step towards the parent",
    "entropy_coefficient": "larger: more exploration, later convergence",
    "gamma": "discount factor of a step",
    "hidden": "width of each hidden layer",
    "epochs": "passes over each batch",
    "convolutions": "channels, kernel, stride",
    "agents": "processes that act",
    "environments": "of each agent",
    "training_batch": "steps of an update",
}
_ABOUT_VALUES = {
    "experience": "children only act, and one learner beside the parent learns",
    "blend": "each child learns by itself, and weights are averaged",
    "difference": '"blend" is the thesis\' rule',
    "chunk": "act, take the parent's weights, learn, and push",
    "episode": "of the whole child, while its cores wait",
    "free": "nobody waits",
    "ga3c": "many environments ask one network",
}


def _sections(environment: str, choice: Choice) -> str:
    settings = {"environment": {}, **choice.settings}
    settings["environment"] = {"id": environment, **settings["environment"]}
    return "".join(f"[{name}]\n{_section(table)}\n" for name, table in settings.items())


def _section(table: dict[str, Any]) -> str:
    lines = []
    for key, given in table.items():
        line = given if isinstance(given, Line) else Line(given)
        about = line.about or _ABOUT_VALUES.get(str(line.value), _ABOUT.get(key, ""))
        text = f"{'# ' * line.off}{key} = {toml_value(line.value)}"
        whole = f"{text:<33} # {about}" if about else text
        lines += [f"# {about}:", text] if len(whole) > _WIDTH - 2 else [whole]
    return "".join(f"{line}\n" for line in lines)


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
    import shtab

    parser = make_parser()
    for verbs in parser._actions:
        if isinstance(verbs, argparse._SubParsersAction):
            for action in (each for verb in verbs.choices.values() for each in verb._actions):
                if action.type is Path:
                    action.complete = shtab.FILE
    print(shtab.complete(parser, options.shell))
    return 0
