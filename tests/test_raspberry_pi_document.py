"""The guide is held to what there is: its curve is drawn, its playbooks and variables exist."""

from __future__ import annotations

import re

from genkidama.config.experiment import Experiment
from tests.helpers import ROOT

GUIDE = (ROOT / "docs/raspberry-pi.md").read_text(encoding="utf-8")
PLAYBOOKS = ROOT / "deploy/ansible"


def test_what_the_shelf_trains_is_what_readme_trains_and_its_parent_learns() -> None:
    defaults = (PLAYBOOKS / "group_vars/all.yml").read_text(encoding="utf-8")
    (named,) = re.findall(r'(?m)^genkidama_experiment: "\{\{ playbook_dir \}\}/(.+)"', defaults)
    file = PLAYBOOKS / named
    assert Experiment.load(file) == Experiment.load("lunarlander")
    # The playbooks see by this that the parent needs a child's packages.
    (pattern,) = re.findall(r"is search\('(.+)'\)", defaults)
    examples = {path: path.read_text(encoding="utf-8") for path in ROOT.glob("examples/*/*.toml")}
    for path, text in examples.items():
        assert bool(re.search(pattern, text)) == Experiment.load(path).sends_experience


def test_playbooks_and_variables_of_the_guide_exist() -> None:
    named = set(re.findall(r"ansible-playbook (\w+\.yml)", GUIDE))
    assert named == {path.name for path in PLAYBOOKS.glob("*.yml")} - {"prepare.yml"}
    defaults = (PLAYBOOKS / "group_vars/all.yml").read_text(encoding="utf-8")
    known = set(re.findall(r"(?m)^(genkidama_\w+):", defaults))
    assert set(re.findall(r"genkidama_\w+", GUIDE)) <= known


def test_the_inventory_of_the_guide_is_the_example() -> None:
    example = (PLAYBOOKS / "inventory.example.ini").read_text(encoding="utf-8")
    lines = [line for line in example.splitlines() if line and not line.startswith("#")]
    assert [
        line.strip()
        for line in GUIDE.split("from 1 to 4.")[1].split("Does Ansible")[0].splitlines()
        if line
    ] == lines
