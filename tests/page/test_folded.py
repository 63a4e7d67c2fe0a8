"""What a viewer does with messages; that it gives the document is in test_document.py."""

from __future__ import annotations

import pytest

from genkidama.page.folded import fold
from tests.page.stories import BEGAN, as_json, began, told


def test_a_change_needs_a_document() -> None:
    with pytest.raises(ValueError, match="before the whole"):
        fold(None, as_json(told(began("a")).change(BEGAN)))
