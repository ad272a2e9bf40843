"""The confidence histogram, with lines at the accuracy and the mean confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from calibrant.metrics import confidence_gap, reliability_bins
from calibrant.metrics.predictions import InputKeywords, read
from calibrant.plots import style
from calibrant.plots._reading import from_fitted
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


class ConfidenceHistogramDisplay:
    """Confidence histogram with two dashed lines: accuracy (dark) and mean confidence (light grey).

    As in Fig. 2 (top) of Sanguin et al. 2024: accuracy left of confidence means an over-confident model.
    """

    def __init__(self, data: ConfidenceHistogram, *, name: str | None = None) -> None:
        self.data = data
        self.name = name

    @classmethod
    def from_predictions(
        cls, probs: Any = None, labels: Any = None, *, name: str | None = None, ax: Any = None, **prepare: Any
    ) -> ConfidenceHistogramDisplay:
        """Compute by `prepare_confidence_histogram` and draw."""
        return cls(prepare_confidence_histogram(probs, labels, **prepare), name=name).plot(ax)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, name: str | None = None, ax: Any = None, **prepare: Any
    ) -> ConfidenceHistogramDisplay:
        """Draw for a fitted classifier with `predict_proba`."""
        name = type(estimator).__name__ if name is None else name
        return cls.from_predictions(*from_fitted(estimator, X, y), name=name, ax=ax, **prepare)

    def plot(self, ax: Any = None, *, window: Window | None = None, legend: bool = True) -> ConfidenceHistogramDisplay:
        """Draw into `ax`, or into a new figure; `window` is shaded, its predictions are withheld."""
        d = self.data
        with style.context() as plt:
            ax = style.axes(plt, ax, style.WIDE)
            ax.bar(
                d.edges[:-1],
                d.share,
                np.diff(d.edges),
                align="edge",
                color=style.BAR,
                edgecolor="white",
                linewidth=0.6,
            )
            ax.axvline(
                d.mean_confidence,
                color=style.GREY,
                linestyle=(0, (2, 1.5)),
                linewidth=1.8,
                label=f"mean confidence {d.mean_confidence:.3f}",
            )
            ax.axvline(
                d.accuracy,
                color=style.INK,
                linestyle=(0, (5, 2)),
                linewidth=1.8,
                label=f"accuracy {d.accuracy:.3f}",
            )
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
