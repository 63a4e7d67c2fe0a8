"""GA3C's speed against N_P, N_T, N_A and grouping; the dynamic adjustment from bad starts; a GPU.

Claims, of the document (§4): each setting of predictors, trainers and agents makes another number
of trainings a second (TPS). Predictions a second (PPS) follow it, PPS ≈ TPS · t_max: what is
predicted is trained on. PPS is a little lower where episodes end, since rollouts there are shorter.
It is higher while a rollout is under way that the window cuts off. With `--training-batch 0`, as
documented, each rollout makes an update, and TPS is the rate at which the model is updated. The
dynamic adjustment finds a setting near the best, however bad its start.

Method: every setting in a window of its own, after a warm-up, with the document's Atari network, no
exchange and no dynamic adjustment. Rounds repeat the grid, so that a machine that drifts does so
for all settings alike. Medians of the rounds count. `dynamic` runs the adjustment from each start
with each seed. Then the setting that it ended at and the best of the grid that has rows are
measured in turn.

Each window is a line of the results, and is not repeated once it is there.

    python -m studies.ga3c.sweep run                     27 settings, two rounds, 20 minutes
    python -m studies.ga3c.sweep run --training-batch 0  an update a rollout, 20 minutes
    python -m studies.ga3c.sweep run --training-batch 0 20 80 320 --predictors 1 --trainers 1 2 \
        --agents 32 --results docs/results/ga3c-lag.jsonl      lag against grouping, 5 minutes
    python -m studies.ga3c.sweep dynamic                 two starts, three seeds, an hour
    python -m studies.ga3c.sweep report                  prints the tables
    python -m studies.ga3c gpu                           the source's table, an hour
    python -m studies.ga3c gpu --minutes 8               the most telling points (see gpu.py)
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import store
from benchmarks.processes import command
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from studies.differences import NONE, markdown
from studies.ga3c.drive import ROOT, WARM, adjust, cores, drive, experiment

#: Bad starts of the dynamic adjustment: N_P, N_T, N_A.
STARTS = ((1, 1, 1), (4, 1, 8))

#: What a window takes beside its seconds: processes start, and warm up.
_AROUND = WARM + 6.0

#: Seconds between two exchanges. One copies all weights from a GPU, so there are fewer there.
_EXCHANGE, _EXCHANGE_OF_GPU = 1.0, 10.0


class Window(NamedTuple):
    """One setting, or the start of the dynamic adjustment, in one round, which is its seed.

    Without agents it is Hogwild's A3C on all cores.
    """

    example: str
    width: int
    device: str
    training_batch: int
    predictors: int
    trainers: int
    agents: int
    dynamic: bool = False
    round: int = 0

    def __str__(self) -> str:
        numbers = f"N_P {self.predictors}, N_T {self.trainers}, N_A {self.agents:2}"
        grouping = f"training_batch {self.training_batch}"
        kind = "dynamic, seed" if self.dynamic else "round"
        return f"{self.device}, width {self.width}, {grouping}, {numbers}, {kind} {self.round}"

    @property
    def setting(self) -> tuple[int, int, int]:
        return self.predictors, self.trainers, self.agents

    @classmethod
    def of(cls, row: store.Row) -> Window:
        return cls(**{key: row[key] for key in cls._fields if key in row})


def wanted(options: argparse.Namespace) -> list[Window]:
    """The windows in their order, a round after the other."""
    grid: Sequence[tuple[int, int, int]] = STARTS
    if options.what == "run":
        grid = list(itertools.product(options.predictors, options.trainers, options.agents))
    return [
        Window(options.example, options.width, options.device, batch, *each, dynamic, number)
        for dynamic in [options.what == "dynamic"]
        for number in range(options.rounds)
        for batch in options.training_batch
        for each in grid
    ]


def measure(window: Window, options: argparse.Namespace, rows: list[store.Row]) -> store.Row:
    """One window: its setting, and what the backend measured."""

    task = (window.example, window.width, window.device)

    def settings(setting: tuple[int, int, int], **changes: Any) -> Experiment:
        names = ("ga3c__predictors", "ga3c__trainers", "ga3c__agents")
        return experiment(
            *task,
            seed=window.round,
            ga3c__max_agents=max(64, window.agents),
            ga3c__training_batch=window.training_batch,
            child__exchange_seconds=options.exchange,
            **dict(zip(names, setting, strict=True)),
            **changes,
        )

    if not window.agents:
        hogwild = experiment(*task, child__backend="hogwild", child__cores=cores())
        steps = drive(hogwild, options.seconds)["steps"]
        rates = {"pps": steps, "tps": steps / hogwild.algorithm.batch_size}
        return {**rates, **window._asdict(), "seconds": options.seconds}
    found: store.Row = {}
    setting, of_windows = window.setting, {"ga3c__window_seconds": options.window}
    if window.dynamic:
        trace = adjust(settings(setting, ga3c__dynamic=True, **of_windows), options.windows)
        setting = next(tuple(each.setting) for each in reversed(trace) if each.accepted)
        found = {
            "ended": setting,
            "trace": [[*each.setting, each.rate, each.accepted] for each in trace],
        }
    measured = drive(settings(setting), options.seconds)
    if window.dynamic and (best := best_fixed(rows, window)) is not None:
        found |= {"best": best, "best_tps": drive(settings(best), options.seconds)["tps"]}
    t_max = settings(setting).algorithm.batch_size
    return {**measured, **window._asdict(), **found, "t_max": t_max, "seconds": options.seconds}


def best_fixed(rows: list[store.Row], window: Window) -> tuple[int, int, int] | None:
    """The fixed setting with the highest median of TPS on the same task, None without rows."""
    found: dict[tuple[int, int, int], list[float]] = {}
    for row in rows:
        one = Window.of(row)
        if not one.dynamic and one[:4] == window[:4]:
            found.setdefault(one.setting, []).append(row["tps"])
    return max(found, key=lambda setting: median(found[setting]), default=None)


def grouped(rows: list[store.Row]) -> dict[Window, list[store.Row]]:
    """The rows of each setting, all rounds together."""
    found: dict[Window, list[store.Row]] = {}
    for row in rows:
        found.setdefault(Window.of(row)._replace(round=0), []).append(row)
    return found


def _share(row: store.Row) -> float:
    return float(row["pps"] / (row["tps"] * row["t_max"]))


def _medians(rows: list[store.Row], *keys: str) -> list[float]:
    return [median(row[key] for row in rows) for key in keys]


def table(rows: list[store.Row]) -> str:
    """The settings by their TPS, the best first, medians of the rounds."""
    lines = []
    found = grouped(rows)
    for one in sorted(found, key=lambda one: -_medians(found[one], "tps")[0]):
        keys = ("tps", "updates", "pps", "prediction_batch", "lag")
        tps, updates, pps, batch, lag = _medians(found[one], *keys)
        share = median(map(_share, found[one]))
        cells = [*map(str, one.setting), str(len(found[one])), f"{tps:.0f}", f"{updates:.0f}"]
        lines.append([*cells, f"{pps:.0f}", f"{share:.2f}", f"{batch:.1f}", f"{lag:.1f}"])
    head = ["N_P", "N_T", "N_A", "windows", "TPS", "updates/s", "PPS", "PPS ÷ (TPS · t_max)"]
    shares = list(map(_share, rows))
    span = f"between {min(shares):.2f} and {max(shares):.2f} in {len(rows)} windows"
    made = markdown([*head, "prediction batch", "lag"], lines)
    return f"{made}\nPPS ÷ (TPS · t_max) lies {span}."


def lags(rows: list[store.Row]) -> str:
    """The settings that have rows with several groupings: the lag against the grouping."""
    lines = []
    found = grouped(rows)
    alike = [one._replace(training_batch=0) for one in found]
    for one in sorted(found, key=lambda one: (one.width, one.device, one.setting, one)):
        if alike.count(one._replace(training_batch=0)) > 1:
            updates, pps, lag = _medians(found[one], "updates", "pps", "lag")
            cells = [*map(str, one.setting), str(one.training_batch)]
            lines.append([*cells, f"{updates:.0f}", f"{pps:.0f}", f"{lag:.1f}"])
    head = ["N_P", "N_T", "N_A", "training_batch", "updates/s", "PPS", "lag"]
    return markdown(head, lines)


def adjustments(rows: list[store.Row]) -> str:
    """Each run of the dynamic adjustment: its start and its end, beside the best of the grid."""
    lines = []
    for row in sorted(rows, key=Window.of):
        one, trace, best = Window.of(row), row["trace"], [NONE] * 3
        if "best" in row:
            share = row["tps"] / row["best_tps"]
            best = [_numbers(row["best"]), f"{row['best_tps']:.0f}", f"{share:.2f}"]
        start = [_numbers(one.setting), str(one.training_batch), str(one.round), str(len(trace))]
        end = [f"{trace[0][3]:.0f}", _numbers(row["ended"]), f"{row['tps']:.0f}"]
        lines.append([*start, *end, *best])
    head = ["from N_P, N_T, N_A", "training_batch", "seed", "windows", "TPS there", "ended at"]
    return markdown([*head, "TPS", "best of the grid", "its TPS", "share"], lines)


def _numbers(setting: Sequence[int]) -> str:
    return ", ".join(map(str, setting))


def report(rows: list[store.Row]) -> str:
    """All tables, each task with its own."""
    fixed = [row for row in rows if not Window.of(row).dynamic]
    parts = []
    for task in sorted({Window.of(row)[:4] for row in fixed}):
        example, width, device, batch = task
        least = f"updates from at least {batch} steps" if batch else "an update a rollout"
        parts += [f"### {example}, width {width}, {device}, {least}", ""]
        parts += [table([row for row in fixed if Window.of(row)[:4] == task]), ""]
    if len({row["training_batch"] for row in fixed}) > 1:
        parts += ["### Lag against grouping", "", lags(fixed)]
    if found := [row for row in rows if Window.of(row).dynamic]:
        parts += ["### The dynamic adjustment", "", adjustments(found)]
    return "\n".join(parts).rstrip()


def table_of_gpu(rows: list[store.Row]) -> str:
    """Each width and N_A on the GPU, beside GA3C and Hogwild's A3C on the CPU."""
    lines = []
    by = {Window.of(row): row for row in rows}
    for one, row in sorted(by.items()):
        if one.device == "cpu":
            continue
        there = [by.get(one._replace(device="cpu")), by.get(hogwild(one.example, one.width))]
        ga3c, a3c = (
            [f"{each['pps']:.0f}", f"{each['tps']:.0f}"] if each else [NONE] * 2 for each in there
        )
        share = f"{row['pps'] / there[1]['pps']:.1f}" if there[1] else NONE
        kind, ended = ("yes", _numbers(row["ended"])) if one.dynamic else ("no", "")
        use = f"{row['gpu']:.0f}" if "gpu" in row else NONE
        cells = [str(one.width), str(one.agents), kind, ended, f"{row['pps']:.0f}"]
        lines.append([*cells, f"{row['tps']:.0f}", use, *ga3c, a3c[0], share])
    head = ["width", "N_A", "dynamic", "ended at", "GPU: PPS", "TPS", "use, %"]
    head += ["GA3C on the CPU: PPS", "TPS", "A3C on the CPU: PPS", "GPU ÷ A3C"]
    return markdown(head, lines)


def hogwild(example: str, width: int) -> Window:
    return Window(example, width, "cpu", 0, 0, 0, 0)


def _run(
    windows: list[Window],
    rows: list[store.Row],
    options: argparse.Namespace,
) -> bool:
    """Measures the windows that have no row yet; whether none has failed."""
    done = set(map(Window.of, rows))
    adjusting = options.windows * 1.25 * options.window + options.seconds + _AROUND + 6.0

    def announce(left: Sequence[Window]) -> str:
        seconds = sum(
            options.seconds + _AROUND + (adjusting if each.dynamic else 0.0) for each in left
        )
        return f"about {seconds / 60.0:.0f} min left"

    return store.run(
        windows,
        [window for window in windows if window not in done],
        rows,
        options.results,
        measure=lambda window: measure(window, options, rows),
        announce=announce,
        outcome=lambda row: f"{row['tps']:.0f} TPS, {row['pps']:.0f} PPS",
    )


def _parser(name: str, results: str, seconds: float, windows: int, window: float) -> Any:
    parser = store.parser(name, __doc__)
    for option, value, text in (
        ("seconds", seconds, "of a window"),
        ("window", window, "of a window of the dynamic adjustment"),
    ):
        parser.add_argument(f"--{option}", type=float, default=value, help=f"{text} ({value:g})")
    text = f"of a run of the dynamic adjustment ({windows})"
    parser.add_argument("--windows", type=int, default=windows, help=text)
    parser.add_argument("--example", default="pong", help="which of examples/atari")
    parser.add_argument("--results", type=Path, default=ROOT / "docs/results" / results)
    return parser


@command
def gpu(arguments: list[str] | None = None) -> int:
    """`python -m studies.ga3c gpu`."""
    parser = _parser("ga3c gpu", "ga3c-gpu.jsonl", 20.0, 20, 5.0)
    parser.add_argument("--width", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--agents", type=int, nargs="+", default=[16, 32, 64, 128], help="N_A")
    parser.add_argument("--minutes", type=float, help="only the most telling points, in that time")
    parser.add_argument("--emulated", type=int, nargs="*", default=[16, 64, 256], help="their N_A")
    parser.add_argument("--device", default="cuda", help="of --minutes: `cpu` tries it without one")
    parser.set_defaults(exchange=_EXCHANGE_OF_GPU)
    options = parser.parse_args(arguments)
    if options.minutes and options.seconds == parser.get_default("seconds"):
        options.seconds, options.window, options.windows = 5.0, 3.0, 6
    if not (has_cuda() or (options.minutes and options.device == "cpu")):
        raise ConfigurationError(
            "there is no CUDA device here (torch.cuda.is_available() is false): run it where there "
            "is one; `python -m studies.ga3c.sweep run` measures the CPU"
        )
    if options.minutes:
        from studies.ga3c.gpu import brief

        return brief(options)
    rows = store.read(options.results)
    windows = [hogwild(options.example, width) for width in options.width]
    # The document's rule of thumb: N_P = N_T = 2. On the CPU nothing is adjusted.
    for dynamic, device in ((False, "cuda"), (False, "cpu"), (True, "cuda"))[
        : 3 if options.windows else 2
    ]:
        windows += [
            Window(options.example, width, device, 0, 2, 2, agents, dynamic)
            for width in options.width
            for agents in options.agents
        ]
    well = _run(windows, rows, options)
    print(table_of_gpu(rows), end="")
    return 0 if well else 1


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@command
def main(arguments: list[str] | None = None) -> int:
    parser = _parser("ga3c.sweep", "ga3c-sweep.jsonl", 10.0, 60, 6.0)
    parser.add_argument("what", choices=("run", "dynamic", "report"))
    for name, short, values in (
        ("predictors", "N_P", [1, 2, 4]),
        ("trainers", "N_T", [1, 2, 4]),
        ("agents", "N_A", [8, 16, 32]),
        ("training-batch", "steps of an update, at least; 0: one rollout", None),
    ):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=values, help=short)
    parser.add_argument("--rounds", type=int, help="or seeds (2, dynamic 3)")
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.set_defaults(exchange=_EXCHANGE)
    options = parser.parse_args(arguments)
    rows = store.read(options.results)
    if options.what == "report":
        print(report(rows))
        return 0
    dynamic = options.what == "dynamic"
    options.rounds = options.rounds or (3 if dynamic else 2)
    options.training_batch = options.training_batch or [0 if dynamic else 80]
    return 0 if _run(wanted(options), rows, options) else 1


if __name__ == "__main__":
    sys.exit(main())
