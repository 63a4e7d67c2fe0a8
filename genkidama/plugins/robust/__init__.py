"""Robust aggregation: a rule around the rule, against children that push false values."""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(rule_wrappers={"robust": "genkidama.plugins.robust.aggregation:robust"})
