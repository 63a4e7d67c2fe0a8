"""Environments of several agents, with PettingZoo's parallel interface."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(environments={"pettingzoo": "genkidama.plugins.pettingzoo.agents:Agents"})
