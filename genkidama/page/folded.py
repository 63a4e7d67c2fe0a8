"""The document again, out of what the feed says: what every viewer does. Pure."""

from __future__ import annotations

from typing import Any

__all__ = ["fold"]


def fold(before: dict[str, Any] | None, message: dict[str, Any]) -> dict[str, Any]:
    """The whole document after a message of the feed.

    Args:
        before: what this gave for the message before; None at the first.

    Raises:
        ValueError: the first message is no whole document.
    """
    if message["type"] == "status":
        return message
    if before is None:
        raise ValueError("a change before the whole document")
    learning = message["learning"]
    known = before["learning"]
    rows = {child["name"]: child for child in before["children"]}
    for name in message["gone"]:
        rows.pop(name, None)
    rows.update((child["name"], child) for child in message["children"])
    diagnostics = dict(known["diagnostics"])
    for name, series in learning["diagnostics"].items():
        diagnostics[name] = _joined(diagnostics.get(name), series)
    curve = _joined(known["curve"], learning["curve"])
    return {
        **message,
        "type": "status",
        "children": list(rows.values()),
        "learning": {**learning, "curve": curve, "diagnostics": diagnostics},
    }


def _joined(before: dict[str, Any] | None, series: dict[str, Any]) -> dict[str, Any]:
    old = [] if before is None or series.get("replace") else before["rows"]
    return {"columns": series["columns"], "rows": old + series["rows"]}
