"""A backend by its name.

The promise that every backend keeps is in `tests/child/test_orchestrator.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from genkidama.child.backend import make_backend
from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.plugins.actors.backend import Actors
from genkidama.plugins.ga3c.backend import GA3C
from tests.helpers import ConstantBackend, constant, small


def test_a_backend_is_made_by_its_name() -> None:
    assert type(make_backend(small(), 1, "pi")) is CoreOrchestrator
    assert type(make_backend(small(child={"backend": "ga3c"}), 1, "pi")) is GA3C
    assert type(make_backend(constant(), 1, "pi")) is ConstantBackend
    sending = Experiment().with_settings({"parent.rule": "experience"})
    assert type(make_backend(sending, 1, "pi")) is Actors


@pytest.mark.parametrize("changes", [{}, {"child.backend": "ga3c"}, {"parent.rule": "experience"}])
def test_a_backend_learns_the_childs_name_which_makes_its_random_numbers_its_own(
    changes: dict[str, str],
) -> None:
    backend: Any = make_backend(Experiment().with_settings(changes), 1, "pi")
    pool = backend._pool
    assert pool._name == "pi"


@pytest.mark.parametrize("name", ["tests.helpers:nothing", "no_such_module:Backend"])
def test_a_backend_that_is_not_there_is_the_users_mistake(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"child.backend = '{name}'"):
        make_backend(small(child={"backend": name}), 1, "pi")


def test_a_backend_that_is_no_class_is_the_users_mistake() -> None:
    with pytest.raises(
        ConfigurationError, match=r"child.backend = 'tests.helpers:ROOT': is no class"
    ):
        make_backend(small(child={"backend": "tests.helpers:ROOT"}), 1, "pi")


def test_where_gradients_are_pushed_a_backend_must_give_some() -> None:
    settings = {"parent.rule": "gradient", "child.exchange": "update"}
    settings["child.backend"] = "tests.helpers:ConstantBackend"
    with pytest.raises(ConfigurationError) as caught:
        make_backend(Experiment().with_settings(settings), 1, "pi")
    assert str(caught.value) == (
        "child.backend = 'tests.helpers:ConstantBackend': gives no gradients, which the parent's "
        "rule takes; set child.backend to 'hogwild', or take another parent.rule"
    )
    settings["child.backend"] = "hogwild"
    assert make_backend(Experiment().with_settings(settings), 1, "pi")


def test_experience_without_the_plug_in_actors_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rule of the user's, which no child knows."""
    monkeypatch.setattr("genkidama.child.backend.find", lambda hook, name: None)
    settings = small(parent={"rule": "mine:Rule"}, child={"push": "experience"})
    with pytest.raises(ConfigurationError, match=r"^parent.rule = 'mine:Rule': takes experience, "):
        make_backend(settings, 1, "pi")


def test_a_backend_that_no_plug_in_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genkidama.child.backend.find", lambda hook, name: None)
    with pytest.raises(ConfigurationError, match=r"child.backend = 'ga3c': no plug-in has"):
        make_backend(small(child={"backend": "ga3c"}), 1, "pi")
