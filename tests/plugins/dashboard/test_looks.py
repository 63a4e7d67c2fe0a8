"""The page in a real browser, before a made-up parent: what a person sees, and can do."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks.made_up import BEGAN, DRAWN, child, document, made_up, runs, search
from tests.helpers import until
from tests.plugins.dashboard.browser import Look, facts, picture, rows, violations

#: A browser takes seconds to begin: `make test-page` runs these.
pytestmark = pytest.mark.slow


def troubled() -> dict[str, Any]:
    """A run with a child that is away, two kinds of refusals, and a note."""
    found = document()
    found["children"][-1].update(
        state="away", why="the connection was lost", exchanged=BEGAN + 59.0
    )
    found["refusals"] = {"signature": 1, "token": 3}
    found["learning"]["diagnostics"] |= {
        name: {"columns": ["seconds", "value"], "rows": [[1.0, 1.0], [2.0, 1.0]]}
        for name in ("updates", "my_own")
    }
    found["run"]["notes"] = ["entropy falls quickly"]
    return found


def shared() -> dict[str, Any]:
    """A run with GA3C and a parent in parts."""
    found = document(children=2)
    found["run"]["backend"] = "ga3c"
    found["learning"]["figures"] = {
        "tps": 402.1,
        "pps": 12034.0,
        "updates": 40.2,
        "predictors": 2.0,
        "trainers": 3.0,
        "agents": 24.0,
        "queue_prediction": 5.0,
        "queue_training": 1.0,
        "prediction_batch": 8.2,
        "training_batch": 40.1,
        "lag": 1.2,
        "grad_norm": 0.51,
    }
    found["parts"] = [
        {
            "part": part,
            "of": 2,
            "state": "there" if part == 1 else "unknown",
            "numbers": 1500,
        }
        for part in (1, 2)
    ]
    return found


DOCUMENTS = {
    "plain": troubled,
    "ga3c": shared,
    "search": search,
    "runs": runs,
    "waiting": lambda: document(0.2, 0),
}


#: As docs/notes/diagnostics.md orders them, whatever order they came in; counters are last.
DIAGNOSTICS = [
    "policy loss −0.00259",
    "value loss 12.9",
    "entropy 0.429 nats",
    "KL 0.0054",
    "clipped 10.6%",
    "explained variance 0.942",
    "my own 1",
    "updates 1",
]


def test_a_person_sees_how_a_run_stands_and_what_changes(look: Look) -> None:
    with made_up(troubled()) as parent, look(parent.url) as page:
        page.wait_for_selector(DRAWN)
        hero = facts(page, "hero")
        assert list(hero) == [
            "mean return",
            "steps/s",
            "steps",
            "episodes",
            "exchanges",
            "children",
        ]
        assert hero["mean return"] == "204.7, goal 200"
        assert hero["children"] == "3 of 4"
        assert page.inner_text("#bar-text").startswith("62% · 1:4")
        assert page.inner_text("#notes") == "entropy falls quickly"
        assert facts(page, "refusals-list") == {
            "a wrong token, or none": "3",
            "another network": "1",
        }
        about = facts(page, "facts-list")
        assert about["α"] == "0.5" and "β" not in about  # null: nothing is blended there
        assert about["algorithm.gamma"] == "0.999" and about["network.hidden"] == "[64,64]"
        # A diagnostic's value below the pointer, and one outlier does not flatten the rest.
        page.hover("#multiples [data-name=entropy] svg")
        page.wait_for_selector("#multiples [data-name=entropy] b >> text=/ at 0:[0-9][0-9]$/")
        page.mouse.move(1, 1)
        assert " at " not in page.inner_text("#multiples [data-name=entropy] b")
        seen = rows(page, "children-table")
        assert [row[0] for row in seen] == ["child-1", "child-2", "child-3", "child-4"]
        assert seen[0][1:5] == ["training", "now", "170.6", "9,757"]
        assert seen[3][1] == "away: the connection was lost"
        assert page.get_attribute("#curve", "data-points") == "400"
        told = page.locator("#multiples figcaption").all_inner_texts()
        assert [" ".join(text.split()) for text in told] == DIAGNOSTICS
        assert page.get_attribute("#curve svg", "aria-label").startswith(
            "Mean return over time: from"
        )

        change = copy.deepcopy(parent.document)
        change.update(type="change", time=BEGAN + 101.0, gone=["child-2"], refusals={"token": 9})
        change["children"] = [child(3, 101.0, state="away", why="silent"), child(7, 101.0)]
        learning = change["learning"]
        learning["mean_return"] = 230.5
        learning["curve"]["rows"] = [[100.5, 268000, 229.0], [101.0, 269000, 230.5]]
        learning["diagnostics"]["approximate_kl"]["rows"] = [[101.0, 0.5]]
        parent.say(change)
        page.wait_for_selector("#hero >> text=230.5")
        assert page.get_attribute("#curve", "data-points") == "402"
        assert page.get_attribute("#multiples [data-name=approximate_kl]", "data-points") == "121"
        assert [row[:2] for row in rows(page, "children-table")] == [
            ["child-1", "training"],
            ["child-7", "training"],
            ["child-3", "away: silent"],
            ["child-4", "away: the connection was lost"],
        ]
        assert facts(page, "refusals-list") == {"a wrong token, or none": "9"}
        assert page.title() == "230.5 · lunarlander-20261122-142608 · Genkidama"
        page.locator("#over >> text=steps").click()
        assert "Mean return over steps" in page.get_attribute("#curve svg", "aria-label")


def test_the_page_goes_on_by_itself_when_its_parent_is_back(look: Look) -> None:
    with made_up(document()) as parent, look(parent.url, lost=True) as page:
        page.wait_for_selector("#connection[data-state=live]")
        parent.stop()
        page.wait_for_selector("#connection-text >> text=not connected, trying again")
        assert facts(page, "hero")["mean return"] == "204.7, goal 200"  # what was known stays
        parent.document = document(130.0, 2)
        parent.start()
        page.wait_for_selector("#connection[data-state=live]")
        until(lambda: len(rows(page, "children-table")) == 2)
        assert page.inner_text("#spoken") == "Connected again."
        # Another run in its place has nothing of the one before.
        parent.stop()
        parent.document["run"]["name"] = "another"
        parent.document["learning"] |= {"diagnostics": {}}
        parent.start()
        page.wait_for_selector("#title >> text=another")
        assert page.locator("#multiples > *").count() == 0


def test_a_thousand_children_by_keyboard_alone(look: Look) -> None:
    with made_up(document(children=1000)) as parent, look(parent.url) as page:
        page.wait_for_selector(DRAWN)
        assert 10 < len(rows(page, "children-table")) < 60
        assert page.get_attribute("#children-table table", "aria-rowcount") == "1001"
        page.focus("#children-table tbody button")
        page.keyboard.press("End")
        assert page.evaluate("document.activeElement.innerText") == "child-1000"
        page.keyboard.press("ArrowUp")
        assert page.evaluate("document.activeElement.innerText") == "child-999"
        page.keyboard.press("Enter")
        assert page.inner_text("#details-title") == "child-999"
        assert facts(page, "details-facts")["address"] == "192.168.0.249"
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.innerText") == "child-999"

        page.focus("#children-table th[data-column=speed] button")
        page.keyboard.press("Enter")
        speeds = [float(row[4].replace(",", "")) for row in rows(page, "children-table")]
        assert speeds == sorted(speeds, reverse=True) and speeds[0] > 9890
        page.keyboard.press("Enter")
        assert (
            page.get_attribute("#children-table th[data-column=speed]", "aria-sort") == "ascending"
        )
        speeds = [float(row[4].replace(",", "")) for row in rows(page, "children-table")]
        assert speeds == sorted(speeds) and speeds[0] < 8110
        page.fill("#find-text", "CHILD-77")
        # 77, and 770 to 779. What has just been scrolled is drawn anew a moment later.
        until(lambda: len(rows(page, "children-table")) == 11, "eleven rows")

        # A row that is clicked keeps the focus, also when it has moved up behind its dialog.
        page.click("#children-table button >> text=child-773")
        change = {**copy.deepcopy(parent.document), "type": "change", "gone": ["child-770"]}
        parent.say({**change, "children": []})
        until(lambda: len(rows(page, "children-table")) == 10, "ten rows")
        page.keyboard.press("Escape")
        focused = "document.activeElement.innerText"
        until(lambda: page.evaluate(focused) == "child-773", "its focus", 5)


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it_on_a_phone_too(look: Look, name: str, scheme: str) -> None:
    with made_up(DOCUMENTS[name]()) as parent:
        for width in (1440, 360):
            with look(parent.url, width, color_scheme=scheme) as page:
                page.wait_for_selector(DRAWN)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.evaluate("document.documentElement.dataset.theme") == scheme
                picture(page, f"{name}-{scheme}-{width}")
                assert violations(page) == []


CUT = """Array.from(document.querySelectorAll("#children th, #children td, #children th > *"))
    .filter((cell) => cell.offsetWidth && cell.scrollWidth > cell.clientWidth)
    .map((cell) => cell.innerText)"""


@pytest.mark.parametrize("width", [720, 1000, 1280, 1600])
def test_no_cell_of_a_child_is_cut(look: Look, width: int) -> None:
    large = {"bytes_in": 46_712_345, "bytes_out": 146_712_345, "steps": 341_400_000}
    found = document(children=0)
    found["children"] = [child(1, 100.0, updates=66_500.0, round_trip=0.112, **large)]
    with made_up(found) as parent, look(parent.url, width) as page:
        page.wait_for_selector(DRAWN)
        assert page.evaluate(CUT) == []


def test_a_search_is_seen_trial_by_trial(look: Look) -> None:
    with made_up(search()) as parent, look(parent.url) as page:
        page.wait_for_selector(DRAWN)
        trials = parent.document["search"]["trials"]
        best = parent.document["search"]["best"]
        phases = sum(len(trial["phases"]) for trial in trials)
        assert page.text_content("#search-title") == "Trials, phase by phase: HyperTrick"
        assert page.locator("#timeline .phase").count() == phases
        running = [trial for trial in trials if trial["state"] == "running"]
        assert page.locator("#timeline [data-running]").count() == len(running) > 1
        assert facts(page, "hero")["best score"] == f"{best['score']:.1f} trial {best['trial']}"
        assert facts(page, "best")["batch_size"] == str(best["settings"]["algorithm.batch_size"])
        scored = [trial for trial in trials if trial["score"] is not None]
        for setting in parent.document["search"]["settings"]:
            drawn = page.locator(f"#scatters [data-name='{setting}'] circle")
            assert drawn.count() == len(scored)
        newest = rows(page, "trials")[0]
        assert newest[:2] == [str(trials[-1]["number"]), trials[-1]["state"]]
        page.click("#trials tbody button >> nth=0")
        said = facts(page, "details-facts")
        assert said["state"] == trials[-1]["state"]
        assert any("to now" in value for value in said.values())
        assert page.text_content("#trials-title") == "All trials"
        whole = {**parent.document["search"], "count": 1500}
        parent.say({**parent.document, "search": whole})
        page.wait_for_selector(f"#search-title >> text={len(trials)} of 1,500 trials, phase by")
        assert page.text_content("#trials-title") == f"{len(trials)} of 1,500 trials"
        page.click("#details-close")
        page.click("text=as a table")
        heads = page.locator(".numbers th").all_inner_texts()
        assert heads == ["time", "best score so far"]


def test_ga3c_and_parts_are_seen(look: Look) -> None:
    with made_up(shared()) as parent, look(parent.url) as page:
        page.wait_for_selector(DRAWN)
        stations = " ".join(page.inner_text("#ga3c-figures").split())
        assert "24 agents" in stations and "5 wait for a prediction" in stations
        assert "12,034 predictions/s · 8.2 in a batch" in stations
        assert "3 trainers 402 rollouts/s" in stations
        assert facts(page, "measures-list") == {"grad norm": "0.51"}
        assert rows(page, "parts-table") == [
            ["1", "there", "1.5K"],
            ["2", "unknown", "1.5K"],
        ]


def test_several_runs_lie_over_one_another(look: Look) -> None:
    with made_up(runs()) as parent, look(parent.url) as page:
        page.wait_for_selector(DRAWN)
        assert [row[0] for row in rows(page, "runs-table")] == [
            f"lunarlander-seed-{n}" for n in range(4)
        ]
        assert page.locator("#curve path.curve").count() == 4
        page.click("#curves button >> nth=1")
        assert page.locator("#curve path.curve").count() == 3
        assert page.get_attribute("#curves button >> nth=1", "aria-pressed") == "false"
        assert page.is_hidden("#environments")
        table = rows(page, "runs-table")
        assert [row[-1] for row in table] == [f"gamma {g}" for g in ("0.9", "0.99", "0.9", "0.99")]
        with page.expect_navigation(url="**/runs/lunarlander-seed-2/"):
            page.click("#runs-table >> text=lunarlander-seed-2")


def test_runs_of_one_environment_are_shown_together(look: Look) -> None:
    document = runs()
    document["runs"][1] |= {"environment": "CartPole-v1", "started": BEGAN + 9}
    with made_up(document) as parent, look(parent.url) as page:
        page.wait_for_selector(DRAWN)
        assert page.locator("#curve path.curve").count() == 1  # of the run that began last
        assert rows(page, "runs-table")[0][0] == "lunarlander-seed-1"
        page.click("#environments button >> text=LunarLander-v3")
        assert page.locator("#curve path.curve").count() == 3


def test_dragging_zooms_into_the_curve_and_the_button_shows_all_of_it(look: Look) -> None:
    found = document()
    curve = [[second, 30_000 * second, 498.7 + 0.015 * second] for second in range(101)]
    found["learning"]["curve"]["rows"] = curve
    with made_up(found) as parent, look(parent.url) as page:
        page.wait_for_selector(DRAWN)
        ticks = "all => all.map(one => one.textContent)"
        page.locator("#over >> text=steps").click()
        assert {"499.5", "1.25M"} <= set(page.eval_on_selector_all("#curve .tick", ticks))
        page.locator("#over >> text=time").click()
        whole = page.eval_on_selector_all("#curve .tick", ticks)
        box = page.locator("#curve .lines").bounding_box()

        def drag() -> None:
            page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 90)
            page.mouse.down()
            page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 90)
            assert page.get_attribute("#curve .band", "visibility") == "visible"
            page.mouse.up()

        drag()
        zoomed = page.eval_on_selector_all("#curve .tick", ticks)
        assert zoomed != whole and page.locator("#curve .curve").count() == 1
        picture(page, "zoomed")
        assert violations(page) == []
        change = {**copy.deepcopy(parent.document), "type": "change", "gone": []}
        change["learning"]["mean_return"] = 300.0
        parent.say(change)
        page.wait_for_selector("#hero >> text=300.0")
        assert page.eval_on_selector_all("#curve .tick", ticks) == zoomed  # it stays
        page.click("#curve .whole")
        assert page.eval_on_selector_all("#curve .tick", ticks) == whole
        drag()
        page.dblclick("#curve .lines")
        assert page.eval_on_selector_all("#curve .tick", ticks) == whole
        assert page.is_hidden("#curve .whole")


def test_the_colours_are_the_systems_until_somebody_chooses(look: Look) -> None:
    with made_up(document()) as parent, look(parent.url, color_scheme="dark") as page:
        theme = "document.documentElement.dataset.theme"
        assert page.evaluate(theme) == "dark"
        page.click("#theme")
        assert page.evaluate(theme) == "light"
        page.reload()
        assert page.evaluate(theme) == "light"
        page.click("#theme")
        page.emulate_media(color_scheme="light")
        until(lambda: page.evaluate(theme) == "light")  # as the system's again


def test_it_speaks_seldom(look: Look) -> None:
    with made_up(document()) as parent, look(parent.url) as page:
        page.wait_for_selector(DRAWN)
        said = page.inner_text("#spoken")
        assert said == "Mean return 204.7, goal 200. 4 children training. 62% done."
        change = {**copy.deepcopy(parent.document), "type": "change", "gone": []}
        change["learning"]["mean_return"] = 300.0
        parent.say(change)
        page.wait_for_selector("#hero >> text=300.0")
        assert page.inner_text("#spoken") == said
        change["run"].update(state="over", reason="the mean return is 300")
        parent.say(change)
        page.wait_for_selector("#connection[data-state=finished]")
        assert page.inner_text("#spoken").startswith("The run is over: the mean return is 300.")
        assert page.locator("#children-table [data-kind=done]").count() == 4
        assert page.locator("#children-table [data-kind=training]").count() == 0
        assert page.inner_text("#children-count") == "4"  # nobody is here any more
        assert {row[4] for row in rows(page, "children-table")} == {"–"}
