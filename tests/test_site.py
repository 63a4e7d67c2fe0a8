"""`make docs`: the pages that are made from the code, the links, and the navigation."""

from __future__ import annotations

import re
import subprocess
import tomllib
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import genkidama
from docs.site import commands, repository, settings
from docs.site.__main__ import navigation, pages
from docs.site.settings import texts
from genkidama.cli.parser import all_verbs
from genkidama.config.experiment import Experiment
from genkidama.config.role import Role
from genkidama.config.sections import ParentSettings, Stop
from genkidama.server.events import Exchange
from genkidama.server.trial import reached
from tests.helpers import ROOT

#: Builds the site.
DOCS = ROOT / "build/docs-tools/bin/python"

#: Settings that are tables: they have their own sections of the page, or none.
_TABLES = ("search", "plugins")


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    """Every page of the site by its name; no link leads nowhere."""
    found, dead = pages()
    assert not dead
    return found


def test_the_reference_has_every_setting_with_default_and_text() -> None:
    rows = {}
    for line in settings.page().splitlines():
        if line.startswith("| `"):
            key, default, cell = re.split(r" (?<!\\)\| ", line.strip("| "))
            said, allowed = cell.replace("\\|", "|").split("<br>*Allowed:* ")
            assert len(allowed) > 1
            rows[key.strip("`"), default] = said
    expected = {}
    kinds = [*settings.sections(), ("", Role)]
    for section, kind in kinds:
        written = texts(kind)
        for name, value in msgspec.to_builtins(kind()).items():
            if not isinstance(getattr(kind(), name), msgspec.Struct) and name not in _TABLES:
                default = "off" if value is None else f"`{tomlish(value)}`"
                expected[f"{section}.{name}".lstrip("."), default] = written[name]
    assert rows == expected
    assert len(rows) > 150


def tomlish(value: object) -> str:
    """A default as TOML has it, by another way than the page's."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(tomlish, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return "{}" if value == {} else str(value).replace("True", "true").replace("False", "false")


def test_a_setting_says_what_it_allows_and_what_its_number_counts() -> None:
    page = settings.page()
    for row in (
        "| `algorithm.gamma` | `0.99` | Discount factor γ of a step.<br>*Allowed:* number, "
        "at least 0, at most 1. |",
        "since the first child joined.<br>*Allowed:* number, above 0; seconds. |",
        '*Allowed:* whole number, at least 1, or `"auto"`; processes. |',
        '*Allowed:* `"episode"`, `"update"`, `"free"`, `"chunk"`. |',
        "| `network.hidden` | `[128]` | Width of each hidden layer.<br>*Allowed:* list: "
        "whole number, at least 1; units. |",
        "*Allowed:* number, above 0; bytes a second. |",
    ):
        assert row in page


def test_the_glossary_has_each_word_once_and_no_text_calls_an_exchange_an_update() -> None:
    page = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert len(words) == len(set(words))
    assert {"Exchange", "Update", "Version", "Step", "Lag", "Measure", "Figure"} < {*words}
    counts = texts(Stop)["updates"], texts(ParentSettings)["checkpoint_updates"]
    said = [*counts, texts(Exchange)["update"], reached(Stop(updates=2), None, 2.0, 0, 0, 0.0)]
    assert all("xchanges a child" in text and "pdate" not in text for text in said)


def test_the_example_of_the_reference_is_an_experiment() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert Experiment.from_dict(tomllib.loads(block)).stop.mean_return == 200.0


def test_the_reference_has_the_help_of_every_verb() -> None:
    found = commands.texts()
    assert found.keys() >= {f"genkidama {verb}" for verb in all_verbs()}
    assert found.keys() >= {f"python -m genkidama.{role}" for role in ("parent", "child")}
    assert all(text.startswith("usage: ") for text in found.values())
    assert "--resume" in found["genkidama train"] and "--shard" in commands.page()


def test_every_page_is_in_the_navigation_once_and_every_link_leads_to_a_page(
    site: dict[str, str],
) -> None:
    listed = re.findall(r"^(\S+\.md)$", site["index.md"].partition("```{toctree}")[2], re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {
        page for page in site if page != "index.md" and not page.startswith("repository/")
    }
    assert "\nbrand-new.md\n" in navigation({"brand-new.md": ""})
    for page, text in site.items():
        for target in re.findall(r"\]\((?!\w+:|#|/)([^)#\s]+\.md)[)#]", unfenced(text)):
            assert str((Path("/") / page).parent.joinpath(target).resolve())[1:] in site


def unfenced(text: str) -> str:
    return re.sub(r"^(\s*)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)


def test_a_file_of_the_repository_is_shown_on_a_page(site: dict[str, str]) -> None:
    text = (ROOT / "genkidama/child/capacity.py").read_text(encoding="utf-8")
    assert f"```python\n{text}```" in site["repository/genkidama/child/capacity.py.md"]
    assert "(repository/examples/lunarlander/thesis.toml.md)" in site["index.md"]
    assert "[`pendulum.toml`](pendulum.toml.md)" in site["repository/examples/pendulum/index.md"]


def test_a_link_that_leads_nowhere_is_told_and_code_is_left_alone() -> None:
    dead: list[str] = []
    text = "[a](no.md)\n```\n[b](no.md)\n```\n[c](https://x.example/y) [d](#e)\n"
    assert repository.linked(text, "docs/notes/rules.md", "rules.md", dead.append) == (text, set())
    assert dead == ["docs/notes/rules.md: the link 'no.md' leads nowhere"]


@given(
    st.sampled_from(
        ["docs/notes/rules.md", "docs/results/shards.md", "README.md", "parent/README.md"]
    )
)
def test_a_link_and_where_it_is_agree(source: str) -> None:
    for target in ("docs/security.md", "docs/decisions", "CHANGELOG.md", "parent/parent.toml"):
        link = Path(*[".."] * source.count("/")) / target
        page = repository.page_of(source)
        text, _ = repository.linked(f"[x]({link}#y)", source, page, pytest.fail)
        (found,) = re.findall(r"\]\((.*)#y\)", text)
        reached = (Path("/") / page).parent.joinpath(found).resolve()
        assert str(reached)[1:] == repository.page_of(target)


def test_the_glossary_has_the_words_that_need_one(site: dict[str, str]) -> None:
    words = set(re.findall(r"^### (.+)$", site["reference/glossary.md"], re.MULTILINE))
    needed = (
        "Update,Version,Exchange,Staleness,Lag,α,β,γ,λ,t_max,W₀,Hogwild,Rollout,Lane,Trial,Phase"
    )
    assert words >= {*needed.split(","), "N_P, N_T, N_A"}


def test_the_path_is_short_and_the_index_has_every_page() -> None:
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([^)#]+\.md)\)", index))
    path = {page.name for page in docs.glob("*.md")} - {"README.md", "design.md"}
    assert len(path) <= 9  # and the reference
    others = {
        f"{folder}/{page.name}"
        for folder in ("notes", "reference")
        for page in (docs / folder).glob("*.md")
    }
    assert not (path | others | {"design.md"}) - listed


@pytest.mark.parametrize(
    ("typed", "page"),
    [
        ("custom environment", "environment.md"),
        ("alpha", "reference/glossary.md"),
        ("several machines", "machines.md"),
    ],
)
def test_a_page_has_the_words_that_are_searched_for(
    site: dict[str, str], typed: str, page: str
) -> None:
    assert all(word in site[page].lower() for word in typed.split())


def test_what_the_site_is_built_with_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for one in project["optional-dependencies"]["docs"]:
        name = re.split(r"[<>=]", one)[0]
        assert re.search(rf"^{name}==", pins, re.MULTILINE), name


def test_the_parents_file_marks_the_values_that_are_not_the_defaults() -> None:
    text = (ROOT / "parent/parent.toml").read_text(encoding="utf-8")
    example, default = Experiment.load(ROOT / "parent/parent.toml"), Experiment()
    named = set(
        re.findall(r"`([\w.]+)`", text.partition("not their defaults:")[2].partition("\n#\n")[0])
    )
    differing = {
        f"{section}.{name}".lstrip(".")
        for section, kind in settings.sections()
        if section != "search"
        for name in kind.__struct_fields__
        if value_of(example, section, name) != value_of(default, section, name)
    }
    assert named == {
        name for name in differing if not isinstance(value_of(example, "", name), msgspec.Struct)
    }


def value_of(experiment: Experiment, section: str, name: str) -> object:
    return getattr(getattr(experiment, section) if section else experiment, name, None)


@pytest.mark.slow
@pytest.mark.skipif(not DOCS.exists(), reason="make docs makes it")
def test_the_site_has_a_menu_of_versions_and_an_inventory_of_the_python_interface(
    tmp_path: Path,
) -> None:
    tree, site = tmp_path / "tree", tmp_path / "site"
    for command in (
        ["git", "clone", "--quiet", "--shared", ROOT, tree],
        ["git", "-C", tree, "tag", "v0.0.9"],
    ):
        subprocess.run(command, check=True)
    built = subprocess.run(
        [DOCS, "-m", "docs.site.build", site], cwd=tree, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    for page, here, there in (
        (site / "machines.html", "current", "v0.0.9/index.html"),
        (site / "v0.0.9/index.html", "v0.0.9", "../index.html"),
    ):
        (menu,) = re.findall(
            r"<summary>(\S+)</summary>\s*<div><a href=\"(.+?)\">", page.read_text()
        )
        assert menu == (here, there)
        assert (page.parent / there).resolve().is_file()
        inventory = (
            page.parents[len(page.relative_to(site).parts) - 1] / "objects.inv"
        ).read_bytes()
        head, _, packed = inventory.partition(b"zlib.\n")
        assert head.startswith(b"# Sphinx inventory version 2\n# Project: Genkidama\n")
        names = {line.split()[0].decode() for line in zlib.decompress(packed).splitlines()}
        assert {f"genkidama.{name}" for name in dir(genkidama) if name[0] != "_"} <= names
