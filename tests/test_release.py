"""A release: what is built is whole, and works where nothing else is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from deploy.release import VERSIONS, notes, whole_links
from genkidama import __version__
from tests.helpers import ROOT


def run(*command: object, cwd: Path) -> str:
    """What a command prints, without this checkout on its path."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pip builds it, as `make release` does."""
    folder = tmp_path_factory.mktemp("dist")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    return folder / f"genkidama_rl-{__version__}-py3-none-any.whl"


#: What a short training is typed as, behind `genkidama`.
TRAIN = ("train", "lunarlander", "--set", "stop.seconds=10", "--episodes", "4", "--out", "run")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_uvx_and_pipx_train_from_the_wheel_as_readme_says(wheel: Path, tmp_path: Path) -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for typed in ("uvx --from 'genkidama-rl[lander]'", "pipx install 'genkidama-rl[lander]'"):
        assert f"`{typed}" in readme
    tools, what = tmp_path / "tools", f"{wheel}[lander]"
    venv.create(tools, with_pip=True)
    pip = (tools / "bin/python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "uv", "pipx", cwd=tmp_path)
    assert "ended: " in run(
        *("env", f"UV_CACHE_DIR={tmp_path / 'cache'}"),
        *(tools / "bin/uvx", "--from", what, "genkidama", *TRAIN),
        cwd=tmp_path,
    )
    place = f"PIPX_HOME={tmp_path / 'pipx'}", f"PIPX_BIN_DIR={tmp_path / 'bin'}"
    run("env", *place, tools / "bin/pipx", "install", "--backend", "pip", what, cwd=tmp_path)
    played = run(tmp_path / "bin/genkidama", "evaluate", "run", "--episodes", 4, cwd=tmp_path)
    assert " over 4 episodes, sampled: " in played


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_wheel_trains_an_example_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """pip takes the versions that are tested."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "genkidama/examples/lunarlander/lunarlander.toml" in names
    assert "genkidama/py.typed" in names
    assert not any(name.startswith(("tests/", "parent/", "child/")) for name in names)
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=True)
    pip = (bare / "bin/python", "-m", "pip", "--disable-pip-version-check")
    run(
        *pip, "install", "--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[lander]", cwd=tmp_path
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    command = bare / "bin/genkidama"
    said = run(command, "train", "lunarlander", "--set", "stop.seconds=20", cwd=empty)
    assert "ended: " in said
    (trained,) = (empty / "runs").iterdir()
    assert (trained / "evaluation.json").is_file()
    played = run(command, "evaluate", trained, "--episodes", 4, cwd=empty)
    assert " over 4 episodes, sampled: " in played


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the files that a release changes, and one commit."""
    for name in (*VERSIONS, "CHANGELOG.md", "README.md", "pyproject.toml", "deploy/release.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".gitignore").write_text("build/\n")
    run("git", "init", "-q", cwd=tmp_path)
    for setting in ("user.name=a", "user.email=a@example.org"):
        run("git", "config", *setting.split("="), cwd=tmp_path)
    run("git", "add", ".", cwd=tmp_path)
    run("git", "commit", "-q", "-m", "first", cwd=tmp_path)
    return tmp_path


def released(repository: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, repository / "deploy/release.py", *words]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def test_one_command_makes_version_notes_and_tag(repository: Path) -> None:
    done = released(repository, "tag", "9.9.9")
    assert done.returncode == 0, done.stderr
    for name, pattern in VERSIONS.items():
        found = re.search(pattern, (repository / name).read_text("utf-8"))
        assert found is not None and "9.9.9" in found[0]
    told = run("git", "tag", "-l", "--format=%(contents)", "v9.9.9", cwd=repository)
    changelog = (repository / "CHANGELOG.md").read_text("utf-8")
    assert "## Unreleased" not in changelog and re.search(r"(?m)^## 9\.9\.9 \(20", changelog)
    assert notes(changelog, "9.9.9").strip() in told
    assert released(repository, "notes", "9.9.9").stdout == notes(changelog, "9.9.9")
    again = released(repository, "tag", "9.9.9")
    assert again.stderr == "v9.9.9: this tag exists; choose the next version\n"
    assert released(repository, "tag", "9.9").stderr == "9.9: expected a version as 0.2.0\n"
    nothing = released(repository, "tag", "9.9.10").stderr
    assert nothing == "CHANGELOG.md: has no section ## 9.9.10; write one\n"
    assert not run("git", "status", "--porcelain", cwd=repository)


def test_a_release_has_whole_addresses_if_the_repository_is_known(repository: Path) -> None:
    done = released(repository, "source", repository / "build/plain")
    assert "links stay relative" in done.stdout
    assert (
        "urls"
        not in tomllib.loads((repository / "build/plain/pyproject.toml").read_text())["project"]
    )
    assert released(repository, "tag", "9.9.9").returncode == 0
    address = "https://host.example/owner/name"
    assert released(repository, "source", repository / "build/whole", address).returncode == 0
    project = tomllib.loads((repository / "build/whole/pyproject.toml").read_text())["project"]
    assert project["urls"]["Repository"] == address
    links = re.findall(r"\]\(([^)]+)\)", (repository / "build/whole/README.md").read_text("utf-8"))
    assert len(links) > 25 and all(link.startswith("https://") for link in links)
    for link in links:
        kind, tag, path = link.removeprefix(f"{address}/").split("/", 2)
        assert (ROOT / path.partition("#")[0]).exists() and tag == "v9.9.9"
        assert (kind == "raw") == path.endswith((".gif", ".png", ".svg"))
    wrong = released(repository, "source", repository / "x", "git@host:owner/name")
    assert wrong.stderr.endswith("expected https://host/owner/name\n")


def test_links_to_elsewhere_and_within_the_page_stay() -> None:
    text = "[a](#b) [c](https://x.example/y) [d](docs/e.md#f) ![g](h.png)"
    assert whole_links(text, "https://r", "v1") == (
        "[a](#b) [c](https://x.example/y) [d](https://r/blob/v1/docs/e.md#f) ![g](https://r/raw/v1/h.png)"
    )


def test_the_recipe_for_conda_asks_for_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / "deploy/conda/recipe.yaml").read_text(encoding="utf-8"))
    assert (
        recipe["context"]["version"] == __version__ and recipe["package"]["name"] == project["name"]
    )
    asked = [Requirement(line) for line in project["dependencies"]]
    wanted = {one.name: one.specifier for one in asked}
    python, *rest = recipe["requirements"]["run"]
    assert python == f"python {project['requires-python']}"
    assert {(one := Requirement(line)).name: one.specifier for line in rest} == wanted


def test_the_workflows_call_commands_that_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    texts = [path.read_text("utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")]
    named = set(re.findall(r"make ([a-z-]+)", "".join(texts)))
    assert {"release", "coverage", "test-versions"} <= named <= set(targets)
    assert sum("bash .ci/run" in text for text in texts) == 1
    jobs = [job for text in texts for job in yaml.safe_load(text)["jobs"].values()]
    trusted = [job for job in jobs if "id-token" in job.get("permissions", {})]
    assert [job["environment"] for job in trusted] == ["release"]
