from __future__ import annotations

import numpy as np
import pytest

from genkidama.child_record import ChildRecord
from genkidama.errors import ProtocolError
from genkidama.messages import Push
from genkidama.weights import DTYPE


def test_a_checkpoint_keeps_the_counts_alone() -> None:
    record = ChildRecord(session="s", connected=True, sequence=4, exchanges=3, episodes=2, steps=1)
    assert record.counts() == {"exchanges": 3, "episodes": 2, "steps": 1}


def test_a_whole_push_is_read_as_it_is() -> None:
    push = Push(version=0, sequence=1, vector=np.ones(3, DTYPE))
    assert ChildRecord().read("pi", push) is push


def test_a_difference_that_was_not_agreed_on_is_refused() -> None:
    push = Push(version=3, sequence=1, encoding="int4", vector=np.ones(3, np.uint8))
    with pytest.raises(ProtocolError, match="child 'pi' pushes a difference to version 3") as no:
        ChildRecord().read("pi", push)
    assert no.value.code == "base"
