"""The space that a search samples: `[search.space]` of an experiment. Pure.

    [search.space]
    optimizer.learning_rate = { low = 1e-5, high = 1e-2, log = true }        # log-uniform
    algorithm.batch_size = { low = 2, high = 100, log = true, step = 1 }     # and quantized
    algorithm.gamma = { choices = [0.9, 0.99] }                              # [0.9, 0.99] for short
    algorithm.entropy_coefficient = { low = 0.0, high = 0.02, step = 0.005 } # quantized

Whole numbers as bounds make a dimension of whole numbers. Choices may be of any type that TOML has,
lists too: they are kept as JSON text where a study can only hold plain values.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from genkidama.errors import ConfigurationError


class Dimension(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The values that one setting may take: a range, or choices."""

    low: int | float | None = None
    """The lowest value."""
    high: int | float | None = None
    """The highest value."""
    log: bool = False
    """The logarithm is uniform instead of the value."""
    step: int | float | None = None
    """Only low, low + step, low + 2·step, …"""
    choices: list[Any] | None = None
    """The values themselves, instead of a range."""

    @property
    def whole(self) -> bool:
        """True for a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def labels(self) -> list[str | int | float | bool]:
        """The choices as plain values: lists and tables as JSON text."""
        return [
            value if isinstance(value, str | int | float) else msgspec.json.encode(value).decode()
            for value in self.choices or []
        ]

    def value(self, label: Any) -> Any:
        """The setting's value for what a study calls it: the inverse of `labels`."""
        return label if self.choices is None else self.choices[self.labels.index(label)]

    def label(self, value: Any) -> Any:
        """A study's name for a value: the inverse of `value`."""
        choices = self.choices or []
        return self.labels[choices.index(value)] if value in choices else value

    @property
    def extremes(self) -> list[Any]:
        """Values that are allowed if all between them are: both bounds, or each choice."""
        return list(self.choices) if self.choices is not None else [self.low, self.high]


def parse_space(settings: dict[str, Any], source: str = "search.space") -> dict[str, Dimension]:
    """A space's dimensions by dotted setting, in their order; a list means choices. Errors begin
    with `source`."""
    space: dict[str, Dimension] = {}
    _collect(settings, "", space, source)
    if not space:
        raise ConfigurationError(
            f"{source}: is empty; name a setting to vary, "
            "as optimizer.learning_rate = { low = 1e-5, high = 1e-2 }"
        )
    return space


def _collect(
    settings: dict[str, Any], prefix: str, space: dict[str, Dimension], source: str
) -> None:
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, list):
            value = {"choices": value}
        if not isinstance(value, dict):
            raise ConfigurationError(
                f"{source}: {name} = {value!r}: "
                "expected a range { low = …, high = … } or a list of choices"
            )
        if value and not set(value) & set(Dimension.__struct_fields__):
            _collect(value, f"{name}.", space, source)
            continue
        try:
            dimension = msgspec.convert(value, Dimension)
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"{source}: {name} = {value!r}: {str(error).replace('`', '')}"
            ) from None
        problem = "is given twice" if name in space else _problem(dimension)
        if problem:
            raise ConfigurationError(f"{source}: {name}: {problem}")
        space[name] = dimension


def _problem(dimension: Dimension) -> str:
    """The fault of a dimension, and the way out; empty if there is none."""
    low = dimension.low
    high = dimension.high
    step = dimension.step
    if dimension.choices is not None:
        if (low, high, step, dimension.log) != (None, None, None, False):
            return "has choices and a range; give one of them"
        if not dimension.choices:
            return "choices = []: at least one is needed"
        # 1, 1.0 and true are the same to a study.
        if len(set(dimension.labels)) < len(dimension.labels):
            return f"choices = {dimension.choices!r}: one of them is given twice"
        return ""
    if low is None or high is None:
        return "a range needs low and high"
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"low = {low!r}, high = {high!r}: finite numbers are needed"
    if low >= high:
        return f"low = {low!r} is not below high = {high!r}"
    if dimension.log and low <= 0:
        return f"low = {low!r}: a logarithm needs a range above 0"
    if step is None:
        return ""
    if not math.isfinite(step) or not 0 < step <= high - low:
        return f"step = {step!r}: above 0 and at most high − low = {high - low!r} is needed"
    if dimension.whole and not isinstance(step, int):
        return f"step = {step!r}: between whole numbers a whole step is needed"
    if dimension.log and (not dimension.whole or step != 1):
        return f"step = {step!r}: with log only whole numbers in steps of 1 are possible"
    return ""
