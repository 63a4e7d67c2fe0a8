"""What the nodes of a search did, as a chart for the terminal: a line a node."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genkidama.tuning.findings import Findings, Span
from genkidama.tuning.wording import WIDTH, clock, section, wrapped

__all__ = ["gantt", "timeline_section"]

#: So many nodes get a line.
_MOST_NODES = 24

#: Columns of a line beside the node's name and the chart.
_OTHERS = len("  123 ended")

#: A phase's sign; from the 37th on it is "+".
_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"

_ENDINGS = {"completed": "●", "stopped": "×", "failed": "!"}


def timeline_section(findings: Findings) -> str:
    """The part of the report that shows what each node ran when."""
    timeline, end = findings.timeline, findings.search_time
    width = min(16, max(map(len, timeline)))
    columns = WIDTH - width - _OTHERS
    lines = []
    for node, spans in list(timeline.items())[:_MOST_NODES]:
        ended = sum(bool(span.ending) for span in spans)
        lines.append(f"{node[:width]:<{width}} {gantt(spans, end, columns)} {ended:>3} ended")
    if len(timeline) > _MOST_NODES:
        lines.append(f"… and {len(timeline) - _MOST_NODES} more nodes")
    last = clock(end)
    lines.append(f"{'':<{width}} 0{last:>{columns - 1}}")
    letters = " (a for 10, b for 11, …)" if findings.settings.phases > 10 else ""
    lines += wrapped(
        f"A digit is the phase that the node's trial runs{letters}. "
        "● completed, × stopped, ! failed, · idle or not yet reported."
    )
    return section("What the nodes did", lines)


def gantt(spans: Sequence[Span], end: float, columns: int) -> str:
    """A node's timeline from 0 to `end` seconds: the phase under way at each column's middle."""
    line = ["·"] * columns
    scale = columns / end if end > 0 else 0.0
    for span in spans:
        sign = _SIGNS[span.phase] if span.phase < len(_SIGNS) else "+"
        for column in range(
            max(0, math.ceil(span.start * scale - 0.5)),
            min(columns, math.ceil(span.end * scale - 0.5)),
        ):
            line[column] = sign
    for span in spans:
        if span.ending:
            line[min(columns - 1, max(0, math.ceil(span.end * scale - 0.5) - 1))] = _ENDINGS[
                span.ending
            ]
    return "".join(line)
