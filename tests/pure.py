"""The test files of the pure modules: `python tests/pure.py` prints them for `make test-fast`.

The import contract in pyproject.toml says which modules are pure; no other list is to be kept in
step.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pure_modules() -> list[Path]:
    """What the contract keeps from waiting, as paths below `genkidama/`, without the command."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    lists = [contract.get("source_modules", []) for contract in tools["importlinter"]["contracts"]]
    (names,) = [names for names in lists if "genkidama.*" in names]
    patterns = [name.replace(".", "/") + ".py" for name in names]
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT / "genkidama") for path in found if path.stem[0] != "_")


def mirrors_of(module: Path) -> list[Path]:
    """`session.py` is tested by `tests/test_session.py`, and by `tests/test_session_….py`."""
    folder = ROOT / "tests" / module.parent
    return sorted(
        path.relative_to(ROOT)
        for pattern in (f"test_{module.stem}.py", f"test_{module.stem}_*.py")
        for path in folder.glob(pattern)
    )


if __name__ == "__main__":
    for file in dict.fromkeys(file for module in pure_modules() for file in mirrors_of(module)):
        print(file)
