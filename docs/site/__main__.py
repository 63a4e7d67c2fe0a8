"""`python -m docs.site FOLDER`: writes the pages of the site as Sphinx takes them.

These are the pages in `docs/`, pages made from the code, the files of the repository to which pages
link, and the navigation.
"""

from __future__ import annotations

import re
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import genkidama
from docs.site import commands, settings
from docs.site.repository import PICTURES, ROOT, linked, page_of, shown
from genkidama.config.plugin import Plugin

_DOCS = ROOT / "docs"
_OWN = _DOCS / "site"


def _api() -> str:
    lines = ["```{eval-rst}"]
    for name in dir(genkidama):
        if name != "__version__":
            kind = "autoclass" if name[0].isupper() else "autofunction"
            lines += [f".. {kind}:: genkidama.{name}", ""]
            if kind == "autoclass":
                lines[-1:] = ["   :members:", ""]
    return "\n".join([*lines, "```"])


def _hooks() -> str:
    """The fields of `Plugin` with the texts below them."""
    rows = [f"| `{name}` | {text} |" for name, text in settings.texts(Plugin).items() if name]
    return "\n".join(["| hook | entries |", "|---|---|", *rows])


#: A page says by `<!-- made: NAME -->` where such a text belongs.
_MADE = {"settings": settings.page, "command": commands.page, "api": _api, "hooks": _hooks}
_MARK = re.compile(r"<!-- made: (\w+) -->")


def pages() -> tuple[dict[str, str], list[str]]:
    """The text of each page by its name, and a line for each link that leads nowhere."""
    waiting = [
        *(str(path.relative_to(ROOT)) for path in sorted(_DOCS.rglob("*.md"))),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    ]
    found: dict[str, str] = {}
    dead: list[str] = []
    while waiting:
        path = waiting.pop(0)
        page = page_of(path)
        if page in found:
            continue
        source = f"{path}/README.md" if (ROOT / path).is_dir() else path
        text, more = linked(shown(path), source, page, dead.append)
        text = _MARK.sub(lambda match: _MADE[match[1]](), text)
        if page.startswith("repository/"):
            text = f"---\norphan: true\n---\n\n{text}"
        found[page] = text
        waiting += sorted(more)
    found["index.md"] += navigation(found)
    return found, dead


def navigation(found: dict[str, str]) -> str:
    """The navigation of these pages, as Sphinx's `toctree`s."""
    sections = tomllib.loads((_OWN / "navigation.toml").read_text(encoding="utf-8"))
    patterns = sorted((name for names in sections.values() for name in names), key=len)
    places: dict[str, list[str]] = {pattern: [] for pattern in patterns}
    for page in sorted(found):
        if page != "index.md" and not page.startswith("repository/"):
            best = [name for name in patterns if fnmatch(page, name)][-1]
            places[page if page in places else best].append(page)
    parts: list[str] = []
    for title, names in sections.items():
        shown = [page for name in names for page in places[name]]
        parts += ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *shown, "```"]
    return "\n".join([*parts, ""])


def main(target: Path) -> int:
    """Writes all pages, and nothing anew that is there as it should be."""
    found, dead = pages()
    wanted = {target / page: text.encode() for page, text in found.items()}
    for path in _DOCS.rglob("*"):
        if path.is_file() and path.suffix in PICTURES:
            wanted[target / path.relative_to(_DOCS)] = path.read_bytes()
    for path in target.rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()
    for path, content in wanted.items():
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    print(*dead, sep="\n", end="\n" if dead else "", file=sys.stderr)
    return bool(dead)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
