"""Calibration by bins: histogram binning, Bayesian binning into quantiles, scaling-binning."""

from __future__ import annotations

from numbers import Real

import numpy as np
from scipy.special import betaln, expit, softmax

from calibrant.base.settings import shown
from calibrant.posthoc._base import Floats
from calibrant.posthoc._one_vs_rest import Map, OneVsRest, fit_platt, platt_scores


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
        if self.scheme not in ("mass", "width"):
            raise ValueError(f'scheme must be "mass" or "width"; got {self.scheme!r}.')
        if not (np.isfinite(self.prior) and self.prior >= 0):
            raise ValueError(f"prior must be a finite number, 0 or above; got {self.prior}.")
        q = expit(odds)
        if self.scheme == "width":
            edges = np.linspace(0.0, 1.0, _check_bins(15 if self.bins is None else self.bins) + 1)[1:-1]
        else:
            default = _default_bins(10 * self.n_features_in_, weights, samples_per_bin=50)
            edges = equal_mass_edges(q, weights, default if self.bins is None else _check_bins(self.bins))
        count, hits = _bin_sums(edges, q, weights, target)
        rate = (weights @ target + 1.0) / (weights.sum() + self.n_features_in_)
        pseudo = np.where(count > 0, self.prior, 1.0)
        return {"edges": edges, "values": (hits + pseudo * rate) / (count + pseudo)}

    def _apply_map(self, fitted: Map, odds: Floats) -> Floats:
        return fitted["values"][_bin(fitted["edges"], expit(odds))]


class BBQ(OneVsRest):
    """Bayesian binning into quantiles: equal-mass histograms of many sizes, averaged by their evidence.

    Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI
    2015. With B bins, bin b has the prior Beta(N'/B · c_b, N'/B · (1 - c_b)), c_b its centre and N' = 2;
    the evidence of the binning is the product over bins of B(m_b + α_b, n_b - m_b + β_b) / B(α_b, β_b), and
    the prediction in a bin is (m_b + α_b)/(n_b + N'/B). B runs from n^⅓/10 to 10 n^⅓ with a uniform prior.
    Deviations: each class is fitted against the rest, since the paper is binary. Beyond 50 sizes, B takes 50 values
    that are evenly spaced on a log scale.

    Parameters
    ----------
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    maps_ : list of dict
        One dict per class (for two classes: class 1 alone) with "edges" and "values", the averaged map, which is itself
        constant between edges.
    """

    def __init__(self, *, from_probs: bool = False) -> None:
        self.from_probs = from_probs

    def _fit_map(self, odds: Floats, target: Floats, weights: Floats) -> Map:
        q = expit(odds)
        root = np.cbrt(weights.sum())
        sizes = np.arange(max(1, int(np.floor(root / 10))), int(np.ceil(10 * root)) + 1)
        if len(sizes) > 50:
            sizes = np.unique(np.geomspace(sizes[0], sizes[-1], 50).round().astype(int))
        candidates, evidence = [], []
        for size in sizes:
            edges = equal_mass_edges(q, weights, int(size))
            count, hits = _bin_sums(edges, q, weights, target)
            strength, centre = 2.0 / len(count), _centres(edges)
            alpha, beta = strength * centre, strength * (1.0 - centre)
            evidence.append((betaln(hits + alpha, count - hits + beta) - betaln(alpha, beta)).sum())
            candidates.append((edges, (hits + alpha) / (count + strength)))
        shares = softmax(np.array(evidence))
        weighted = [(share, candidate) for share, candidate in zip(shares, candidates, strict=True) if share > 1e-12]
        all_edges = np.unique(np.concatenate([edges for _, (edges, _) in weighted]))
        probes = np.append(all_edges, 1.0)  # the right end of a cell belongs to it
        values = sum(share * v[_bin(edges, probes)] for share, (edges, v) in weighted) / sum(s for s, _ in weighted)
        return {"edges": all_edges, "values": np.asarray(values)}

    def _apply_map(self, fitted: Map, odds: Floats) -> Floats:
        return fitted["values"][_bin(fitted["edges"], expit(odds))]


class ScalingBinning(OneVsRest):
    """Scaling-binning: Platt scaling, then in each bin the mean of the *scaled* probabilities.

    Kumar, Liang and Ma, "Verified Uncertainty Calibration", NeurIPS 2019, Section 4, in its marginal form
    (bins of equal mass for each class). The output takes finitely many values, so its calibration error can be
    measured, with the variance of scaling instead of that of histogram binning. Deviations: the rows are normalised,
    and one set is used for all three steps unless ``split=True`` divides it into three, as the paper's guarantee
    requires.

    Parameters
    ----------
    bins : int, optional
        Number of bins per class. None means 100 or 10 C, whichever is larger, with at least ten samples in each.
    split : bool
        Whether each of the three steps uses its own third of the samples.
    random_state : int
        Seed of that split.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    maps_ : list of dict
        One dict per class (for two classes: class 1 alone) with inner "edges" on the scores and the "values" of the
        bins.
    """

    def __init__(
        self,
        bins: int | None = None,
        split: bool = False,
        random_state: int = 0,
        *,
        from_probs: bool = False,
    ) -> None:
        self.bins = bins
        self.split = split
        self.random_state = random_state
        self.from_probs = from_probs

    def _columns(self, scores: Floats) -> Floats:
        return platt_scores(scores)

    def _fit_map(self, column: Floats, target: Floats, weights: Floats) -> Map:
        n = len(column)
        if self.split and n < 3:
            raise ValueError(f"split=True needs at least three calibration samples; got {n}.")
        if self.split:
            # The seed is the same for all classes, and so is the split.
            order = np.random.default_rng(self.random_state).permutation(n)
            scaling, edging, averaging = np.array_split(order, 3)
        else:
            scaling = edging = averaging = np.arange(n)
        default = _default_bins(max(100, 10 * self.n_features_in_), weights[edging], samples_per_bin=10)
        bins = default if self.bins is None else _check_bins(self.bins)
        a, b = fit_platt(column[scaling], target[scaling], weights[scaling])
        # Bins are divided along the scores; for a > 0 this is the order of the scaled probabilities.
        edges = equal_mass_edges(column[edging], weights[edging], bins)
        scaled = expit(a * column[averaging] + b)
        count, total = _bin_sums(edges, column[averaging], weights[averaging], scaled)
        # A bin without samples uses the scaling at its inner edge.
        inner = expit(a * edges + b) if len(edges) else np.array([target.mean()])
        fallback = np.append(inner, inner[-1]) if len(edges) else inner
        return {"edges": edges, "values": np.divide(total, count, out=fallback, where=count > 0)}

    def _apply_map(self, fitted: Map, column: Floats) -> Floats:
        return fitted["values"][_bin(fitted["edges"], column)]


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


def _bin(edges: Floats, x: Floats) -> np.ndarray:
    return np.searchsorted(edges, x, side="left")


def _bin_sums(edges: Floats, x: Floats, weights: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Weight and weighted sum of `values` in each bin."""
    index, size = _bin(edges, x), len(edges) + 1
    return np.bincount(index, weights, size), np.bincount(index, weights * values, size)


def _centres(edges: Floats) -> Floats:
    ends = np.concatenate([[0.0], edges, [1.0]])
    # A centre at exactly 0 or 1 would give a prior that excludes a class.
    return np.clip((ends[:-1] + ends[1:]) / 2, 1e-6, 1 - 1e-6)


def _default_bins(bins: int, weights: Floats, samples_per_bin: int) -> int:
    """The wanted number of bins, reduced so that each has at least `each` samples."""
    return max(1, min(bins, int(weights.sum() / samples_per_bin)))


def _check_bins(bins: int) -> int:
    if not isinstance(bins, Real) or bins < 1 or bins % 1:
        raise ValueError(f"bins must be a whole number, 1 or above; got {shown(bins)}.")
    return int(bins)
