"""Environments of EnvPool, written in C++."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(environments={"envpool": "genkidama.plugins.envpool.pool:Pool"})
