"""Form of an experiment's learning: arrays, or tensors where arrays do not suffice.

NumPy computes perceptrons with tanh or relu, and the gradients that a learner writes by hand.
Everything else is in `genkidama.learning.tensors`, which imports torch. The extra `torch` installs
it, and only machines that train or play such an experiment need it.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from genkidama._version import pip_install
from genkidama.config.experiment import Experiment
from genkidama.config.plugin import find, load
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.runtime.import_strings import load_object

#: Values of `network.activation` that NumPy computes.
ARRAY_ACTIVATIONS = ("tanh", "relu")


def tensor_setting(experiment: Experiment, head: object = None) -> str:
    """The setting that needs tensors, as `network.name = 'convolutional'`; "" if arrays do.

    Without the learner's head nothing is imported, and a learner of the user's own counts as one
    that needs tensors.
    """
    network, algorithm = experiment.network, experiment.algorithm
    if network.name != "actor-critic":
        return f"network.name = {network.name!r}"
    if network.activation not in ARRAY_ACTIVATIONS:
        return f"network.activation = {network.activation!r}"
    by_hand = (
        ":" not in algorithm.name
        if head is None
        else made_for(learner_class(algorithm), "gradients", "losses")
        and made_for(type(head), "slopes", "log_probability", "entropy")
    )
    return "" if by_hand else f"algorithm.name = {algorithm.name!r}"


def load_tensors(name: str, user: str, extra: str = "torch") -> Any:
    """An object of `genkidama.learning.tensors`, as `"tensor_model:TensorModel"`."""
    check_torch(user, extra)
    return load(f"genkidama.learning.tensors.{name}")


def as_tensors(model: Any, spaces: Any, user: str, extra: str = "torch") -> Any:
    """The `TensorModel` of a model, which may be one; errors as `check_torch`.

    Args:
        model: a `Model` on the CPU. Its vector is the other's, too.
        spaces: with the environment's spaces.
    """
    kind = load_tensors("tensor_model:TensorModel", user, extra)
    return (
        model if isinstance(model, kind) else kind(model.experiment, spaces, vector=model.numbers)
    )


def check_torch(user: str, extra: str = "torch") -> None:
    """Checks that torch is installed; the error names its user, a setting or a method."""
    try:
        there = importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        there = False
    if not there:
        raise ConfigurationError(
            f"{user}: needs torch, which is not installed: " + pip_install(extra)
        )


def learner_class(algorithm: Algorithm) -> Any:
    """The class of the learner `algorithm.name`. No other one is imported."""
    kind = find("learners", algorithm.name)
    return load_object(algorithm.name, "algorithm.name") if kind is None else kind


def made_for(kind: Any, name: str, *others: str) -> bool:
    """True if the method `name` of a class is made for its methods `others`.

    A subclass with others of its own does not inherit what was made for its base's.
    """
    for base in getattr(kind, "__mro__", ()):
        if name in vars(base):
            return True
        if not vars(base).keys().isdisjoint(others):
            return False
    return False
