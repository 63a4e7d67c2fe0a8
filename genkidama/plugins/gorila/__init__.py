"""Gorila (Nair et al. 2015): global replay, DQN, SAC, V-trace, a sharded parent."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    sections={"replay": "genkidama.plugins.gorila.settings:ReplaySettings"},
    checks={"replay": "genkidama.plugins.gorila.settings:check"},
    companions={"replay": "genkidama.plugins.gorila.embedded_engine:companion"},
    core_parts={
        "replay": "genkidama.plugins.gorila.core_parts:ReplayPart",
        "target": "genkidama.plugins.gorila.core_parts:TargetNetwork",
    },
    connections={"shards": "genkidama.plugins.gorila.sharded_connection:ShardedConnection"},
    learners={
        "dqn": "genkidama.plugins.gorila.dqn:DQN",
        "vtrace": "genkidama.plugins.gorila.vtrace:VTrace",
        "sac": "genkidama.plugins.gorila.sac:SAC",
    },
)
