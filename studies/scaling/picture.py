"""Speed-up and time to the goal against machines, as SVG. It needs Matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from studies.scaling.figures import Scaling
from studies.scaling.matrix import CONTENDERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = "osD^vPX<>ph*"


def save(path: Path, found: Sequence[Scaling]) -> None:
    """Writes the picture, if there is anything to show.

    Raises:
        ConfigurationError: there is no Matplotlib.
    """
    if any(_shown(one) for one in found):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure(found).savefig(path, metadata={"Date": None})


def figure(found: Sequence[Scaling]) -> Figure:
    """Two panels: speed-up as `Scaling.speed_up` has it, and seconds to the goal.

    Only what nothing disturbs is shown. Contenders differ in colour, in mark and in the order of
    the legend.
    """
    from genkidama.runs.figure_style import BLUE, GREEN, GREY, INK, ORANGE, RED, SKY, STYLE

    colours = (BLUE, ORANGE, GREEN, RED, SKY, INK)  # they stay apart for colour-blind people, too
    import matplotlib
    from matplotlib.figure import Figure

    shown = [one for one in found if _shown(one)]
    with matplotlib.rc_context(STYLE):
        result = Figure(figsize=(11, 4.6), layout="constrained")
        left, right = result.subplots(1, 2)
        machines = sorted({one.machines for one in shown})
        left.plot(machines, machines, color=GREY, linestyle=":", label="as many times as machines")
        present = {one.contender for one in shown}
        for position, contender in enumerate(name for name in CONTENDERS if name in present):
            own = [one for one in shown if one.contender == contender]
            style = {
                "color": colours[position % len(colours)],
                "marker": _MARKS[position % len(_MARKS)],
                "label": CONTENDERS[contender].title or contender,
            }
            for axes, name in ((left, "speed_up"), (right, "seconds")):
                points = [
                    (one.machines, value)
                    for one in own
                    if (value := getattr(one, name)) is not None
                ]
                if points:
                    axes.plot(*zip(*points, strict=True), **style)
            _seeds(left, own, style["color"])
        left.set_title("Speed-up over one machine of the same kind, or the best one")
        right.set_title("Seconds to a mean of 500 episodes of 200")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.set_xticks(machines, [str(n) for n in machines])
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xlabel("machines")
        right.legend()
        left.legend(handles=left.get_lines()[:1])
    return result


def _shown(one: Scaling) -> bool:
    measured = one.speed_up is not None or one.seconds is not None
    plain = (one.task, one.disturbance, one.link) == ("lunarlander", "none", "none")
    return measured and plain


def _seeds(axes: Axes, own: Sequence[Scaling], colour: object) -> None:
    """Each seed's own speed-up, faintly: the median hides how far they lie apart."""
    for one in own:
        places = [one.machines] * len(one.speed_ups)
        axes.scatter(places, one.speed_ups, color=colour, alpha=0.3, s=14, linewidths=0)
