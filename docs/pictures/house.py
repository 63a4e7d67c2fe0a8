"""The folders of the package in floors, as an SVG: `python -m docs.pictures.house`.

Floors and their order are those of the import contract in `pyproject.toml`, the words the first
sentence of each folder. `tests/test_house.py` compares the picture with the code.
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "house.svg"

WIDTH = 860
HEIGHT = 44
GAP = 8

STYLE = """
.floor { fill: #f4f6fa; stroke: #c9d1de }
.pure { fill: #e6f4ea; stroke: #a8d5b5 }
.plugins { fill: #fff6e0; stroke: #ecd08f; stroke-dasharray: 5 3 }
text { font: 13px system-ui, sans-serif; fill: #1d2430 }
.name { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  .floor { fill: #20262f; stroke: #465063 }
  .pure { fill: #1c3024; stroke: #3f6d50 }
  .plugins { fill: #352c17; stroke: #7d6631 }
  text { fill: #e4e8ef }
}
"""


def contracts() -> list[dict[str, list[str]]]:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    found: list[dict[str, list[str]]] = tools["importlinter"]["contracts"]
    return found


def floors() -> list[list[str]]:
    """The folders of each floor, from the top."""
    (layers,) = [each["layers"] for each in contracts() if "layers" in each]
    rows = [line.replace(":", "|").split("|") for line in layers]
    named = [[name.strip() for name in row] for row in rows]
    return [row for row in named if (ROOT / "genkidama" / row[0]).is_dir()]


def pure() -> set[str]:
    """The folders that touch nothing."""
    patterns = [name for each in contracts() for name in each.get("source_modules", [])]
    return {name.split(".")[1] for name in patterns if name.endswith(".**")}


def sentence(folder: str) -> str:
    """The first sentence of a folder's docstring."""
    text = (ROOT / "genkidama" / folder / "__init__.py").read_text(encoding="utf-8")
    words = " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())
    return words.partition(". ")[0].rstrip(".")


def picture() -> str:
    rows = floors()
    height = len(rows) * (HEIGHT + GAP) + GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The folders of genkidama, each floor importing only those below it</title>",
        f"<style>{STYLE}</style>",
    ]
    for level, row in enumerate(rows):
        y = GAP + level * (HEIGHT + GAP)
        width = (WIDTH - GAP * (len(row) + 1)) / len(row)
        for place, folder in enumerate(row):
            x = GAP + place * (width + GAP)
            kind = "plugins" if folder == "plugins" else "pure" if folder in pure() else "floor"
            words = sentence(folder)
            room = int((width - 110) / 6.4)
            if len(words) > room:
                words = words[:room].rsplit(" ", 1)[0].rstrip(",:") + " …"
            out += [
                f'<rect class="{kind}" x="{x:.0f}" y="{y}" width="{width:.0f}" '
                f'height="{HEIGHT}" rx="6"/>',
                f'<text class="name" x="{x + 14:.0f}" y="{y + 27}">{folder}</text>',
                f'<text x="{x + 92:.0f}" y="{y + 27}">{escape(words)}</text>',
            ]
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
