"""Code blocks of the documentation, and the texts below the fields of a struct."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import msgspec

#: Not from `tests.helpers`: the site is built where psutil is not installed.
ROOT = Path(__file__).parents[1]


def texts(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The text of each field that has one, and that of the struct under the name `""`.

    Any whitespace in a text is a single space here.
    """
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {"": " ".join((ast.get_docstring(tree) or "").split())}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def code_blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in a language, in their order.

    Args:
        page: below the repository's root, as `docs/notes/rules.md`.
        language: what follows the fence's three backticks.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def code_block(page: str, language: str, words: str = "") -> str:
    """The only code block of a page in a language that has these words."""
    (found,) = (code for code in code_blocks(page, language) if words in code)
    return found
