"""The page of real runs in a real browser: parents and children that train, die and come back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from benchmarks.made_up import DRAWN
from genkidama.config.experiment import Experiment
from tests.helpers import Started, history, small, until
from tests.plugins.dashboard.browser import Look, facts, picture, rows, violations

Start = Callable[..., Started]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

#: Learning is seen within so many milliseconds, on a machine that does much else.
LONG = 90_000


def port_of(said: Callable[[], str]) -> int:
    """Where a parent listens, as its log says it."""

    def found() -> int | None:
        for line in said().splitlines():
            if line.startswith("{") and (told := json.loads(line)).get("event") == "listening":
                return int(told["port"])
        return None

    return int(until(found, "a parent that listens"))


def a_parent(start: Start, folder: Path, experiment: Experiment, port: int = 0) -> int:
    (folder / "cart.toml").write_text(experiment.to_toml())
    options = ["--listen", f"127.0.0.1:{port}", "--out", "shelf"]
    parent = start("genkidama.parent", "cart.toml", *options)
    return port_of(lambda: parent.out + parent.err)


def a_child(start: Start, port: int, name: str, state: str = "") -> Started:
    options = ["--parent", f"ws://127.0.0.1:{port}", "--name", name, "--cores", 1]
    return start("genkidama.child", *options, "--state", state or name)


def states(page: Any) -> dict[str, str]:
    return {row[0]: row[1].partition(":")[0] for row in rows(page, "children-table")}


def wait_for_states(page: Any, **wanted: str) -> None:
    until(lambda: states(page) == wanted, f"children that are {wanted}", LONG / 1000)


def points(page: Any) -> int:
    return int(page.get_attribute("#curve", "data-points") or 0)


def scraped(port: int) -> dict[str, Any]:
    """What the official parser reads of `/metrics`, by name."""
    parser = pytest.importorskip("prometheus_client.parser")
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def test_two_children_one_is_killed_and_returns_and_one_is_refused(
    start: Start, tmp_path: Path, look: Look
) -> None:
    port = a_parent(start, tmp_path, small(stop={"mean_return": 475.0}))
    with look(f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("#bar-text >> text=waiting for children")
        a_child(start, port, "stays")
        returns = a_child(start, port, "returns")
        wait_for_states(page, stays="training", returns="training")
        until(lambda: points(page) > 3, "a curve", LONG / 1000)
        hero = facts(page, "hero")
        assert hero["children"] == "2" and hero["mean return"].endswith(", goal 475")
        # No shorter episode of CartPole is usual.
        assert float(hero["mean return"].partition(",")[0]) >= 9.0
        assert facts(page, "facts-list")["environment"] == "CartPole-v1"

        returns.signal(signal.SIGKILL)
        wait_for_states(page, stays="training", returns="away")
        assert facts(page, "hero")["children"] == "1 of 2"
        a_child(start, port, "stays", state="another")
        page.wait_for_selector("#refusals-list >> text=a name that is taken", timeout=LONG)
        assert int(facts(page, "refusals-list")["a name that is taken"]) >= 1
        before = points(page)
        a_child(start, port, "returns")
        wait_for_states(page, stays="training", returns="training")
        until(lambda: points(page) > before, "a curve that grows", LONG / 1000)
        picture(page, "real-run")


def scored(page: Any) -> int:
    """How many trials of the table have a score."""
    return sum(row[2] != "–" for row in rows(page, "trials"))


def dots(page: Any) -> int:
    """How many trials the first scatter has."""
    return int(page.get_attribute("#scatters figure", "data-points"))


def test_a_search_from_its_first_trial_to_its_best(
    start: Start, tmp_path: Path, look: Look
) -> None:
    plan = {
        "trials": 6,
        "phases": 2,
        "phase_steps": 3000,
        "eviction_rate": 0.5,
        "space": {"optimizer": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}},
    }
    (tmp_path / "cart.toml").write_text(small(search=plan).to_toml())
    options = ["--children", 2, "--cores", 1, "--out", "found", "--no-figures"]
    start("genkidama", "search", "cart.toml", *options)
    log = tmp_path / "found/logs/parent.log"
    port = port_of(lambda: log.read_text() if log.exists() else "")
    with look(f"http://127.0.0.1:{port}/", lost=True) as page:
        page.wait_for_selector("#timeline .phase", timeout=LONG)
        page.wait_for_selector("#best >> text=learning_rate", timeout=LONG)
        phases = page.locator("#timeline .phase")
        until(lambda: phases.count() > 5, "phases", LONG / 1000)
        hero = facts(page, "hero")
        assert hero["nodes"] == "2" and "trial" in hero["best score"]
        seen = rows(page, "trials")
        assert {row[1] for row in seen} <= {"running", "stopped", "finished"}
        # Scores come in while the page is read, so both are read again until they agree.
        until(lambda: scored(page) == dots(page) > 0, "a dot for each score", LONG / 1000)
        assert {row[0] for row in rows(page, "children-table")} == {"node-1", "node-2"}
        picture(page, "real-search")
        families = scraped(port)
        assert families["genkidama_run_info"].samples[0].labels["kind"] == "search"
        assert families["genkidama_mean_return"].samples[0].value > 0
        there = {sample.labels["child"] for sample in families["genkidama_child_steps"].samples}
        assert there <= {"node-1", "node-2"} and there


def test_a_parent_in_parts_shows_them(start: Start, tmp_path: Path, look: Look) -> None:
    (tmp_path / "cart.toml").write_text(small(stop={"mean_return": 475.0}).to_toml())
    options = ["--shards", 2, "--children", 1, "--cores", 1, "--out", "parts"]
    start("genkidama", "train", "cart.toml", *options)
    log = tmp_path / "parts/logs/parent-1.log"
    port = port_of(lambda: log.read_text() if log.exists() else "")
    with look(f"http://127.0.0.1:{port}/", lost=True) as page:
        until(lambda: points(page) > 2, "a curve", LONG / 1000)
        shown = rows(page, "parts-table")
        assert [row[:2] for row in shown] == [["1", "there"], ["2", "there"]]
        picture(page, "real-parts")


def test_finished_runs_lie_over_one_another_and_lead_to_their_pages(
    start: Start, tmp_path: Path, look: Look
) -> None:
    for seed in (1, 2):
        (tmp_path / "cart.toml").write_text(small(stop={"steps": 4000}).to_toml())
        options = ["--children", 1, "--cores", 1, "--episodes", 0, "--seed", seed]
        run = start("genkidama", "train", "cart.toml", *options, "--out", f"runs/seed-{seed}")
        assert run.wait(90) == 0, run.err
    serving = start("genkidama", "serve", "runs", "--listen", "127.0.0.1:0")
    url = until(
        lambda: next(
            (word for word in (serving.out + serving.err).split() if word.startswith("http://")), ""
        )
    )
    with look(url) as page:
        page.wait_for_selector(DRAWN)
        assert [row[0] for row in rows(page, "runs-table")] == ["seed-1", "seed-2"]
        assert page.locator("#curves button").count() == 2
        assert points(page) > 2
        picture(page, "real-runs")
        page.click("#runs-table >> text=seed-2")
        page.wait_for_url("**/runs/seed-2/")
        page.wait_for_selector("#bar-text >> text=over: ")
        assert page.inner_text("#connection-text") == "finished"
        assert page.inner_text("#title") == "seed-2"
        page.click("text=all runs")
        page.wait_for_selector("#runs-table >> text=seed-1")


@pytest.mark.parametrize("width", [390, 1280])
def test_an_owner_steers_its_run_by_keyboard_and_a_viewer_sees_no_buttons(
    start: Start, tmp_path: Path, look: Look, width: int
) -> None:
    port = a_parent(start, tmp_path, small(stop={"steps": 10_000_000}))
    a_child(start, port, "stays")
    a_child(start, port, "goes")
    link = (tmp_path / "shelf/owner").read_text().splitlines()[1]
    with look(f"http://127.0.0.1:{port}/") as page:
        until(lambda: points(page) > 1, "a curve", LONG / 1000)
        assert not page.is_visible("#controls")
    with look(link, width=width) as page:
        page.wait_for_selector("#controls >> text=as owner", timeout=LONG)
        until(lambda: points(page) > 1, "a curve", LONG / 1000)
        assert not violations(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        picture(page, f"controls-{width}")
        for button, words in (
            ("Checkpoint now", "Checkpoint now: done"),
            ("More time", "More time: done"),
        ):
            page.focus(f"#controls >> text={button}")
            page.keyboard.press("Enter")
            page.wait_for_selector(f"#controls-answer >> text={words}")
        page.select_option("#controls select >> nth=0", "goes")
        page.click("#controls button >> text=Exclude a child")
        page.wait_for_selector("#controls-answer >> text=Exclude a child goes: done")
        page.wait_for_selector("#controls select >> nth=1", timeout=LONG)  # admits it again
        if width > 1000:  # else the column of states is left out
            wait_for_states(page, stays="training", goes="away")
            page.wait_for_selector("#children-table >> text=excluded by owner")
        page.focus("#controls >> text=Stop the run")
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        page.wait_for_selector("#bar-text >> text=over: stopped by owner", timeout=LONG)
    done = [(line["action"], line["by"]) for line in history(tmp_path / "shelf", "command")]
    assert done == [(each, "owner") for each in ("checkpoint", "extend", "exclude", "stop")]
