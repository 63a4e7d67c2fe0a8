"""What is trained: every cell as data, and the order of all runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

#: The thesis' own: exchanges a child.
UPDATES = 2_000
#: Of all children together: so many updates of 2 children with 4 cores each.
EPISODES = 16_000
#: A run is judged at so many moments, evenly spread: every 100 updates of the thesis' 2,000.
CHECKPOINTS = 20

#: The thesis' best cell.
BEST = "grid-0.9-0.0"
#: One child alone: at β = 0 each child is, too, but two take twice the time.
ALONE = "a3c-4-0.999-120"

THESIS = "examples/lunarlander/thesis.toml"
OURS = "examples/lunarlander/a3c.toml"


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    name: str
    #: What it says in a table.
    label: str
    #: A key of `GROUPS`.
    group: str
    #: What `--set` changes.
    settings: Mapping[str, object]
    children: int = 2
    #: Of each child.
    cores: int = 4
    #: Exchanges a child.
    updates: int = UPDATES
    seeds: int = 5
    first_seed: int = 1
    file: str = THESIS

    @property
    def every(self) -> int:
        """Updates between two checkpoints."""
        return -(-self.updates // CHECKPOINTS)

    @property
    def overrides(self) -> list[str]:
        """All arguments of `--set`, as `key=value`."""
        found = {
            "stop.updates": self.updates,
            "parent.checkpoint_updates": self.every,
            "parent.checkpoint_seconds": 0,
            "parent.checkpoint_keep": CHECKPOINTS + 1,  # the last may not be a whole one
            **self.settings,
        }
        return [f"{key}={str(value).lower()}" if isinstance(value, bool) else f"{key}={value}"
                for key, value in found.items()]  # fmt: skip


def _blend(alpha: float, beta: float) -> dict[str, object]:
    return {"parent.alpha": alpha, "child.beta": beta}


def _grid() -> list[Cell]:
    return [
        Cell(f"grid-{alpha}-{beta}", f"α = {alpha}, β = {beta}", "grid", _blend(alpha, beta))
        for alpha in LEVELS
        for beta in BETAS
    ]


def _a3c() -> list[Cell]:
    return [
        Cell(
            f"a3c-{cores}-{gamma}-{batch}",
            f"{cores} cores, γ {gamma}, batch {batch}",
            "a3c",
            _blend(1.0, 0.0)
            | {
                "algorithm.gamma": gamma,
                "algorithm.batch_size": batch,
                "algorithm.pull_steps": 2 * batch,
            },
            children=1,
            cores=cores,
            seeds=3,
        )
        for cores, gamma, batch in (
            (8, 0.999, 120),
            (8, 0.99, 120),
            (8, 0.99, 60),
            (4, 0.999, 120),
            (8, 0.99, 30),
            (8, 0.95, 120),
        )
    ]


def _sizes() -> list[Cell]:
    return [
        Cell(
            f"size-{children}-{alpha}-{beta}",
            f"{children} {'child' if children == 1 else 'children'}, α = {alpha}, β = {beta}",
            "sizes",
            _blend(alpha, beta),
            children=children,
            updates=EPISODES // (4 * children),
            seeds=3,
        )
        for children in SIZES
        if children != 2  # they are in the grid
        for alpha, beta in PAIRS
    ]


def _ours() -> list[Cell]:
    settings: dict[str, object] = {
        # Fewer lanes: longer stretches of each in a batch, and more exchanges.
        "environment.lanes": 4,
        "optimizer.learning_rate": 4e-3,
        # With 0.5, the file's, seeds end further apart (docs/results/lunarlander.md).
        "algorithm.max_gradient_norm": 2.0,
        "child.exchange": "episode",
        "stop.steps": 1_000_000_000,
        "stop.episodes": EPISODES,  # they decide
    }
    # An update is an episode of each of a core's 4 lanes, or more of the lanes that are faster.
    updates = EPISODES // (2 * 4 * 4)
    label = "our own A3C settings (`a3c.toml`, 4 lanes, larger gradients)"
    # The settings were chosen with lower seeds.
    return [Cell("ours", label, "ours", settings, updates=updates, first_seed=21, file=OURS)]


LEVELS = (0.1, 0.5, 0.9)
BETAS = (0.0, 0.5, 0.9)
#: How many children, at an equal total of episodes, and with which α and β.
SIZES = (1, 2, 4, 8)
PAIRS = ((0.9, 0.0), (0.9, 0.5), (0.5, 0.5))

#: What `--cells` takes beside the names of cells.
GROUPS = {
    "grid": "Tables 5.3 to 5.5",
    "a3c": "Table 5.2",
    "ours": "our own A3C settings",
    "sizes": "1, 4 and 8 children at equal episodes",
}
GRID = {(alpha, beta): f"grid-{alpha}-{beta}" for alpha in LEVELS for beta in BETAS}
CELLS = {cell.name: cell for cell in [*_grid(), *_a3c(), *_ours(), *_sizes()]}


@dataclass(frozen=True)
class Condition:
    """One run."""

    cell: str
    seed: int

    @classmethod
    def of(cls, row: Row) -> Condition:
        return cls(row["cell"], row["seed"])

    def __str__(self) -> str:
        return f"{self.cell} seed {self.seed}"


def selected(names: Sequence[str]) -> list[str]:
    """The cells that `--cells` means, in their order; all without a name.

    Raises:
        KeyError: there is neither a cell nor a group of that name.
    """
    wanted: set[str] = set()
    for name in names:
        found = {cell for cell in CELLS if name in (cell, CELLS[cell].group)}
        if not found:
            raise KeyError(name)
        wanted |= found
    return [name for name in CELLS if not names or name in wanted]


def plan(cells: Iterable[str], seeds: Sequence[int] | None = None) -> list[Condition]:
    """All runs in their order: every cell has its first seed before any has its second.

    The thesis' best cell comes first, since most comparisons are with it.

    Args:
        cells: keys of `CELLS`.
        seeds: of the runs; by default each cell has its own.
    """
    names = sorted(cells, key=lambda name: (name != BEST, list(CELLS).index(name)))
    if seeds is not None:
        return [Condition(name, seed) for seed in seeds for name in names]
    most = max((CELLS[name].seeds for name in names), default=0)
    return [
        Condition(name, CELLS[name].first_seed + turn)
        for turn in range(most)
        for name in names
        if turn < CELLS[name].seeds
    ]


def missing(wanted: Iterable[Condition], rows: Iterable[Row]) -> list[Condition]:
    """What of the plan has no row yet."""
    done = {Condition.of(row) for row in rows}
    return [condition for condition in wanted if condition not in done]
