"""The reliability diagram, with the gaps that make up ECE and a consistency band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, Unpack

import numpy as np
from scipy.stats import binom

from calibrant.metrics import NoiseFloor, ece, mce, noise_floor, reliability_bins
from calibrant.metrics.bins import Scheme
from calibrant.metrics.predictions import InputKeywords, read
from calibrant.plots import style
from calibrant.plots.display import Display

# With more bins, edges, hatching and brackets would hide the bars.
_FEW_BINS = 30


@dataclass(frozen=True)
class Reliability:
    """The numbers of a reliability diagram; arrays have one entry per bin, NaN for empty bins.

    Attributes
    ----------
    lower, upper, share, confidence, accuracy : arrays
        Limits of each bin (lower, upper], share of the sample, conf(B_m) and acc(B_m) (Sanguin et al. 2024, Section
        2.2). The first bin of equal mass starts at the smallest confidence.
    band_low, band_high, level : arrays and float
        Consistency band: if the model is calibrated, the accuracy of a bin falls into its band with probability `level`
        (pointwise).
    ece, mce, floor : float, float, and NoiseFloor or None
        The errors over these bins, and the noise floor of ECE (None if not computed).
    n : int
        Size of the sample.
    """

    lower: np.ndarray
    upper: np.ndarray
    share: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    band_low: np.ndarray
    band_high: np.ndarray
    level: float
    ece: float
    mce: float
    floor: NoiseFloor | None
    n: int


def prepare_reliability(
    probs: Any = None,
    labels: Any = None,
    *,
    bins: int = 15,
    scheme: Scheme = "width",
    level: float = 0.95,
    n_resamples: int = 200,
    **keywords: Unpack[InputKeywords],
) -> Reliability:
    """Compute the numbers of a reliability diagram; predictions are given as for `calibrant.metrics.ece`.

    The consistency band (Bröcker & Smith 2007) of bin m consists of quantiles of Bin(n_m, conf(B_m)) / n_m. The exact
    distribution is that of a sum of Bernoulli variables with the individual confidences, which is slightly narrower
    (Hoeffding 1956). With sample weights, n_m is the effective count. `n_resamples=0` leaves out the noise floor.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be a fraction in (0, 1); got {level}.")
    table = reliability_bins(probs, labels, bins, scheme, **keywords)
    lower, upper, share, count, confidence, accuracy = (
        getattr(table, name).cpu().numpy()
        for name in ("lower", "upper", "share", "effective_count", "confidence", "accuracy")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        trials = np.rint(count)
        tail = (1 - level) / 2
        band_low, band_high = (binom.ppf(q, trials, np.clip(confidence, 0, 1)) / trials for q in (tail, 1 - tail))
    p = read(probs, labels, **keywords)
    if scheme == "mass":
        lower[0] = p.confidence.min().item()
    floor = None
    if n_resamples:
        pairs: dict[str, Any] = {"confidence": p.confidence, "sample_weight": p.weight}
        floor = noise_floor(**pairs, n_resamples=n_resamples, bins=bins, scheme=scheme)
    bars = lower, upper, share, confidence, accuracy, band_low, band_high
    error, highest = (float(f(probs, labels, bins, scheme, **keywords)) for f in (ece, mce))
    return Reliability(*bars, level, error, highest, floor, len(p))


class ReliabilityDisplay(Display):
    """Reliability diagram: accuracy against confidence, bin by bin.

    Bars show the accuracy. The gap to the mean confidence is orange if the model is over-confident and hatched red if
    it is under-confident (Fig. 2 of Sanguin et al. 2024). The thin brackets are the consistency band: an accuracy
    inside the bracket is compatible with calibration.

    Attributes
    ----------
    data : Reliability
    ax_, figure_ : the axes and the figure, after `plot`
    """

    data: Reliability
    _prepare = staticmethod(prepare_reliability)

    def plot(self, ax: Any = None, *, band: bool = True, legend: bool = True) -> Self:
        """Draw into `ax`, or into a new figure, with or without consistency band and legend."""
        d = self.data
        full = d.share > 0
        left, width = d.lower[full], (d.upper - d.lower)[full]
        accuracy, confidence = d.accuracy[full], d.confidence[full]
        new = ax is None
        with style.context() as plt:
            ax = style.axes(plt, ax, (4.2, 4.5))
            few = len(left) <= _FEW_BINS
            edge = {"align": "edge", "edgecolor": "white", "linewidth": 0.6 if few else 0}
            ax.bar(left, accuracy, width, color=style.BAR, **edge)
            gaps = (
                (confidence > accuracy, accuracy, {"color": style.OVERCONFIDENT}),
                (confidence < accuracy, confidence, {"color": style.UNDERCONFIDENT, "hatch": few * "////"}),
            )
            for bars, bottom, look in gaps:
                height = np.abs(confidence - accuracy)[bars]
                ax.bar(left[bars], height, width[bars], bottom=bottom[bars], **look, **edge)
            if band:
                _draw_band(ax, d, few)
            style.unit_axis(ax)
            ax.set(xlabel="confidence", ylabel="accuracy")
            ax.set_title(_title(self.name, d))
            if legend:
                handles = legend_handles([d], band=band)
                style.add_legend(ax, below=new, columns=2, handles=handles)
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _draw_band(ax: Any, d: Reliability, few: bool) -> None:
    if few:
        middle, half = (d.band_low + d.band_high) / 2, (d.band_high - d.band_low) / 2
        ax.errorbar(d.confidence, middle, half, fmt="none", ecolor=style.INK, elinewidth=0.9, capsize=2, zorder=3)
    else:
        for limit in (d.band_low, d.band_high):
            ax.plot(d.confidence, limit, color=style.INK, linewidth=0.9, zorder=3)


def legend_handles(diagrams: Sequence[Reliability], *, band: bool) -> list[Any]:
    """Legend entries for the content of these diagrams."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=style.BAR, label="accuracy")]
    if any((d.confidence > d.accuracy).any() for d in diagrams):
        handles.append(Patch(color=style.OVERCONFIDENT, label="over-confident"))
    if any((d.confidence < d.accuracy).any() for d in diagrams):
        handles.append(Patch(facecolor=style.UNDERCONFIDENT, edgecolor="white", hatch="////", label="under-confident"))
    if band:
        label = f"{diagrams[0].level:.0%} if calibrated"
        if (diagrams[0].share > 0).sum() > _FEW_BINS:
            handles.append(Line2D([], [], color=style.INK, linewidth=0.9, label=label))
        else:
            handles.append(Line2D([], [], color=style.INK, linewidth=0.9, marker="|", label=label))
    return handles


def _title(name: str | None, d: Reliability) -> str:
    error = f"ECE {d.ece:.3f}"
    if d.floor is not None:
        error += f" (noise floor {d.floor.mean:.3f})"
    return error if name is None else f"{name}\n{error}"
