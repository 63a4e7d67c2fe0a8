"""Prints what the environment of `make docs` is made of, a requirement a line."""

import tomllib
from pathlib import Path

#: Dependencies of the package that no page needs; `conf.py` does without them.
_HEAVY = ("torch", "gymnasium", "box2d", "pygame", "rich", "shtab")

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
light = [one for one in project["dependencies"] if not one.startswith(_HEAVY)]
print(*light, *project["optional-dependencies"]["docs"], sep="\n")
