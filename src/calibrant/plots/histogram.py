"""The confidence histogram, with lines at the accuracy and the mean confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, Unpack

import numpy as np

from calibrant.metrics import confidence_gap, reliability_bins
from calibrant.metrics.predictions import InputKeywords, read
from calibrant.plots import style
from calibrant.plots.display import Display
from calibrant.selective import Window


@dataclass(frozen=True)
class ConfidenceHistogram:
    """The numbers of a confidence histogram.

    Attributes
    ----------
    edges, share : arrays
        Limits of the bins (M + 1) and share of the sample in each (M).
    accuracy, mean_confidence : float
        Over the whole sample; the distance between the two lines is the confidence gap.
    chance : float or None
        1/C if the number of classes is known; a maximum of C probabilities is never smaller.
    """

    edges: np.ndarray
    share: np.ndarray
    accuracy: float
    mean_confidence: float
    chance: float | None


def prepare_confidence_histogram(
    probs: Any = None, labels: Any = None, *, bins: int = 20, **keywords: Unpack[InputKeywords]
) -> ConfidenceHistogram:
    """Compute the numbers of a confidence histogram; predictions are given as for `calibrant.metrics.ece`."""
    table = reliability_bins(probs, labels, bins, **keywords)
    p = read(probs, labels, **keywords)
    right = p.mean(p.correct)
    gap = float(confidence_gap(probs, labels, **keywords))
    chance = None if p.probs is None else 1 / p.probs.shape[1]
    edges = np.append(0.0, table.upper.cpu().numpy())
    return ConfidenceHistogram(edges, table.share.cpu().numpy(), right, right + gap, chance)


class ConfidenceHistogramDisplay(Display):
    """Confidence histogram with two dashed lines: accuracy (dark) and mean confidence (light grey).

    As in Fig. 2 (top) of Sanguin et al. 2024: accuracy left of confidence means an over-confident model.
    """

    data: ConfidenceHistogram
    _prepare = staticmethod(prepare_confidence_histogram)

    def plot(self, ax: Any = None, *, window: Window | None = None, legend: bool = True) -> Self:
        """Draw into `ax`, or into a new figure; `window` is shaded, its predictions are withheld."""
        d = self.data
        with style.context() as plt:
            ax = style.axes(plt, ax, style.WIDE)
            look = {"align": "edge", "color": style.BAR, "edgecolor": "white", "linewidth": 0.6}
            ax.bar(d.edges[:-1], d.share, np.diff(d.edges), **look)
            for value, label, color, dashes in (
                (d.mean_confidence, "mean confidence", style.GREY, (2, 1.5)),
                (d.accuracy, "accuracy", style.INK, (5, 2)),
            ):
                label = f"{label} {value:.3f}"
                ax.axvline(value, color=color, linestyle=(0, dashes), linewidth=1.8, label=label)
            if window is not None and window.low < window.high:
                low, high = np.clip([window.low, window.high], 0, 1)
                ax.axvspan(low, high, color=style.PALE, alpha=0.5, linewidth=0, zorder=0.4, label="withheld")
            if d.chance is not None:
                ax.axvline(d.chance, color=style.PALE, linewidth=1, zorder=0.5, label=f"chance {d.chance:.3g}")
            ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of samples")
            ax.set_ylim(0, 1.05 * max(float(d.share.max()), 1e-3))
            if self.name is not None:
                ax.set_title(self.name)
            if legend:
                style.add_legend(ax, below=False)
        self.ax_, self.figure_ = ax, ax.figure
        return self
