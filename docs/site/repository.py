"""Links from a page to files of the repository: on the site each leads to a page with that file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]

#: Files beside `docs/` that are pages of the site by themselves.
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contribute.md",
}

#: The ends of names of files that pages show or hand out as they are.
PICTURES = (".svg", ".gif", ".png", ".jsonl")

_LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".lua": "lua",
    ".sh": "bash",
    ".ini": "ini",
    ".service": "ini",
}

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s:]+)\)")


def page_of(path: str) -> str:
    """The page of the site that shows a file or folder of the repository.

    Args:
        path: below the repository's root, as `docs/notes/rules.md` or `examples`.
    """
    if (ROOT / path).is_dir():
        if not (ROOT / path / "README.md").exists():
            return f"repository/{path}/index.md"
        path += "/README.md"
    if path in _PAGES:
        return _PAGES[path]
    if path.startswith("docs/") and path.endswith((".md", *PICTURES)):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def linked(
    text: str, source: str, page: str, missing: Callable[[str], None]
) -> tuple[str, set[str]]:
    """A page's text with its links as the site needs them, and the files outside of `docs/`.

    Args:
        source: the file of the repository from which the text is.
        page: the page on which it will stand.
        missing: is told of each link that leads nowhere.
    """
    outside: set[str] = set()

    def reached(target: str) -> str:
        return os.path.normpath(PurePosixPath(source).parent / target)

    def made(match: re.Match[str]) -> str:
        """The picture, if it need not be made first."""
        path = reached(match[1])
        return match[0] if (ROOT / path).exists() or "docs/pictures/" not in path else ""

    def replaced(match: re.Match[str]) -> str:
        target, mark, anchor = match[1].partition("#")
        if not target or ":" in target or target.startswith("/"):
            return match[0]
        path = reached(target)
        if not (ROOT / path).exists():
            missing(f"{source}: the link {match[1]!r} leads nowhere")
            return match[0]
        if page_of(path).startswith("repository/"):
            outside.add(path)
        return f"]({os.path.relpath(page_of(path), PurePosixPath(page).parent)}{mark}{anchor})"

    lines = []
    fenced = False
    for line in _PICTURE.sub(made, text).splitlines():
        fenced ^= line.lstrip().startswith("```")
        lines.append(line if fenced else _LINK.sub(replaced, line))
    return "\n".join(lines) + "\n", outside


def shown(path: str) -> str:
    """A file or folder of the repository as a page's text."""
    place = ROOT / path
    if place.is_dir() and (place / "README.md").exists():
        place /= "README.md"
    if place.is_dir():
        rows = [f"- [`{name}`]({name})" for name in _names(place)]
        return "\n".join([f"# `{path}/`", "", *rows, ""])
    text = place.read_text(encoding="utf-8", errors="replace")
    if place.suffix == ".md":
        return text
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`{3,}|^", text)))
    return f"# `{path}`\n\n{fence}{_LANGUAGES.get(place.suffix, 'text')}\n{text}{fence}\n"


def _names(folder: Path) -> Iterator[str]:
    for place in sorted(folder.iterdir()):
        if place.name[0] not in "._" and place.suffix != ".pyc":
            yield place.name
