"""HyperTrick as a pruner; the package `genkidama-rl[search]` has it."""

from genkidama import HyperTrickPruner

__all__ = ["HyperTrickPruner"]
