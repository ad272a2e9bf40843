"""Colours and sizes of the figures, new axes, and saving.

The palette is that of Okabe & Ito 2008, which is readable with the common colour deficiencies. Over- and
under-confidence have the orange and red of Sanguin et al. 2024; red is hatched, because the two are hard to tell apart
for some readers. Models in the same axes also differ in line style.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OVERCONFIDENT = "#F2A33A"
UNDERCONFIDENT = "#B3202C"
BAR = "#8FB8DE"
INK = "#222222"
GREY = "#8A8A8A"
PALE = "#D9D9D9"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

SQUARE = (4.2, 4.0)
WIDE = (5.4, 3.6)
PANEL = 3.1  # width of one panel in a figure of several

_SETTINGS: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.columnspacing": 1.2,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 160,
    # Without a salt the element names in an SVG are random, and equal figures give different files.
    "svg.hashsalt": "calibrant",
}


@contextmanager
def context() -> Iterator[Any]:
    """Draw with the sizes of this file and restore the caller's settings afterwards; yields pyplot.

    If matplotlib is missing, an error says how to install it.
    """
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(
            "The package calibrant.plots draws with matplotlib, which is not installed. Install it with: pip install "
            "'calibrant[plots]'."
        ) from error
    with plt.rc_context(_SETTINGS):
        yield plt


def axes(plt: Any, ax: Any, size: tuple[float, float]) -> Any:
    """Return `ax`, or new axes in a figure of the given size."""
    if ax is None:
        return plt.subplots(figsize=size, layout="constrained")[1]
    if not hasattr(ax, "get_figure") or not hasattr(ax, "plot"):
        advice = "Pass one of them, such as axes[0]." if hasattr(ax, "shape") else "Pass plt.subplots()[1]."
        advice = "Pass figure.subplots()." if hasattr(ax, "subplots") else advice
        raise TypeError(f"ax must be axes of matplotlib; got a {type(ax).__name__}. {advice}")
    return ax


def line_look(position: int) -> dict[str, Any]:
    """Colour and line style of the n-th model in one picture."""
    return {"color": PALETTE[position % len(PALETTE)], "linestyle": LINE_STYLES[position % len(LINE_STYLES)]}


def next_look(ax: Any) -> dict[str, Any]:
    """Look of the next model in `ax`: counts the main lines, which each display marks."""
    return line_look(sum(line.get_gid() == "model" for line in ax.lines))


def add_legend(ax: Any, *, below: bool, columns: int = 1, **options: Any) -> None:
    """Add a legend below the axes, or inside them with a background."""
    if below:
        height = ax.get_position().height * ax.figure.get_size_inches()[1]
        options = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.5 / height), "ncols": columns} | options
    else:
        options = {"loc": "upper left", "frameon": True, "framealpha": 0.85, "edgecolor": "none"} | options
    ax.legend(borderaxespad=0.3, handlelength=2.2, **options)


def unit_axis(ax: Any) -> None:
    """Both axes from 0 to 1 with the diagonal of perfect calibration."""
    ax.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1, zorder=1.5)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.set_aspect("equal", adjustable="box")


def save_figure(figure: Any, path: str | Path) -> tuple[Path, Path]:
    """Save a figure as `path`.svg and `path`.png, creating the folder; returns both paths.

    `figure` may also be a display. A suffix .svg or .png of `path` is dropped first.
    """
    figure = getattr(figure, "figure_", figure)
    stem = Path(path)
    if stem.suffix in (".svg", ".png"):
        stem = stem.with_suffix("")
    stem.parent.mkdir(parents=True, exist_ok=True)
    svg, png = (stem.with_name(stem.name + suffix) for suffix in (".svg", ".png"))
    with context():
        figure.savefig(svg, metadata={"Date": None})
        layout = figure.get_layout_engine()
        figure.set_layout_engine("none")  # the layout is done; repeating it would take long
        figure.savefig(png)
        if layout is not None:
            figure.set_layout_engine(layout)
    return svg, png
