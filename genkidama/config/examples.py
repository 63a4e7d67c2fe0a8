"""The examples that come with the package: experiments, and trained policies, chosen by name."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

from genkidama.errors import ConfigurationError

#: What the name of a trained policy begins with.
ZOO = "zoo:"


def examples() -> dict[str, Path]:
    """The file of each example, by name: `"lunarlander"`, `"lunarlander/a3c"`, ….

    The first experiment of a folder has the folder's name.
    """
    found = {
        file.stem if file.stem == file.parent.name else f"{file.parent.name}/{file.stem}": file
        for file in _folder().glob("*/*.toml")
    }
    return dict(sorted(found.items(), key=lambda item: ("/" in item[0], item[0])))


def _folder() -> Path:
    package = Path(__file__).parents[1]
    # In a checkout they are beside the package; a wheel has them inside.
    return next(
        (path for path in (package / "examples", package.parent / "examples") if path.is_dir()),
        package,
    )


def zoo() -> dict[str, Path]:
    """The run directory of each trained policy, by name: `"zoo:cartpole"`, …."""
    return {f"{ZOO}{path.name}": path for path in sorted(_folder().glob("zoo/*/"))}


def trained(name: str) -> Path:
    """The run directory of a trained policy, `"zoo:NAME"`."""
    known = zoo()
    if name not in known:
        raise ConfigurationError(
            f"{name!r}: no trained policy has this name; there are {', '.join(known) or 'none'}"
        )
    return known[name]


def about(file: Path) -> str:
    """The summary of an example: the first sentence of its first comment."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = takewhile(re.compile("# (?!  )").match, lines)
    text = " ".join(line.removeprefix("# ") for line in comment)
    return text.partition(". ")[0].rstrip(".")


def example(name: str) -> Path:
    """The file of an example; its last word is enough if no other has it."""
    known = examples()
    found = [each for each in known if name in (each, each.rpartition("/")[2])]
    if name in known:
        return known[name]
    if len(found) == 1:
        return known[found[0]]
    import difflib  # for a mistake alone

    near = found or difflib.get_close_matches(name, known, 2)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ConfigurationError(
        f"{name}: no such file, and no example; {hint}`genkidama examples` lists them"
    )


def experiment_file(path: Path) -> Path:
    """The file, or the example of this name where there is no such file."""
    if path.suffix and not path.exists() and path.parent.is_dir():
        raise ConfigurationError(
            f"{path}: no such file; `genkidama init {shlex.quote(str(path))}` writes one, "
            "and `genkidama examples` lists some"
        )
    return path if path.exists() or path.suffix else example(path.as_posix())
