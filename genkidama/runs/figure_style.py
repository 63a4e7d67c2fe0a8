"""The style of all figures: colours and letters; and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from genkidama._version import pip_install
from genkidama.errors import ConfigurationError, EnvironmentFailure

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:
    raise ConfigurationError(f"figures need Matplotlib: {pip_install('figures')}") from None

BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
RED = "#D55E00"
INK, GREY = "#262626", "#8C8C8C"

#: For lines side by side. Okabe and Ito chose them for eyes of all kinds.
COLOURS = (BLUE, RED, GREEN, ORANGE, SKY, "#CC79A7", INK)

STYLE: dict[Any, Any] = {
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titlepad": 8,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": "#ECECEC",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "genkidama",
    "text.color": INK,
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
}


def plain(text: str) -> str:
    """Text that Matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def write_all(makers: Mapping[str, Callable[[], Figure | None]], folder: Path) -> list[Path]:
    """Draws and writes figures into `folder`, each as PNG and SVG; returns the files.

    The makers are by the file's name. One that gives None has nothing to show.
    """
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in makers.items():
            with matplotlib.rc_context(STYLE):
                figure = make()
                if figure is not None:
                    paths += _write(figure, folder / name)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot write figures into {folder}: {error.strerror or error}; give another folder"
        ) from None
    return paths


def _write(figure: Figure, path: Path) -> list[Path]:
    """Writes the figure to `path`.png and `path`.svg.

    It is laid out once, for both files; one without a layout is cut to what it shows.
    """
    box = None if figure.get_layout_engine() is not None else "tight"
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    figure.savefig(png, dpi=150, bbox_inches=box)
    figure.savefig(svg, bbox_inches=box, metadata={"Date": None})
    return [png, svg]
