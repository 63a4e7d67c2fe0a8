"""`--set key=value`: single settings from the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable

from genkidama.errors import ConfigurationError

__all__ = ["parse_setting", "parse_settings"]

_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")


def parse_setting(text: str) -> tuple[str, object]:
    """`"child.exchange=free"` as `("child.exchange", "free")`.

    The value is read as TOML (`0.5`, `true`, `[64, 64]`, `"free"`). Anything else is taken as a
    string, so that quotes are seldom needed. So is a date, since no setting is a date.

    Raises:
        ConfigurationError: there is no `=`, or no dotted key before it.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not _KEY.match(key):
        raise ConfigurationError(
            f"--set {text}: expected key=value with a dotted key, as in child.exchange=free"
        )
    try:
        document = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    found = document["value"]
    if len(document) > 1 or not isinstance(found, bool | int | float | str | list | dict):
        return key, value
    return key, found


def parse_settings(texts: Iterable[str]) -> dict[str, object]:
    """All settings, as `Experiment.with_settings` takes them. A repeated key's last one counts."""
    return dict(map(parse_setting, texts))
