"""Code blocks of the documentation."""

from __future__ import annotations

import re

from tests.helpers import ROOT


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
