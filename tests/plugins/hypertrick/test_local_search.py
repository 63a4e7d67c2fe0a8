"""What is checked before a run directory is made."""

from __future__ import annotations

import pytest

from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.local_search import check_search
from tests.helpers import small
from tests.stories import PLAN


def test_a_search_has_something_to_search() -> None:
    check_search(small(search=PLAN))
    with pytest.raises(ConfigurationError, match=r"small: has no \[search\]; say what to vary"):
        check_search(small())
