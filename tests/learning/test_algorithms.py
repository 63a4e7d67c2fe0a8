"""Which learner a name means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.a3c import A3C
from genkidama.learning.algorithms import ALGORITHMS, learner_class
from genkidama.learning.ppo import PPO
from genkidama.plugins.gorila.dqn import DQN
from genkidama.plugins.gorila.off_policy import VTrace


class Mine:
    """A learner by its name alone."""


def test_every_name_that_a_setting_allows_has_a_class() -> None:
    assert {name: learner_class(Algorithm(name=name)) for name in ALGORITHMS} == {
        "a3c": A3C,
        "ppo": PPO,
        "dqn": DQN,
        "vtrace": VTrace,
    }


def test_an_import_string_names_a_class_of_ones_own() -> None:
    assert learner_class(Algorithm(name=f"{__name__}:Mine")) is Mine


def test_one_that_leads_nowhere_is_refused() -> None:
    refused = r"algorithm\.name = 'nowhere:Mine': cannot import"
    with pytest.raises(ConfigurationError, match=refused):
        learner_class(Algorithm(name="nowhere:Mine"))


def test_a_name_imports_no_other_learner() -> None:
    code = (
        "import sys\n"
        "from genkidama.learning.algorithms import learner_class\n"
        "from genkidama.config.sections import Algorithm\n"
        "learner_class(Algorithm(name='a3c'))\n"
        "print('genkidama.learning.ppo' in sys.modules)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert said.stdout == "False\n", said.stderr
