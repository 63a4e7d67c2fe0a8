"""The measured numbers of the summaries: README, the first pages and `docs/results/README.md`.

A figure is computed from the rows in `docs/results/`, or, where there are none, read on the page
that says what its command printed; then its sentence must stand in the summary as it does here. Any
other number with a unit is a failure, unless `SETTINGS` says what else it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from statistics import fmean, median
from typing import Any

import pytest

from benchmarks import store
from studies.differences import interval, medians
from studies.environments import scores
from studies.environments.tasks import OF
from tests.helpers import ROOT

README, SUMMARY = "README.md", "docs/results/README.md"
SCALING, SMALLER = "docs/results/scaling.md", "docs/results/smaller.md"
EDGE, LANDER, GA3C = (
    "docs/results/without-torch.md",
    "docs/results/lunarlander.md",
    "docs/results/ga3c.md",
)
SHELF, SHARDS, WIRE = "docs/results/shelf.md", "docs/results/shards.md", "docs/results/wire.md"
STUDIES = "studies/README.md"
PATH = [f"docs/{page.name}" for page in sorted(ROOT.glob("docs/*.md")) if page.name != "README.md"]
PATH.append("docs/notes/extending.md")

#: Figures that have no rows: where their command's print stands, what takes them from there, where
#: else they stand, and how. Code and links are left out of both.
PRINTED = [
    (LANDER, r"a ratio of ([\d.]+)\.", SUMMARY, "{} of the time of Stable-Baselines3's PPO"),
    (LANDER, r"a ratio of ([\d.]+)\.", README, "{} of the time of Stable-Baselines3's PPO"),
    (LANDER, r"ratio with our settings is (\d\.\d+)", SUMMARY, "and {} of it with our settings"),
    (LANDER, r"ratio with our settings is (\d\.\d+)", README, "and {} of it with ours"),
    (LANDER, r"It needed ([\d,]+) steps, and ours", SUMMARY, "beside {} (no rows)"),
    (LANDER, r"It needed ([\d,]+) steps, and ours", README, "needs {} steps and this one"),
    (LANDER, r"and ours ([\d,]+ to [\d,]+), about", SUMMARY, "twice the steps: {} beside"),
    (LANDER, r"and ours ([\d,]+ to [\d,]+), about", README, "and this one {} (one"),
    (EDGE, r"16 children, 40 windows each \| ([\d,]+)", SUMMARY, "beside {} of commit 226ec37"),
    (EDGE, r"16 children, 40 .*?\| [\d,]+ \| ([\d,]+)", SUMMARY, "handles {} exchanges a second"),
    (EDGE, r"environments of your own \| (\d+)", README, "a parent, takes {} MB;"),
    (EDGE, r"a film of it \| (\d+)", README, "with , {};"),
    (EDGE, r"its CPU build\) \| ([\d,]+)", README, "for your own networks, {} ("),
    (SHELF, r"the first exchange \| ([\d.]+) min", SUMMARY, "takes {} and"),
    (SHELF, r"the first exchange \| .*? \| ([\d.]+)", SUMMARY, "and {} minutes"),
    (GA3C, r"Hogwild, t_max 5 \| .*? \| ([\d.]+)×", SUMMARY, "{} times the steps of Hogwild"),
    (GA3C, r"A2C, 16 .*? \| .*? \| ([\d.]+)×", SUMMARY, "{} times the steps of Stable"),
    (GA3C, r"limit of its parts.*? \| .*? \| ([\d.]+)", SUMMARY, "and {} of its parts' limit"),
    (GA3C, r"Hogwild, t_max 5 \| .*? \| ([\d.]+)×", STUDIES, "| {} times Hogwild's steps"),
    (GA3C, r"limit of its parts.*? \| .*? \| ([\d.]+)", STUDIES, "{} of what its parts allow"),
    ("docs/results/gorila.md", r"Eight make ([\d.]+) times", STUDIES, "bundles make {} times the"),
]  # fmt: skip

#: Numbers that have no rows here, by what they are.
SETTINGS = {
    "a version": ["Python 3.11", "genkidama_rl-0.1.0", "glibc 2.28"],
    "a setting": [
        "gamma=0.99", "gamma-0.99", "or after five minutes", "nodes and 5 minutes each",
        "about four times a second", "for ten minutes:", "its 95 % stratified",
        "A quarter of a minute later", "for a second whenever it learns", "every five seconds",
        "γ = 0.99 an agent", "0.999 a thousand", "more than ten times as far", "below 0.5 uses",
        "5 s or more", "5 minutes a failure",
    ],
    "the thesis' own": ["257.2 ± 39.9"],
    "about": ["It takes two minutes"],
    "printed by one run, which tests/test_documents.py makes again": ["280.6 ± 40.1"],
    "printed by one run, which tests/test_tutorial_documents.py makes again": [
        "-3.9 over", "-4.1 ± 1.5", "143.8 over", "197.0 ± 59.8", "172.6 over", "306.0 ± 149.3",
    ],
}  # fmt: skip

#: Those of the study of scaling, and their names on the pages.
SIX_TASKS = {
    None: "LunarLander",
    "cartpole": "CartPole",
    "acrobot": "Acrobot",
    "breakout": "Breakout",
    "continuous": "the continuous LunarLander",
    "hopper": "Hopper",
}

#: A number with a unit, or with a point.
MEASURED = re.compile(
    r"(?:\d[\d.,]*|\b(?:two|three|four|five|six|seven|eight|nine|ten|sixteen))\s?(?:%|±|×|(?:s|ms|µs|"
    r"MB|GB|KB|min|minutes?|seconds?|hours?|times|steps a second|exchanges)\b)|\d\.\d"
)


def of(file: str, key: str = "", **wanted: Any) -> list[Any]:
    """The rows of a file that have what is wanted, or their values of a key.

    By `reached.seconds` a run that was ended before it reached the goal has its limit.
    """
    rows = store.read(ROOT / f"docs/results/{file}.jsonl")
    found = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    assert found, (file, wanted)
    if key == "reached.seconds":
        return [row["reached"]["seconds"] if row["reached"] else row["limit"] for row in found]
    return [row[key] for row in found] if key else found


def machines(file: str, contender: str, count: int) -> list[float]:
    """Seconds to LunarLander's goal of so many machines of a tenth of a core, undisturbed."""
    wanted = {"contender": contender, "machines": count, "disturbance": "none", "link": "none"}
    return of(file, "reached.seconds", share=0.1, task=None, **wanted)


def rows_of_task(task: str | None, contender: str, count: int) -> list[Any]:
    """Undisturbed runs of the study of six tasks; none where it has none."""
    wanted = {"task": task, "contender": contender, "machines": count, "share": 0.1}
    wanted |= {"link": "none", "disturbance": "none"}
    rows = of("scaling-tasks")
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def on_task(task: str | None, contender: str, count: int) -> list[float]:
    """Their seconds to the goal; infinity if a run did not reach it."""
    rows = rows_of_task(task, contender, count)
    return [row["reached"]["seconds"] if row["reached"] else math.inf for row in rows]


def times(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, ...]:
    """The ratio of two medians, and the ends of its interval."""
    ends = interval([slow, fast], lambda a, b: medians(a) / medians(b))
    return (median(slow) / median(fast), *(ends or ()))


def several(values: Sequence[float], form: str = "{:.1f} [{:.1f}, {:.1f}], n = {}") -> str:
    """Their median, the ends of its interval, and their number."""
    return form.format(median(values), *(interval([values], medians) or ()), len(values))


@cache
def text(page: str) -> str:
    """A page's prose and tables on one line, without code and links."""
    found = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"))
    found = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", found)
    return " ".join(re.sub(r"`[^`]*`", "", found).replace("*", "").split())


def lunarlander() -> Iterator[tuple[str, str]]:
    for commit in ("226ec37", "1bf4b4c"):
        passed = of("without-torch", "to_200", commit=commit, what="landing")
        least, most = min(passed), max(passed)
        yield EDGE, f"| {median(passed):.1f} s ({least:.1f}–{most:.1f}) |"
        learned = of("without-torch", "steps_to", commit=commit, what="a3c 700k")
        steps = [one.get("100", math.inf) for one in learned]
        words = {"226ec37": "with torch ({} of 13)", "1bf4b4c": "steps in the median (all {})"}
        count = words[commit].format(sum(map(math.isfinite, steps)))
        yield EDGE, f"{round(median(steps), -3):,.0f} {count}"
    yield README, several(passed, "in {:.1f} s (95 % interval {:.1f} to {:.1f}, n = {})")
    yield SUMMARY, several(passed, "after {:.1f} s [{:.1f}, {:.1f}], n = {}")
    yield SUMMARY, f"({least:.1f} to {most:.1f})"
    table = re.findall(r"\| 4[23]\d \| ([\d.]+) s \| [\d.]+ s \| ([\d.]+)", text(LANDER))
    early, best = zip(*((float(one), float(two)) for one, two in table), strict=True)
    yield SUMMARY, f"The best weights of ten longer runs reach {min(best):.0f} to {max(best):.0f}"
    yield SUMMARY, f"had taken {min(early)} to {max(early)} s to 200 (no rows)"
    ours, thesis = (
        [curve[-1][1:] for curve in of("thesis", "curve", cell=cell)]
        for cell in ("ours", "grid-0.9-0.0")
    )
    (means, spread), (theirs, _) = zip(*ours, strict=True), zip(*thesis, strict=True)
    yield SUMMARY, f"our settings end at {several(means)}"
    yield SUMMARY, f"with deviations of {min(spread):.0f} to {max(spread):.0f}"
    yield SUMMARY, f"The thesis' settings end at {several(theirs)}"
    yield (
        STUDIES,
        f"settings end at {median(theirs):.1f} (it has 257.2), ours at {median(means):.1f},",
    )


def many_machines() -> Iterator[tuple[str, str]]:
    one = machines("scaling", "alone", 1)
    found = {count: machines("scaling", "experience", count) for count in (2, 4, 8, 16)}
    ratios = {count: times(one, seconds) for count, seconds in found.items()}
    words = "Eight machines learn {:.1f} times as fast as one, sixteen {:.1f} times."
    yield SCALING, words.format(ratios[8][0], ratios[16][0])
    blend = machines("scaling", "blend", 8)
    yield SCALING, f"and {median(one) / median(blend):.1f} times what one machine does"
    yield SUMMARY, "{:.1f} times [{:.1f}, {:.1f}] as fast as one, n = 10".format(*ratios[8])
    yield SUMMARY, "and sixteen {:.1f} times [{:.1f}, {:.1f}], n = 5".format(*ratios[16])
    yield STUDIES, f"with a tenth of a core each, {ratios[8][0]:.1f} times;"
    one = machines("scaling-averaging", "alone-tuned", 1)
    ratios = {n: times(one, machines("scaling-averaging", "average", n)) for n in (4, 8)}
    words = "Eight averaging machines learn {:.1f} times as soon as one, four {:.1f} times"
    yield SCALING, words.format(ratios[8][0], ratios[4][0])


def tables_of_scaling() -> Iterator[tuple[str, str]]:
    """Medians, least and most of each condition whose runs all reached the goal."""
    names = ("contender", "machines", "disturbance", "link", "share", "task")
    for file in ("scaling", "scaling-averaging", "scaling-tasks"):
        groups: dict[tuple[Any, ...], list[float]] = {}
        for row in of(file):
            if row["share"] < 0.1 and row["date"] < "2026-11-26":
                continue  # measured again since
            seconds = row["reached"]["seconds"] if row["reached"] else math.inf
            groups.setdefault(tuple(map(row.get, names)), []).append(seconds)
        for found in groups.values():
            if max(found) < math.inf:
                spread = f"{min(found):.1f}–{max(found):.1f}"
                yield "docs/results/scaling.md", f"| {median(found):.1f} | {spread} |"


def disturbances_of_scaling() -> Iterator[tuple[str, str]]:
    """How much longer eight that act take where something disturbs them."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in of("scaling", contender="experience", machines=8):
        if row["reached"] and not (row["share"] < 0.1 and row["date"] < "2026-11-26"):
            key = row["share"], row["link"], row["disturbance"]
            groups.setdefault(key, []).append(row["reached"]["seconds"])
    for (share, link, disturbance), found in groups.items():
        beside = groups.get((share, "none" if link == "wifi" else link, "none"))
        if beside is not None and (link == "wifi" or disturbance != "none"):
            spread = f"{min(found):.1f}–{max(found):.1f}"
            yield SCALING, f"| {spread} | {median(found) / median(beside):.2f} |"


def unlike_machines() -> Iterator[tuple[str, str]]:
    """How much longer it takes with unequal machines, or such as come and go."""
    names = ("unequal", "churn", "physics", "cuts")
    rows = {name: of("scaling-tasks", disturbance=name) for name in names}
    rows["laptop"] = of("scaling-tasks", share=1.0)
    took = {name: [row["reached"]["seconds"] for row in found] for name, found in rows.items()}
    for name in names:
        against = took["laptop"] if name == "unequal" else on_task(None, "average", 8)
        yield SCALING, "| {:.2f} ({:.2f} to {:.2f}) of".format(*times(took[name], against))


def links_of_scaling() -> Iterator[tuple[str, str]]:
    """Lines of LunarLander over links, and how much longer each took than without one."""
    links = ("none", "delay", "wifi", "internet")
    eight = {"task": None, "contender": "average", "machines": 8, "disturbance": "none"}
    wanted = {link: {**eight, "link": link} for link in links}
    rows = {link: of("scaling-tasks", **condition) for link, condition in wanted.items()}
    took = {link: of("scaling-tasks", "reached.seconds", **wanted[link]) for link in links}
    for link, found in rows.items():
        cost = times(took[link], took["none"])
        beside = " " if link == "none" else " {:.2f} ({:.2f} to {:.2f}) ".format(*cost)
        steps = median(row["reached"]["steps"] if row["reached"] else math.inf for row in found)
        stale = median(row["staleness"]["mean"] for row in found)
        each = median(row["steps"] / row["version"] for row in found)
        yield SCALING, f"|{beside}| {steps:,.0f} | {stale:.1f} | {each:.0f} |"
    cost = times(took["delay"], took["none"])[0] - 1.0
    yield SCALING, f"A link of 20 ms costs {100.0 * cost:.0f} %"


def line_of_scaling(rows: list[Any], one: Sequence[float]) -> str:
    """The table's line of runs that are alike; `one` are the seconds of one machine."""
    took = [row["reached"]["seconds"] if row["reached"] else math.inf for row in rows]
    steps = median(row["reached"]["steps"] if row["reached"] else math.inf for row in rows)
    solved = sum(map(math.isfinite, took))
    most = f"{max(took):.1f}" if solved == len(took) else "never"
    middle = f"{median(took):.1f} | {min(took):.1f}–{most} | {steps:,.0f}"
    sooner = "{:.1f} ({:.1f})".format(*times(one, took)) if math.isfinite(median(took)) else "–"
    if sooner == "–":
        middle = "– | never | –"
    count = rows[0]["machines"]
    line = f"| {count} | {solved} of {len(took)} | {middle} |"
    if count == 1:
        return f"{line} | | | |"
    received, sent = (median(row[key] for row in rows) / 1e3 for key in ("received", "sent"))
    cores = median(row["parent_cpu"] / row["seconds"] for row in rows)
    return f"{line} {sooner} | {received:,.0f} | {sent:,.0f} | {cores:.3f} |"


def tasks_of_scaling() -> Iterator[tuple[str, str]]:
    """Lines of the six tasks, and what they come to; and the bytes of an exchange."""
    less, sooner = [], {}
    for task, name in SIX_TASKS.items():
        one = on_task(task, "alone-tuned", 1)
        ways = ("alone", "alone-tuned", "average", "experience")
        for contender, count in product(ways, (1, 4, 8)):
            if rows := rows_of_task(task, contender, count):
                yield SCALING, line_of_scaling(rows, one)
        sooner[name] = times(one, on_task(task, "average", 8))
        cores = (
            median(row["parent_cpu"] / row["seconds"] for row in rows_of_task(task, contender, 8))
            for contender in ("experience", "average")
        )
        less.append(next(cores) / next(cores))
    first = sooner.pop("LunarLander")
    ratios = [ratio for ratio, *_ in sooner.values()]
    span = f"{min(ratios):.1f} to {max(ratios):.1f} times"
    words = "eight learn LunarLander {:.1f} times as soon as one (95 % interval from {:.1f})"
    yield README, words.format(*first)
    yield README, f"and five other tasks {span}"
    yield SUMMARY, "eight learn LunarLander {:.1f} times as soon as one".format(*first)
    yield SUMMARY, f"(from {first[1]:.1f} on, n = 8 and 8)"
    yield SUMMARY, f"are learned {span} as soon"
    yield STUDIES, f"once a chunk, {first[0]:.1f} times as soon as one"
    yield (
        SCALING,
        f"eight machines learn {span} as soon as one, and LunarLander {first[0]:.1f} times",
    )
    yield SCALING, f"loads the parent less, {min(less):.0f} to {max(less):.0f} times"
    wanted = {"contender": "average", "machines": 8, "link": "ethernet", "disturbance": "none"}
    whole = [row for row in of("scaling-averaging", **wanted) if row.get("sent")]
    half = of("scaling-averaging", contender="average-half")
    for rows, words in ((whole, "{} kB to the parent and {} to {} kB back"), (half, "{} and {}.")):
        up, down = (
            [row[key] * row["seconds"] / row["version"] / 1e3 for row in rows]
            for key in ("received", "sent")
        )
        figures = (median(up), min(down), max(down))
        yield SCALING, words.format(*(f"{one:.0f}" for one in figures))


def off_policy() -> Iterator[tuple[str, str]]:
    """Lines of SAC and DQN: one machine, and four that average, and how much sooner they are."""
    page = "docs/results/scaling.md"
    for algorithm in ("sac", "dqn"):
        took = {}
        for way in ("alone", "blend") if algorithm == "dqn" else ("alone", "blend", "difference"):
            name = {"contender": f"{algorithm}-{way}"}
            runs = [row["reached"] for row in of("scaling-off-policy", **name)]
            took[way] = of("scaling-off-policy", "reached.seconds", **name)
            cells = "– | –"
            if solved := [run for run in runs if run]:
                most = f"{max(took[way]):.1f}" if all(runs) else "never"
                seconds = f"{median(took[way]):.1f} ({min(took[way]):.1f} to {most})"
                cells = f"{seconds} | {median(run['steps'] for run in solved):,.0f}"
            yield page, f"| {way} | {len(solved)} of {len(runs)} | {cells} |"
        ratio, least, _ = times(took["alone"], took["blend"])
        words = f"{ratio:.1f} times as soon as one (95 % interval from {least:.1f}, n = 5)"
        assert len(took["alone"]) == len(took["blend"]) == 5
        yield page, words
        yield "docs/notes/scaling.md", words


def best_ways() -> Iterator[tuple[str, str]]:
    """The better way with eight machines by the kind of task, on the page and in `init`'s files."""
    page = "docs/notes/scaling.md"
    said = (ROOT / "genkidama/config/recommended.py").read_text(encoding="utf-8")
    for task, name in SIX_TASKS.items():
        ways = [rows_of_task(task, way, 8) for way in ("experience", "average")]
        acted, averaged = (all(row["reached"] for row in rows) for rows in ways)
        if not acted:
            assert averaged and f"in {name} averaging " in said
            continue
        act, average = (median(row["reached"]["seconds"] for row in rows) for rows in ways)
        way, ratio = ("act", average / act) if act < average else ("average", act / average)
        yield page, f"{name}: {way}, {ratio:.1f} times as soon"
        if task is not None and name in said:
            assert f"{way}: {ratio:.1f} times sooner" in said
    one = on_task(None, "alone-tuned", 1)
    both = [times(one, on_task(None, way, 8))[0] for way in ("experience", "average")]
    assert "else average: {:.1f} and {:.1f} times as soon".format(*both) in said


def the_rest() -> Iterator[tuple[str, str]]:
    (load,) = of("load", server="parent", children=1000, seconds=601.3)
    assert (load["dropped"], load["unanswered"], load["passed"]) == (0, 0, 0)
    yield SUMMARY, f"{load['answered']:,} pushes are answered"
    yield SUMMARY, f"99.9 % of the replies come within {load['reply_ms'][2]:.1f} ms (one run)"
    first, *_, last = (row for row in of("soak", phase="load") if row["seconds"] > 55.0)
    yield STUDIES, f"{last['megabytes'] - first['megabytes']:.1f} MB, and no descriptor, file or"
    (left,) = of("soak", phase="left")
    yield SUMMARY, f"an hour with {left['join']:,} joins and {left['cuts']} cuts a parent's memory"
    yield SUMMARY, f"grew by {last['megabytes'] / first['megabytes'] - 1:.1%}".replace("%", " %")
    for method, words in {
        "asha": "ASHA with TPE",
        "improved": "HyperTrick improved, with TPE",
        "asynchronous_hyperband": "Hyperband, asynchronous",
        "random": "random search",
        "hypertrick": "HyperTrick as published",
    }.items():
        scores = of("search", "evaluation", method=method)
        yield SUMMARY, several(scores, "{:.0f} [{:.0f}, {:.0f}]") + f" ({words})"
    for name, words in {"ours": "actors and a learner", "sb3": "Stable-Baselines3 2.9.2"}.items():
        one, two = of("realtime", contender=name)
        cells = [f"{one[key]}, {two[key]} ms" for key in ("p50_ms", "p99_ms")]
        cells += [f"{one['max_ms']:.0f}, {two['max_ms']:.0f} ms"]
        cells += [f"{one['cycles'] / 35:.1f}, {two['cycles'] / 35:.1f}"]  # after five seconds
        yield SMALLER, " | ".join([words, *cells])
        if name == "ours":
            yield STUDIES, f"never longer than {max(one['max_ms'], two['max_ms']):.0f} ms,"


def rates() -> Iterator[tuple[str, str]]:
    """Steps, exchanges and answers a second: the lines of their tables."""
    rounds = of("speed")
    bare = [fmean([row["bare"], row["bare again"]]) for row in rounds]
    yield LANDER, f"| bare environment, random actions | {_cells(bare)} |"
    shares = {}
    for name, words in {
        "a3c, free": "A3C, exchanging freely",
        "a3c, episode": "A3C, exchanging by episodes",
        "lunarlander": "PPO, two that act and one that learns",
        "Stable-Baselines3 A2C": "Stable-Baselines3's A2C, 8 environments, a process on each core",
    }.items():
        found = [row[name] for row in rounds]
        shares[name] = median(one / other for one, other in zip(found, bare, strict=True))
        yield LANDER, f"| {words} | {_cells(found)} | {shares[name]:.2f} |"
    ratio = median(row["a3c, free"] / row["Stable-Baselines3 A2C"] for row in rounds)
    yield LANDER, f"A3C makes {ratio:.1f} times the steps of Stable-Baselines3's A2C"
    yield SUMMARY, f"{ratio:.1f} times the environment steps of Stable-"
    yield SUMMARY, f"and {shares['a3c, free']:.2f} of those of the bare environment"
    several = "| {:,} | {:,} | {:,.0f} | {:,.0f} | {:.2f} | {:.2f} / {:.1f} | {:,.0f} → {:,.0f} |"
    for row in of("exchange", server="parent"):
        size = {"parameters": row["parameters"], "children": row["children"]}
        (idle,) = of("exchange", server="bare", **size)
        ratio = row["rate"] / idle["rate"]
        figures = (idle["rate"], row["rate"], ratio, row["p50_ms"], row["p99_ms"])
        costs = (idle["server_us"], row["server_us"])
        yield LANDER, several.format(*size.values(), *figures, *costs)
        if size == {"parameters": 3_000, "children": 16}:
            yield SUMMARY, f"{ratio:.2f} of the exchanges of a"
        elif size == {"parameters": 250_000, "children": 16}:
            yield SUMMARY, f"{ratio:.2f} with 250,000 numbers"
    (flower,) = of("exchange", "multiple", server="flower")
    yield LANDER, f"The parent handles {flower:.1f} times the pushes of Flower's"
    yield SUMMARY, f"{flower:.0f} times those of Flower's gRPC"
    several = "| {:,} | {} | {:,.0f} | {:.2f} | {:.1f} | {:.1f} | {:.0f} | {:.0%} |"
    for nodes in (100, 1000):
        plain = median(of("service", "rate", nodes=nodes, run="plain"))
        for kind in ("plain", "search"):
            windows = of("service", nodes=nodes, run=kind)
            names = ("rate", "p50_ms", "p99_ms", "server_us", "busy")
            rate, *others = (median(row[name] for row in windows) for name in names)
            line = several.format(nodes, kind, rate, rate / plain, *others)
            yield "docs/results/hypertrick.md", line
    for megabits, link in ((100.0, "100 Mbit/s"), (0.0, "loopback")):
        alone = median(of("parts", "rate", megabits=megabits, parts=1))
        for count in (1, 2, 4):
            windows = of("parts", "rate", megabits=megabits, parts=count)
            cores = median(of("parts", "cores", megabits=megabits, parts=count))
            spread = f"{median(windows):.3f} [{min(windows):.3f}–{max(windows):.3f}]"
            times = median(windows) / alone
            # 4,000,000 numbers of 32 bits, both ways.
            used = f"{median(windows) * 256.0 / (count * megabits):.0%}" if megabits else "–"
            yield SHARDS, f"| {link} | {count} | {spread} | {times:.2f} | {used} | {cores:.2f} |"
            if megabits and count > 1:
                words = {2: "carries {:.2f} and", 4: "and {:.2f} times the exchanges"}
                yield SUMMARY, words[count].format(times)


def encodings() -> Iterator[tuple[str, str]]:
    """Bytes, exchanges and CPU time of each encoding: the lines of their table."""
    line = "| {:,} | {} | {} | {:,.0f} | {:.3f} | {:.2f} | {:.2f} | {:.3g} ms | {:.3g} ms |"
    times = []
    for size in (3_000, 250_000, 4_000_000):
        for over in ("loopback", "link"):
            exact: list[float] = []
            for name in ("float32", "float16", "int8", "int4"):
                rows = of("wire", numbers=size, over=over, encoding=name)
                keys = ("bytes", "rate", "parent", "child")
                count, rate, ours, theirs = (median(row[key] for row in rows) for key in keys)
                exact = exact or [count, rate]
                cells = (count, count / exact[0], rate, rate / exact[1], ours / 1e3, theirs / 1e3)
                yield WIRE, line.format(size, over, name, *cells)
        times.append(rate / exact[1])  # of int4 on the link
    yield WIRE, "On the link int4 exchanges {:.1f}, {:.1f} and {:.1f} times as often".format(*times)


def memory() -> Iterator[tuple[str, str]]:
    for file in ("lunarlander.toml", "a3c.toml", "cartpole.toml"):
        for row in of("memory", experiment=file):
            first = row["processes"][0]["pid"]  # whose own child forks the cores
            cores = [one for one in row["processes"] if first not in (one["pid"], one["parent"])]
            private = fmean(one["private"] for one in cores)
            name = file.removesuffix(".toml")
            yield LANDER, f"| {name} | {row['cores']} | {row['pss']:.0f} MB | {private:.1f} MB |"
            if row["cores"] == 4 and name != "cartpole":
                words = {
                    "lunarlander": "A child with four cores takes {:.0f} MB",
                    "a3c": "with {:.0f} (",
                }
                yield SUMMARY, words[name].format(row["pss"])


def environments() -> Iterator[tuple[str, str]]:
    """How often `init`'s settings are ahead of the peer's, which has those of its zoo."""
    rows = scores.grouped(store.read(ROOT / "docs/results/environments.jsonl"))
    found = scores.standing(rows, OF, "sb3-zoo")
    win, tie, loss = (found.clock[word] for word in ("win", "tie", "loss"))
    assert loss == 0, "no longer behind in none"
    yield README, f"In {win + tie} environments"
    yield README, f"zoo's settings in {win} and behind in none"
    yield SUMMARY, f"In {win + tie} environments"
    yield SUMMARY, f"zoo's settings in {win} and equal in {tie}"
    win, tie, loss = (found.steps[word] for word in ("win", "tie", "loss"))
    yield README, f"it is ahead in {win} and behind in {loss} of {win + tie + loss}"
    yield SUMMARY, f"it is ahead in {win}, equal in {tie} and behind in {loss}"
    full = [
        next(second for second, _, mean in row["curve"] if mean >= 499.5)
        for row in rows["CartPole-v1", "genkidama"].values()
    ]
    page = "docs/results/environments.md"
    yield page, f"after {median(full):.1f} s (median of five seeds;"
    yield page, f"{min(full):.1f} to {max(full):.1f} s), and those"


def dear_steps() -> Iterator[tuple[str, str]]:
    """Steps and seconds until a task is solved, returns after as many steps, and updates a second:
    the lines of their tables."""
    page = "docs/results/dear-steps.md"
    names = {"genkidama": "Genkidama", "sbx": "SBX", "sb3": "Stable-Baselines3"}
    rows = of("dear-steps")
    solved_by_steps = ("pendulum", "rotary", "rotary-demonstrations")
    solved_by_steps += ("robots-1", "robots-4", "robots-8", "lander-500", "continuous-lander")
    for task, by in product(solved_by_steps, names):
        if runs := [row for row in rows if row["what"] == task and row["by"] == by]:
            solved = [run for run in runs if run["solved"]]
            cells = _medians(solved, "steps", "before", "seconds")
            yield page, f"| {task} | {names[by]} | {len(solved)} of {len(runs)} | {cells} |"
    for words in ("needs {:,.0f} steps before", "and SBX's SAC {:,.0f}"):
        by = "sbx" if "SBX" in words else "genkidama"
        before = median(of("dear-steps", "before", what="robots-1", by=by))
        yield README, words.format(before)
        yield SUMMARY, words.format(before)
    for task, by in product(("hopper", "cheetah"), names):
        if runs := [row for row in rows if row["what"] == task and row["by"] == by]:
            cells = _medians(runs, "played", "seconds", "cpu_seconds")
            yield page, f"| {task} | {names[by]} | {len(runs)} | {cells} |"
    for task in ("stays", "forgets"):
        if runs := [row for row in rows if row["what"] == task]:
            yield page, f"| {task} | {len(runs)} | {_medians(runs, 'lost', 'seconds')} |"
    for hidden, (what, label) in product(
        (64, 256), {"updates": "both cores", "updates-on-one-core": "one core"}.items()
    ):
        speeds = [
            median(of("dear-steps", "updates_per_second", what=what, hidden=hidden, by=by))
            for by in names
        ]
        yield page, f"| {hidden}, {hidden} | {label} | {_cells(speeds)} |"


def memory_tasks() -> Iterator[tuple[str, str]]:
    """Returns and seconds of tasks that need a memory, and the speed of acting with one."""
    page = "docs/results/memory-tasks.md"
    rows = of("memory-tasks")
    learners = dict.fromkeys(row["by"] for row in rows if "by" in row)
    for task, by in product(("cartpole", "tmaze", "popgym"), learners):
        if runs := [row for row in rows if row["what"] == task and row.get("by") == by]:
            places = 0 if task == "cartpole" else 2
            cells = [_spread([run["mean"] for run in runs], places), _medians(runs, "steps")]
            cells += [_spread([run["seconds"] for run in runs], 0), str(len(runs))]
            yield page, f"| {task} | {by} | {' | '.join(cells)} |"
    for lanes in (1, 8, 16):
        ratios = of("memory-tasks", "ratio", what="acting", lanes=lanes)
        yield page, f"| {lanes} | {_spread(ratios, 2)} | {len(ratios)} |"


def _medians(runs: list[Any], *keys: str) -> str:
    """The cells of these measures: medians, the least and the most, or dashes without a run."""
    return " | ".join(
        _spread(found, 0) if found else "—"
        for found in ([run[key] for run in runs] for key in keys)
    )


def _spread(values: Sequence[float], places: int) -> str:
    """The median, the least and the most."""
    middle, *ends = (f"{each:,.{places}f}" for each in (median(values), min(values), max(values)))
    return f"{middle} ({ends[0]} to {ends[1]})"


def _cells(values: Sequence[float]) -> str:
    return " | ".join(f"{value:,.0f}" for value in values)


@cache
def figures() -> list[tuple[str, str]]:
    """Pages, and what must stand there."""
    found = [*lunarlander(), *many_machines(), *tables_of_scaling(), *links_of_scaling()]
    found += [*unlike_machines(), *disturbances_of_scaling()]
    found += [*tasks_of_scaling(), *the_rest(), *rates(), *encodings(), *memory()]
    found += [*environments(), *dear_steps()]
    found += [*memory_tasks(), *best_ways(), *off_policy()]
    for source, pattern, page, words in PRINTED:
        (number,) = re.findall(pattern, text(source))
        found.append((page, words.format(number)))
    return found


def test_every_figure_is_that_of_its_rows() -> None:
    wrong = [f"{page} lacks: {words}" for page, words in figures() if words not in text(page)]
    assert not wrong, "\n".join(wrong)


def test_every_setting_stands_somewhere() -> None:
    everything = "".join(map(text, [README, SUMMARY, *PATH]))
    assert not [each for kind in SETTINGS.values() for each in kind if each not in everything]


@pytest.mark.parametrize("page", [README, SUMMARY, *PATH])
def test_every_other_number_is_a_setting(page: str) -> None:
    known = [words for where, words in figures() if where == page]
    known += [words for kind in SETTINGS.values() for words in kind]
    spans = [one.span() for words in known for one in re.finditer(re.escape(words), text(page))]
    left = [
        text(page)[max(0, one.start() - 40) : one.end() + 20]
        for one in MEASURED.finditer(text(page))
        if not any(start <= one.start() < end for start, end in spans)
    ]
    assert not left, f"{page} has figures that nothing holds:\n" + "\n".join(left)
