"""Draw Figures 2 to 5 of the second paper from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binom

from calibrant.experiments.meta_reg.groups import RunGroup
from calibrant.plots import style
from calibrant.plots.bin_sweep import BinSweep, BinSweepDisplay
from calibrant.plots.reliability import Reliability, ReliabilityDisplay
from calibrant.report.results import Record

SHOWN = ("ce", "ce-ts", "flsd", "ce-dece", "flg-dece", "flg-sece", "focal-control", "recommended")
"""The methods that the figures show, if they were run."""
LEVEL = 0.95


def shown(group: RunGroup) -> list[str]:
    """The methods of a group that the figures show."""
    return [method for method in SHOWN if method in group.methods]


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


def reliability(group: RunGroup, bins: Sequence[int]) -> Any:
    """Reliability diagrams of the last seed of each method, with one row per number of bins."""
    methods = shown(group)
    with style.context() as plt:
        figure, axes = plt.subplots(
            len(bins),
            len(methods),
            figsize=(2.3 * len(methods), 2.6 * len(bins)),
            layout="constrained",
            squeeze=False,
        )
        for row, count in zip(axes, bins, strict=True):
            for ax, method in zip(row, methods, strict=True):
                record = group.of(method)[-1]
                name = f"{method} ({100 * record['error']:.2f} % error)"
                ReliabilityDisplay(diagram(record, count), name=name).plot(ax, band=count <= 20, legend=False)
                ax.title.set_fontsize(8)
                ax.label_outer()
    return figure


def curves(group: RunGroup) -> Any | None:
    """Figure 3: test error, ECE, mean and standard deviation of γ by epoch, as means over seeds; None without data."""
    methods = [m for m in shown(group) if not m.endswith("-ts") and group.of(m)[0].get("curve", {}).get("epoch")]
    if not methods:
        return None
    panels = {
        "error": "test error",
        "ece": "test ECE",
        "gamma_mean": "mean of γ",
        "gamma_std": "standard deviation of γ",
    }
    with style.context() as plt:
        figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
        for ax, (name, title) in zip(axes, panels.items(), strict=True):
            for method in methods:
                look = style.next_look(ax)
                runs = [r["curve"] for r in group.of(method) if name in r["curve"]]
                if runs:
                    least = min(len(run["epoch"]) for run in runs)
                    values = np.mean([run[name][:least] for run in runs], axis=0)
                    ax.plot(runs[0]["epoch"][:least], values, linewidth=1.4, label=method, gid="model", **look)
                else:
                    ax.plot([], [], gid="model", **look)
            ax.set(xlabel="epoch", title=title)
            ax.set_ylim(bottom=0)
        axes[0].legend(loc="upper right", frameon=False)
    return figure


def bin_sweep(group: RunGroup) -> Any:
    """Figure 5: ECE and MCE by number of bins, as means over seeds, with noise floors."""
    with style.context() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
        for method in shown(group):
            tables = [record["bins"] for record in group.of(method)]
            means = {n: np.mean([t[n] for t in tables], axis=0) for n in ("ece", "mce", "ece_floor", "mce_floor")}
            data = BinSweep(np.array(tables[0]["bins"]), **means)
            keep = data.bins != 15
            thinned = BinSweep(*(getattr(data, name)[keep] for name in ("bins", *means)))
            BinSweepDisplay(thinned, name=method).plot(axes, legend=method == shown(group)[-1])
    return figure
