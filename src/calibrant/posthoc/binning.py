"""Calibration by bins of equal mass or equal width."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from calibrant.base.settings import check_choice, check_whole
from calibrant.posthoc._base import Floats, Map, OneVsRest, check_strength


class HistogramBinning(OneVsRest):
    """Histogram binning of each class against the rest: p is the share of the class in the bin of q.

    Zadrozny and Elkan, "Obtaining Calibrated Probability Estimates from Decision Trees and Naive Bayesian
    Classifiers", ICML 2001. Bins are (lo, hi], and 0 falls in the first. Deviation: the share is
    (hits + m r) / (count + m), with m = `prior` samples at the rate r = (N₊ + 1)/(n + C) of the class in the whole set.
    So no class gets probability 0, and the log-loss of unseen samples is finite. ``prior=0`` gives plain shares, and r
    in an empty bin.

    Parameters
    ----------
    bins : int, optional
        Number of bins. None means 15 of equal width, or 10 C of equal mass (a class holds about 1/C of the mass), with
        at least fifty samples in each.
    scheme : {"mass", "width"}
        "mass" (equal counts, as in the paper) or "width" (equal widths).
    prior : float
        The number m of prior samples.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    maps_ : list of dict
        One dict per class (for two classes: class 1 alone) with inner "edges" and the "values" of the bins.
    """

    def __init__(
        self, bins: int | None = None, scheme: str = "mass", prior: float = 1.0, *, from_probs: bool = False
    ) -> None:
        self.bins = bins
        self.scheme = scheme
        self.prior = prior
        self.from_probs = from_probs

    def _fit_map(self, odds: Floats, target: Floats, weights: Floats) -> Map:
        check_choice("scheme", self.scheme, ("mass", "width"))
        check_strength("prior", self.prior)
        q = expit(odds)
        if self.scheme == "width":
            edges = np.linspace(0.0, 1.0, check_whole("bins", 15 if self.bins is None else self.bins) + 1)[1:-1]
        else:
            default = max(1, min(10 * self.n_features_in_, int(weights.sum() / 50)))
            edges = equal_mass_edges(q, weights, default if self.bins is None else check_whole("bins", self.bins))
        index, size = np.searchsorted(edges, q), len(edges) + 1
        count, hits = np.bincount(index, weights, size), np.bincount(index, weights * target, size)
        rate = (weights @ target + 1.0) / (weights.sum() + self.n_features_in_)
        pseudo = np.where(count > 0, self.prior, 1.0)
        return {"edges": edges, "values": (hits + pseudo * rate) / (count + pseudo)}

    def _apply_map(self, fitted: Map, odds: Floats) -> Floats:
        return fitted["values"][np.searchsorted(fitted["edges"], expit(odds))]


def equal_mass_edges(x: Floats, weights: Floats, bins: int) -> Floats:
    """Inner edges of bins of equal weight, as far as ties allow; an edge lies midway between two samples.

    At an edge on a sample, rounding would decide the bin of that sample.
    """
    values, group = np.unique(x, return_inverse=True)
    reached = np.cumsum(np.bincount(group, weights))
    mass_limits = reached[-1] * np.arange(1, bins) / bins
    # Rounding in the sums must not decide which sample is the last of its bin.
    last = np.unique(np.searchsorted(reached, mass_limits * (1 - 1e-12)))
    last = last[last < len(values) - 1]
    return (values[last] + values[last + 1]) / 2
