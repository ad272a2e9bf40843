"""Calibration errors over bins of confidence: ECE, MCE, ACE, the signed parts of ECE, and the reliability diagram."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from calibrant.metrics.bins import BinSums, Norm, Scheme, bin_edges, bin_index, bin_sums, calibration_error, histogram
from calibrant.metrics.predictions import Grouped, InputKeywords, MetricKeywords, Predictions, evaluate, metric, read


def bin_table(p: Predictions, bins: int, scheme: Scheme) -> BinSums:
    """The sums over the bins of confidence."""
    edges = bin_edges(p.confidence, bins, scheme, p.weight)
    return bin_sums(p.confidence, p.correct, p.weight, edges, scheme)


@metric(top_label=True)
def ece(
    probs: Any = None,
    labels: Any = None,
    bins: int = 15,
    scheme: Scheme = "width",
    norm: Norm = "l1",
    debias: bool = False,
    **keywords: Unpack[MetricKeywords],
) -> float | Grouped:
    """Expected calibration error of the predicted class.

    With bins B_1..B_M of confidence, gap_m = acc(B_m) − conf(B_m) and share_m = |B_m| / n::

        l1    Σ share_m |gap_m|              Eq. (4) of Sanguin et al. 2024 (Naeini et al. 2015)
        l2    √(Σ share_m gap_m²)            Kumar et al. 2019
        max   max |gap_m|                    the maximum calibration error

    Bins are (lo, hi]; 0 falls in the first and 1 in the last. Edges are rounded to the dtype of the confidence, so that
    0.2 lies on the edge 3/15 in float32 and in float64.

    Parameters
    ----------
    probs : array or tensor of shape (n, C) or (n,)
        Class probabilities, on any device; or, for two classes, the probability of class 1.
    labels : array or tensor of shape (n,)
        True classes: integers in 0..C-1, or text that names every class, with the columns in sorted order.
    bins : int
        Number of bins.
    scheme : {"width", "mass"}
        "width" for bins of equal width, "mass" for bins of equal weight (as far as ties allow).
    norm : {"l1", "l2", "max"}
        The norm of the gaps, see above.
    debias : bool
        Subtract the contribution of sampling noise. For l2 this gives the unbiased estimate of the square (Kumar et al.
        2019). For l1 it subtracts the bias of `|gap|` under a normal approximation, in closed form. Both are cut off at
        0. Bins with a single prediction are left out.
    confidence, correct : arrays or tensors of shape (n,)
        Predictions in another form, instead of probs and labels: the probability of the predicted class, and whether it
        was right.
    from_logits : bool
        Read `probs` as logits (the same as `Logits(probs)`). Logits are never guessed from the values.
    binary : {"positive", "predicted"}, optional
        How to judge 1-D `probs`, the probabilities of class 1. "positive" judges that probability itself, "predicted"
        the confidence of the predicted class. The results differ. None (the default) reads 1-D `probs` as the two
        columns 1 − p and p.
    sample_weight : array or tensor of shape (n,), optional
        Non-negative weights of the samples.
    groups : array of shape (n,), optional
        A group for each sample. The result is then a `Grouped` mapping with one value per group.

    Returns
    -------
    float or Grouped
        One value, or one for each group. A calibrated model does not score 0 on a finite sample: see `noise_floor`.

    Raises
    ------
    ValueError
        If `probs` are not probabilities, or if `labels` are not among their classes.

    Examples
    --------
    >>> from calibrant.metrics import ece
    >>> round(ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]], [0, 0, 1, 0]), 3)
    0.3
    >>> round(ece(confidence=[0.9, 0.8, 0.7, 0.6], correct=[1, 1, 1, 0]), 3)
    0.3
    """
    return evaluate(
        lambda q: calibration_error(bin_table(q, bins, scheme), norm, debias).item(), probs, labels, **keywords
    )


def ece_of_draws(
    p: Predictions,
    draws: Iterable[Tensor],
    bins: int = 15,
    scheme: Scheme = "width",
    norm: Norm = "l1",
    debias: bool = False,
) -> Tensor:
    """`ece` of the same confidences for several draws of outcomes; the bins are computed once."""
    edges = bin_edges(p.confidence, bins, scheme, p.weight)
    sums = bin_sums(p.confidence, p.correct, p.weight, edges, scheme)
    index = bin_index(p.confidence, edges, scheme)
    hits = [histogram(index, bins, d.double() if p.weight is None else p.weight * d) for d in draws]
    return calibration_error(replace(sums, correct=torch.stack(hits)), norm, debias).cpu()


@metric(top_label=True)
def mce(
    probs: Any = None, labels: Any = None, bins: int = 15, scheme: Scheme = "width", **keywords: Unpack[MetricKeywords]
) -> float | Grouped:
    """Maximum calibration error, max_m |acc(B_m) − conf(B_m)| over the bins that are not empty.

    The same as `ece(..., norm="max")`, with the same keywords. A bin with one prediction counts in full, so on small
    samples this is mostly noise: compare it with its `noise_floor`.
    """
    return ece(probs, labels, bins, scheme, norm="max", **keywords)


@metric(top_label=True)
def ace(
    probs: Any = None,
    labels: Any = None,
    bins: int = 15,
    norm: Norm = "l1",
    debias: bool = False,
    **keywords: Unpack[MetricKeywords],
) -> float | Grouped:
    """Adaptive calibration error: ECE of the predicted class over bins of equal mass.

    Σ_m share_m |acc(B_m) − conf(B_m)|, where each bin B_m holds about one M-th of the sample: "Adaptive ECE" of Mukhoti
    et al. 2020, and the same as `ece(..., scheme="mass")`. Others use the name differently: Nixon et al. 2019 average
    over classes as well (here: `classwise_ece(..., scheme="mass")`), and netcal averages equal-width bins without
    weights. Keywords are as in `ece`.
    """
    return ece(probs, labels, bins, "mass", norm, debias, **keywords)


@metric(top_label=True)
def overconfidence(
    probs: Any = None, labels: Any = None, bins: int = 15, scheme: Scheme = "width", **keywords: Unpack[MetricKeywords]
) -> float | Grouped:
    """Σ_m share_m max(conf(B_m) − acc(B_m), 0): the part of ECE from over-confident bins.

    ECE = overconfidence + underconfidence. Keywords are as in `ece`.
    """
    return _one_sided(-1.0, probs, labels, bins, scheme, **keywords)


@metric(top_label=True)
def underconfidence(
    probs: Any = None, labels: Any = None, bins: int = 15, scheme: Scheme = "width", **keywords: Unpack[MetricKeywords]
) -> float | Grouped:
    """Σ_m share_m max(acc(B_m) − conf(B_m), 0): the part of ECE from under-confident bins.

    See `overconfidence`. Keywords are as in `ece`.
    """
    return _one_sided(1.0, probs, labels, bins, scheme, **keywords)


def _one_sided(
    sign: float, probs: Any, labels: Any, bins: int, scheme: Scheme, **keywords: Unpack[MetricKeywords]
) -> float | Grouped:
    def core(q: Predictions) -> float:
        sums = bin_table(q, bins, scheme)
        return (sums.share * (sign * sums.gap).clamp(min=0)).sum().item()

    return evaluate(core, probs, labels, **keywords)


@dataclass(frozen=True)
class ReliabilityBins:
    """The numbers behind a reliability diagram, one entry per bin; empty bins have NaN in the two means.

    A bin is (`lower`, `upper`]. `share` is its share of the sample, `effective_count` its number of rows (with weights,
    the number of equally weighted rows that are as precise), and `confidence` and `accuracy` are its two means.
    """

    lower: Tensor
    upper: Tensor
    share: Tensor
    effective_count: Tensor
    confidence: Tensor
    accuracy: Tensor


def reliability_bins(
    probs: Any = None, labels: Any = None, bins: int = 15, scheme: Scheme = "width", **keywords: Unpack[InputKeywords]
) -> ReliabilityBins:
    """Limits, share of the sample, mean confidence and accuracy of each bin.

    Keywords are as in `ece`, without groups.
    """
    p = read(probs, labels, **keywords)
    upper = bin_edges(p.confidence, bins, scheme, p.weight)
    sums = bin_sums(p.confidence, p.correct, p.weight, upper, scheme)
    lower = torch.cat([upper.new_zeros(1), upper[:-1]])
    effective = sums.weight**2 / sums.weight_sq.where(sums.weight_sq > 0, 1.0)
    means = sums.confidence / sums.weight, sums.correct / sums.weight
    return ReliabilityBins(lower.double(), upper.double(), sums.share, effective, *means)
