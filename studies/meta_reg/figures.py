"""Draw Figures 2 to 5 of the second paper from records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import binom

from calibrant.plots import BinSweep, BinSweepDisplay, Reliability, ReliabilityDisplay, style
from calibrant.plots.reliability import legend_handles
from studies.meta_reg.groups import RunGroup
from studies.report import Record

SHOWN = ("ce", "ce-ts", "flsd", "ce-dece", "flg-dece", "flg-sece", "focal-control", "recommended")
"""The methods that the figures show, if they were run."""
AT_THE_END = ("ce-ts", "recommended")
"""Methods whose confidences are ready only at the end of training, so that Figure 3 cannot show them."""
EIGHTH = "#8C564B"
"""The colour of a method beyond the palette."""
LEVEL = 0.95
BANDED = 20
"""Up to this number of bins, diagrams have the range of a calibrated model."""
COLOURS = "Orange: confidence above accuracy. Hatched red: accuracy above confidence. Bars: a calibrated model's range."


def drawn(group: RunGroup) -> Iterator[tuple[int, Any, str]]:
    """Figures 2 to 5 of a group, one after the other: the number, the figure, which is then closed, and its caption."""
    import matplotlib.pyplot as plt

    figures: dict[int, tuple[Callable[[RunGroup], Any], str]] = {
        2: (partial(reliability, bins=(15,)), f"reliability diagrams of the last common seed, 15 bins. {COLOURS}"),
        3: (curves, "test error, ECE and γ by epoch, means over seeds; without maps that are fitted at the end."),
        4: (partial(reliability, bins=(20, 50, 100)), "the same with 20, 50 and 100 bins (rows)."),
        5: (bin_sweep, "ECE and MCE by number of bins, means over seeds. Thin dotted lines are noise floors."),
    }
    for number, (draw, caption) in figures.items():
        if shown(group) and (figure := draw(group)) is not None:
            yield number, figure, caption
            plt.close(figure)


def shown(group: RunGroup) -> list[str]:
    """The methods of a group that the figures show."""
    return [name for name in SHOWN if name in group.methods]


def look_of(group: RunGroup, method: str) -> dict[str, Any]:
    """Colour and line style of a method, the same in all figures of a group."""
    position = shown(group).index(method)
    look = style.line_look(position)
    return look if position < len(style.PALETTE) else look | {"color": EIGHTH}


def diagram(record: Record, bins: int) -> Reliability:
    """A reliability diagram from the bins of a record, with the band of a calibrated model."""
    table = record["diagrams"][str(bins)]
    share, confidence, accuracy = (
        np.array([np.nan if v is None else v for v in table[name]]) for name in ("share", "confidence", "accuracy")
    )
    edges = np.arange(bins + 1) / bins
    count = np.rint(share * record["test_size"])
    with np.errstate(invalid="ignore", divide="ignore"):
        tail = (1 - LEVEL) / 2
        low, high = (binom.ppf(q, count, confidence) / count for q in (tail, 1 - tail))
    gap = np.abs(accuracy - confidence)
    ece, mce = float(np.nansum(share * gap)), float(np.nanmax(gap))
    means = (share, confidence, accuracy, low, high)
    return Reliability(edges[:-1], edges[1:], *means, LEVEL, ece, mce, None, record["test_size"])


def common_seed(group: RunGroup) -> int | None:
    """The last seed that all shown methods have; None if they share none."""
    seeds = [{record["seed"] for record in group.of(method)} for method in shown(group)]
    return max(set.intersection(*seeds), default=None) if seeds else None


def reliability(group: RunGroup, bins: Sequence[int]) -> Any:
    """Reliability diagrams of one seed of each method; a single number of bins is wrapped into rows of four."""
    methods, seed = shown(group), common_seed(group)
    records = {m: [r for r in group.of(m) if seed is None or r["seed"] == seed][-1] for m in methods}
    across = min(len(methods), 4) if len(bins) == 1 else len(methods)
    places = [(count, method) for count in bins for method in methods]
    down = math.ceil(len(places) / across)
    size = (max(2.3 * across, 4.6), 2.75 * down + 0.6)
    diagrams = []
    with style.context() as plt:
        figure, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
        for ax, (count, method) in zip(axes.flat, places, strict=False):
            name = f"{method} ({100 * records[method]['error']:.2f} % error)"
            diagrams.append(diagram(records[method], count))
            ReliabilityDisplay(diagrams[-1], name=name).plot(ax, band=count <= BANDED, legend=False)
            ax.title.set_fontsize(8)
            ax.label_outer()
        for ax in axes.flat[len(places) :]:
            ax.remove()
        handles = legend_handles(diagrams, band=min(bins) <= BANDED)
        figure.legend(handles=handles, loc="outside lower center", ncols=2 if across < 3 else len(handles))
    return figure


TITLES = {
    "error": "test error",
    "ece": "test ECE",
    "gamma_mean": "mean of γ",
    "gamma_std": "standard deviation of γ",
}
"""The panels of Figure 3."""


def curves(group: RunGroup) -> Any | None:
    """Figure 3: test error, ECE, mean and standard deviation of γ by epoch, as means over seeds; None without data.

    The panels of γ are left out if no method has one.
    """
    methods = [m for m in shown(group) if m not in AT_THE_END]
    runs = {name: {m: [r["curve"] for r in group.of(m) if r["curve"].get(name)] for m in methods} for name in TITLES}
    panels = {name: method_runs for name, method_runs in runs.items() if any(method_runs.values())}
    if not panels:
        return None
    with style.context() as plt:
        figure, axes = plt.subplots(1, len(panels), figsize=(3.25 * len(panels), 3.6), layout="constrained")
        for ax, (name, by_method) in zip(np.ravel(axes), panels.items(), strict=True):
            for method, method_runs in by_method.items():
                if method_runs:
                    least = min(len(run["epoch"]) for run in method_runs)
                    values = np.mean([run[name][:least] for run in method_runs], axis=0)
                    look = look_of(group, method)
                    ax.plot(method_runs[0]["epoch"][:least], values, linewidth=1.4, label=method, gid="model", **look)
            ax.set(xlabel="epoch", title=TITLES[name])
            ax.set_ylim(bottom=0)
            ax.xaxis.get_major_locator().set_params(integer=True)
        handles, names = np.ravel(axes)[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    return figure


def bin_sweep(group: RunGroup) -> Any:
    """Figure 5: ECE and MCE by number of bins, as means over seeds, with noise floors."""
    with style.context() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
        for method in shown(group):
            tables = [record["bins"] for record in group.of(method)]
            bins = np.array(tables[0]["bins"])
            names = ("ece", "mce", "ece_floor", "mce_floor")
            means = (np.mean([table[name] for table in tables], axis=0) for name in names)
            data = BinSweep(*(values[bins != 15] for values in (bins, *means)))
            BinSweepDisplay(data, name=method).plot(axes, legend=False)
            for line in (line for ax in axes for line in ax.lines[-2:]):  # an eighth has no colour of its own there
                line.set_color(look_of(group, method)["color"])
        for ax in axes:  # the legend is outside and needs no room in the axes
            ax.set_ylim(0, 1.05 * max(np.max(line.get_ydata()) for line in ax.lines))
        handles, names = axes[0].get_legend_handles_labels()
        handles.append(plt.Line2D([], [], color=style.GREY, linewidth=1, linestyle=":", marker="_"))
        figure.legend(handles, [*names, "noise floor of each"], loc="outside lower center", ncols=5)
    return figure
