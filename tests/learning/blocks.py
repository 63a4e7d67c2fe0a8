"""Blocks of experience as a person would note them: steps, and what became of each."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from genkidama.plugins.actors.rule import Columns

GOES_ON, TERMINATED, TRUNCATED = range(3)

#: Two numbers an observation, one an action.
COLUMNS = Columns(2, 1)

#: Its number, and what became of the episode. The observation of step n is (n, −n), and what
#: follows it is (n + ½, 0) where the next step does not show it.
Step = tuple[int, int]


def block(lanes: list[list[Step]], columns: Columns = COLUMNS) -> np.ndarray:
    """Rows of a block: one lane behind the other, then the stops in the steps' order."""
    steps = [(step, t == len(lane) - 1) for lane in lanes for t, step in enumerate(lane)]
    rows = np.zeros((len(steps), columns.count), np.float32)
    stops = []
    for row, ((number, end), last) in enumerate(steps):
        rows[row, :2] = number, -number
        rows[row, columns.actions] = number % 2
        rows[row, columns.reward] = 10.0 * number
        rows[row, columns.terminated] = end == TERMINATED
        rows[row, columns.truncated] = end == TRUNCATED
        rows[row, columns.log_mu] = -0.5 - number % 3
        rows[row, columns.following] = 1.0
        if end == TRUNCATED or (end == GOES_ON and last):
            stop = np.zeros(columns.count, np.float32)
            stop[0] = number + 0.5
            rows[row, columns.following] = len(steps) + len(stops) - row
            stops.append(stop)
    return np.concatenate([rows, np.array(stops).reshape(-1, columns.count).astype(np.float32)])


_ends = st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATED, TRUNCATED])


@st.composite
def blocks(draw: st.DrawFn) -> list[list[list[Step]]]:
    """Some blocks of some lanes, whose steps are numbered all through."""
    shape = st.lists(st.lists(_ends, min_size=1, max_size=6), min_size=1, max_size=3)
    found = draw(st.lists(shape, min_size=1, max_size=4))
    numbers = iter(range(1000))
    return [[[(next(numbers), end) for end in lane] for lane in lanes] for lanes in found]
