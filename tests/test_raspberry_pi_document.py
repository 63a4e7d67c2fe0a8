"""The guide is held to what there is: its curve is drawn, its playbooks and variables exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from genkidama.cli.cluster import train
from tests.helpers import ROOT, constant
from tests.texts import code_block

GUIDE = (ROOT / "docs/raspberry-pi.md").read_text(encoding="utf-8")
PLAYBOOKS = ROOT / "deploy/ansible"


def test_the_learning_curve_is_drawn_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    train(constant(stop={"updates": 5}), children=1, episodes=0, out="runs/shelf")
    program = code_block("docs/raspberry-pi.md", "python")
    exec(compile(program, "docs/raspberry-pi.md", "exec"), {})
    assert (tmp_path / "curve.png").stat().st_size > 1000


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
