"""The smooth reliability curve, at the bandwidth of smECE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, Unpack

import numpy as np
from scipy.stats import norm

from calibrant.metrics.predictions import InputKeywords, read
from calibrant.metrics.smooth import MIN_BANDWIDTH, smooth_ece, smoothed_moments
from calibrant.plots import style
from calibrant.plots.display import Display

# Points of the curve that are kept; the smoothing grid has at least as many.
_POINTS = 513
# The curve is drawn where at least about this many samples lie under the kernel.
_FEWEST = 4


@dataclass(frozen=True)
class SmoothReliability:
    """The numbers of a smooth reliability curve on an even grid of confidence.

    Attributes
    ----------
    confidence, accuracy, density : arrays
        t, the curve t + r(t)/d(t), and d(t), where r is the smoothed residual and d the smoothed density of confidence:
        ∫ |accuracy − confidence| density dt is smECE. NaN without density.
    spread, level : array and float
        Half width of the consistency band around the diagonal, at this pointwise level.
    local_count : array
        Approximate number of samples that determine the curve at t, (Σ K)² / Σ K².
    support : tuple of float
        Smallest and largest confidence of the sample. Outside, the curve is extrapolation.
    smece, bandwidth : float
        smECE (Błasiok & Nakkiran 2023) and the bandwidth, equal unless a bandwidth was given.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    density: np.ndarray
    spread: np.ndarray
    level: float
    local_count: np.ndarray
    support: tuple[float, float]
    smece: float
    bandwidth: float


def prepare_smooth_reliability(
    probs: Any = None,
    labels: Any = None,
    *,
    bandwidth: float | None = None,
    level: float = 0.95,
    **keywords: Unpack[InputKeywords],
) -> SmoothReliability:
    """Compute the smooth reliability curve; predictions are given as for `calibrant.metrics.smooth_ece`.

    With K the Gaussian kernel reflected at 0 and 1, d(t) = mean K(t, c) and r(t) = mean (correct − c) K(t, c). If the
    model is calibrated, r(t) has mean 0 and variance n⁻² Σ c(1 − c) K(t, c)², which gives the band.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be a fraction in (0, 1); got {level}.")
    value = float(smooth_ece(probs, labels, bandwidth, **keywords))
    sigma = max(value if bandwidth is None else bandwidth, MIN_BANDWIDTH)
    p = read(probs, labels, **keywords)
    residual, density, variance, squares = smoothed_moments(p, sigma)
    at = np.round(np.linspace(0, len(density) - 1, _POINTS)).astype(int)
    t = at / (len(density) - 1)
    # Without density the ratios below are rounding noise.
    d = np.where(density[at] > 1e-9 * density.max(), density[at], np.nan)
    spread = norm.ppf((1 + level) / 2) * np.sqrt(variance[at]) / d
    count = np.nan_to_num(d**2 / np.maximum(squares[at], 1e-300))
    support = p.confidence.min().item(), p.confidence.max().item()
    return SmoothReliability(t, t + residual[at] / d, density[at], spread, level, count, support, value, sigma)


class SmoothReliabilityDisplay(Display):
    """Smooth reliability curve over the density of confidence; several can share the axes.

    The curve is drawn within the range of the sample, where at least a few samples lie under the kernel. If the model
    is calibrated, the curve lies in the band around the diagonal with the stated pointwise probability.
    """

    data: SmoothReliability
    _prepare = staticmethod(prepare_smooth_reliability)

    def plot(self, ax: Any = None, *, band: bool = True, legend: bool = True) -> Self:
        """Draw into `ax`, or into a new figure; call again with the same `ax` to add a model."""
        d = self.data
        inside = (d.confidence >= d.support[0]) & (d.confidence <= d.support[1])
        reliable = inside & (d.local_count >= _FEWEST)
        curve = np.where(reliable, d.accuracy, np.nan)
        low, high = (np.where(reliable, np.clip(d.confidence + s * d.spread, 0, 1), np.nan) for s in (-1, 1))
        with style.context() as plt:
            ax = style.axes(plt, ax, style.SQUARE)
            look = style.next_look(ax)
            label = f"smECE {d.smece:.3f}" if self.name is None else f"{self.name} (smECE {d.smece:.3f})"
            # The density along the bottom shows where the curve is based on many samples.
            area = {"color": look["color"], "linewidth": 0}
            ax.fill_between(d.confidence, 0.16 * d.density / d.density.max(), alpha=0.18, **area)
            if band:
                ax.fill_between(d.confidence, low, high, alpha=0.14, **area)
            ax.plot(d.confidence, curve, linewidth=2, label=label, gid="model", **look)
            style.unit_axis(ax)
            ax.set(xlabel="confidence", ylabel="accuracy")
            if legend:
                style.add_legend(ax, below=False)
        self.ax_, self.figure_ = ax, ax.figure
        return self
