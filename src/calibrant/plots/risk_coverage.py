"""The risk–coverage curve, with a bound that holds for all thresholds at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, Unpack

import numpy as np

from calibrant.metrics.predictions import InputKeywords, read
from calibrant.plots import style
from calibrant.plots.display import Display
from calibrant.selective import (
    RejectionRule,
    RiskCoverageCurve,
    augrc,
    aurc,
    risk_coverage_curve,
    uniform_risk_bound,
)

# More points than pixels make an SVG slow and do not improve it.
_POINTS = 2000


@dataclass(frozen=True)
class RiskCoverage:
    """The numbers of a risk–coverage plot.

    Attributes
    ----------
    curve : RiskCoverageCurve
        The curve itself (`calibrant.selective.risk_coverage_curve`).
    aurc, augrc : float
        Its areas.
    best : array
        Risk of the best ordering of the same predictions, at the coverages of the curve.
    bound, level : array and float, or None
        Upper bounds on the true risk, one for each threshold. All of them hold together with probability `level`; None
        if no level was given.
    """

    curve: RiskCoverageCurve
    aurc: float
    augrc: float
    best: np.ndarray
    bound: np.ndarray | None
    level: float | None


def prepare_risk_coverage(
    probs: Any = None, labels: Any = None, *, level: float | None = None, **keywords: Unpack[InputKeywords]
) -> RiskCoverage:
    """Compute the numbers of a risk–coverage plot; predictions are given as for `calibrant.metrics.ece`.

    `level`, for instance 0.95, adds `uniform_risk_bound` for all thresholds.
    """
    if keywords.get("sample_weight") is not None:
        raise ValueError(
            "sample_weight must be None for a risk–coverage curve, whose guarantees count samples; got weights."
        )
    p = read(probs, labels, **keywords)
    curve = risk_coverage_curve(p.confidence, p.correct)
    right = curve.n - curve.n_errors[-1]
    best = np.maximum(0, curve.n_accepted - right) / curve.n_accepted
    bound = None
    if level is not None:
        uniform = uniform_risk_bound(p.confidence, p.correct, level=level, two_sided=False)
        bound = np.asarray(uniform.risk(high=curve.threshold))
    areas = aurc(p.confidence, p.correct), augrc(p.confidence, p.correct)
    return RiskCoverage(curve, *areas, best, bound, level)


class RiskCoverageDisplay(Display):
    """Risk among accepted predictions against the share accepted; several models can share the axes.

    A thin line of the same colour is the bound that holds for all thresholds at once, so that a threshold may
    be chosen by looking at this plot.
    """

    data: RiskCoverage
    _prepare = staticmethod(prepare_risk_coverage)

    def plot(
        self, ax: Any = None, *, best: bool = False, rule: RejectionRule | None = None, legend: bool = True
    ) -> Self:
        """Draw into `ax`, or into a new figure.

        `best` adds the curve of the best possible ordering, `rule` marks a chosen rule. At most 2,000 evenly spread
        points of a curve are drawn.
        """
        d = self.data
        points = np.unique(np.linspace(0, len(d.best) - 1, min(len(d.best), _POINTS)).round().astype(int))
        coverage, risk = d.curve.coverage[points], d.curve.risk[points]
        with style.context() as plt:
            ax = style.axes(plt, ax, style.WIDE)
            look = style.next_look(ax)
            label = f"AURC {d.aurc:.3f}" if self.name is None else f"{self.name} (AURC {d.aurc:.3f})"
            ax.plot(coverage, risk, linewidth=1.8, label=label, gid="model", **look)
            if d.bound is not None:
                bound = d.bound[points]
                name = f"bound for all thresholds ({d.level:.0%})"
                ax.plot(coverage, bound, linewidth=0.9, color=look["color"], alpha=0.9, gid="bound", label=name)
                ax.fill_between(coverage, risk, bound, color=look["color"], alpha=0.08, linewidth=0)
            if best:
                dotted = {"color": style.GREY, "linewidth": 1, "linestyle": ":"}
                ax.plot(coverage, d.best[points], label="best ordering", **dotted)
            if rule is not None and rule.found:
                ring = {"markerfacecolor": "white", "markeredgecolor": look["color"], "markeredgewidth": 1.8}
                ax.plot(rule.coverage, rule.risk, "o", markersize=7, label=f"{rule.window}", **ring)
            ax.set(xlim=(0, 1), xlabel="coverage (share accepted)", ylabel="risk (errors among accepted)")
            ax.set_ylim(0, _top(ax))
            ax.grid(axis="y", color=style.PALE, linewidth=0.5)
            if legend:
                style.add_legend(ax, below=False, loc="upper center")
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _top(ax: Any) -> float:
    """Upper end of the risk axis: fits the curves, but cuts off noise and bounds at low coverage."""
    highest = 0.01
    for line in ax.lines:
        coverage, risk = (np.asarray(values) for values in line.get_data())
        start = {"model": 0.1, "bound": 0.25}.get(line.get_gid(), 2)
        highest = max(highest, np.max(risk[coverage >= start], initial=0))
    return float(min(1.02, 1.4 * highest))
