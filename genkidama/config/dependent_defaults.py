"""Defaults that `algorithm.name` and `child.exchange` bring for other settings. Pure."""

from __future__ import annotations

from typing import Any

from genkidama.config.plugin import names
from genkidama.config.sections import ADAPTED

#: Settings of `[algorithm]` that some algorithms alone have. One of a user's code has all.
_OF_ALGORITHMS = {
    ("ppo",): ("epochs", "clip"),
    ("ppo", "dqn", "vtrace", "sac"): ("minibatch_size",),
    ("dqn", "vtrace", "sac"): ("start_steps",),
    ("dqn", "vtrace"): ("batch_updates", "n_steps"),
    ("vtrace",): ("burn_in",),
    ("dqn", "sac"): ("demonstrations", "demonstration_share"),
    ("sac",): (
        *("updates_per_step", "target_rate", "layer_norm", "critic_dropout"),
        *("initial_value", "target_entropy"),
    ),
    ("dqn",): ("double", "dueling", "huber", "target_updates", "target_versions"),
}
ALGORITHMS_WITH = {key: owners for owners, keys in _OF_ALGORITHMS.items() for key in keys}

#: Defaults with `child.exchange = "chunk"`, for four children or fewer.
_CHUNK: dict[str, dict[str, Any]] = {
    "environment": {"lanes": 8},
    "algorithm": {"epochs": 1, "minibatch_size": 64, "normalize_advantages": True},
    "optimizer": {"learning_rate": 1.4e-3},
    "parent": {},
    "child": {"beta": 1.0},
}

#: Defaults with `algorithm.name = "sac"`.
_SAC: dict[str, dict[str, Any]] = {
    "network": {"activation": "relu", "initialization": "uniform"},
    "algorithm": {"batch_size": 8, "minibatch_size": 256, "start_steps": 500},
    "optimizer": {"learning_rate": 7e-4},
    "replay": {"steps": 100_000},
}

#: Steps of a lane in such a batch.
LANE_STEPS = 128

#: Settings that a change from an algorithm of one kind to one of the other kind brings: those with
#: which the examples learn. Algorithms of the user's own bring none.
_SAMPLING = {
    "environment.lanes": 1,
    "environment.offline_seconds": 0.0,
    "network.shared": True,
    "network.activation": "relu",
    "network.initialization": "uniform",
    "algorithm.batch_updates": 4,
    "algorithm.vtrace": False,
    "algorithm.max_gradient_norm": 10.0,
    "optimizer.learning_rate": 1e-3,
    "replay.steps": 50_000,
    "parent.rule": "blend",
    "parent.rule_options": {},
    "parent.alpha": 0.9,
    "child.backend": "hogwild",
    "child.exchange": "free",
    "child.exchange_seconds": 0.25,
}
_ON_POLICY = {
    "environment.lanes": 8,
    "network.shared": False,
    "network.activation": "tanh",
    "network.initialization": "orthogonal",
    "algorithm.gae_lambda": 0.95,
    "algorithm.batch_size": 1024,
    "algorithm.epsilon": 0.0,
    "algorithm.epsilon_schedule": "constant",
    "algorithm.max_gradient_norm": 0.5,
    "algorithm.normalize_advantages": True,
    "optimizer.learning_rate": 1e-3,
    "replay.steps": 0,
    "replay.url": "local",
    "replay.priority_exponent": 0.0,
    "parent.rule": "experience",
    "parent.rule_options": {},
    "child.backend": "hogwild",
    "child.roles": ["bundle"],
    "child.exchange": "episode",
}
_BROUGHT: dict[str, dict[str, Any]] = {
    "a3c": _ON_POLICY,
    "ppo": _ON_POLICY | {"algorithm.epochs": 10, "algorithm.minibatch_size": 128},
    "vtrace": _SAMPLING
    | {"algorithm.batch_size": 32, "algorithm.n_steps": 16, "algorithm.epsilon": 0.0},
    "dqn": _SAMPLING
    | {
        "network.memory": 0,
        "algorithm.batch_size": 4,
        "algorithm.minibatch_size": 64,
        "algorithm.start_steps": 500,
        "algorithm.n_steps": 3,
        "algorithm.dueling": True,
        "algorithm.epsilon": 1.0,
        "algorithm.epsilon_schedule": "linear",
        "algorithm.final_epsilon": 0.02,
        "algorithm.epsilon_fraction": 0.15,
        "algorithm.target_updates": 40,
    },
    "sac": _ON_POLICY
    | {f"{section}.{key}": value for section, keys in _SAC.items() for key, value in keys.items()}
    | {
        "environment.lanes": 1,
        "network.memory": 0,
        "algorithm.across_episodes": True,
        "algorithm.vtrace": False,
        "algorithm.max_gradient_norm": 0.0,
        "algorithm.normalize_advantages": False,
    },
}


def brought(before: str, after: str) -> dict[str, Any]:
    """The settings that a change of `algorithm.name` brings, dotted."""
    known = {before, after} <= _BROUGHT.keys()
    if not known or _BROUGHT[before]["replay.steps"] == _BROUGHT[after]["replay.steps"]:
        return {}  # of one kind
    return _BROUGHT[after]


def applicable_settings(section: dict[str, Any], name: object) -> dict[str, Any]:
    """The settings of `[algorithm]` that the algorithm of this name, checked or not, has."""
    if not isinstance(name, str) or name not in _BROUGHT:
        return section
    return {
        key: value for key, value in section.items() if name in ALGORITHMS_WITH.get(key, (name,))
    }


def _over(defaults: dict[str, dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any] | None:
    """The settings, with those defaults that their algorithm has; None if a section is no table."""
    result = dict(settings)
    for name, table in defaults.items():
        given = settings.get(name, {})
        if not isinstance(given, dict):
            return None
        kind = given.get("name", "ppo") if name == "algorithm" else "ppo"
        result[name] = {**applicable_settings(table, kind), **given}
    return result


def with_chunk(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the defaults of `child.exchange = "chunk"`, if that is set."""
    child = settings.get("child")
    if not isinstance(child, dict) or child.get("exchange") != "chunk":
        return settings
    result = _over(_CHUNK, settings)
    if result is None:
        return settings
    lanes = result["environment"]["lanes"]
    if isinstance(lanes, int):
        result["algorithm"].setdefault("batch_size", LANE_STEPS * lanes)
    algorithm = result["algorithm"]
    kind = algorithm.get("name", "ppo")
    if kind == "a3c" and not algorithm.get("epsilon"):
        algorithm.setdefault("vtrace", True)  # older policies have played three quarters of a batch
    if child.get("adapt", "auto") == "auto":
        result["child"]["adapt"] = [
            key
            for key, section in ADAPTED.items()
            if key not in settings.get(section, {})
            and (key != "minibatch_size" or kind not in ("a3c", "dqn", "vtrace", "sac"))
        ]
    return result


def with_sac(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the defaults of `algorithm.name = "sac"`, if that is set."""
    algorithm = settings.get("algorithm")
    if not isinstance(algorithm, dict) or algorithm.get("name") != "sac":
        return settings
    return (
        _over(
            {key: _SAC[key] for key in _SAC if key != "replay" or key in names("sections")},
            settings,
        )
        or settings
    )


def let_follow(settings: dict[str, Any], before: Any, changes: dict[str, Any]) -> None:
    """Lets nothing follow the number of children that `changes` set, and all else if they turn
    `child.exchange` to `"chunk"`. V-trace comes with chunks of A3C, and goes with them."""
    child, algorithm = settings["child"], settings["algorithm"]
    if not isinstance(child, dict) or not isinstance(algorithm, dict):
        return
    turned = not changes.keys().isdisjoint(("algorithm.name", "child.exchange"))
    given = "algorithm.vtrace" in changes or (
        before.algorithm.name == "a3c" and not before.algorithm.vtrace
    )
    if turned and before.child.exchange == "chunk" and not given:
        algorithm.pop("vtrace", None)
    if before.child.exchange == "chunk":
        child["adapt"] = [key for key in before.adapts if f"{ADAPTED[key]}.{key}" not in changes]
    elif child.get("exchange") == "chunk":
        child["adapt"] = "auto"
        defaults = [(name, key) for name, keys in _CHUNK.items() for key in keys]
        for name, key in (*defaults, ("algorithm", "batch_size"), ("parent", "alpha")):
            table = settings[name]
            is_table = isinstance(table, dict)
            if is_table and f"{name}.{key}" not in changes and is_default(before, name, key):
                table.pop(key, None)


def is_default(experiment: Any, section: str, key: str) -> bool:
    settings = getattr(experiment, section)
    return getattr(settings, key) in (
        getattr(type(settings)(), key),
        _CHUNK.get(section, {}).get(key),
    )
