"""Calibration errors over bins of confidence: ECE, MCE, ACE, class-wise ECE, and the signed parts of ECE."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from calibrant._inputs import Array, like
from calibrant._settings import check_choice
from calibrant.metrics.bins import (
    CHUNK,
    BinSums,
    Norm,
    Scheme,
    bin_edges,
    bin_index,
    bin_sums,
    calibration_error,
    histogram,
)
from calibrant.metrics.predictions import Given, Grouped, Predictions, evaluate, metric, read


def _table(p: Predictions, bins: int, scheme: Scheme) -> BinSums:
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
    **given: Unpack[Given],
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
        If `probs` are not probabilities, or `labels` are not classes of theirs.

    Examples
    --------
    >>> from calibrant.metrics import ece
    >>> round(ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]], [0, 0, 1, 0]), 3)
    0.3
    >>> round(ece(confidence=[0.9, 0.8, 0.7, 0.6], correct=[1, 1, 1, 0]), 3)
    0.3
    """
    return evaluate(lambda q: calibration_error(_table(q, bins, scheme), norm, debias).item(), probs, labels, **given)


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
    probs: Any = None, labels: Any = None, bins: int = 15, scheme: Scheme = "width", **given: Unpack[Given]
) -> float | Grouped:
    """Maximum calibration error, max_m |acc(B_m) − conf(B_m)| over the bins that are not empty.

    The same as `ece(..., norm="max")`, with the same keywords. A bin with one prediction counts in full, so on small
    samples this is mostly noise: compare it with its `noise_floor`.
    """
    return ece(probs, labels, bins, scheme, norm="max", **given)


@metric(top_label=True)
def ace(
    probs: Any = None,
    labels: Any = None,
    bins: int = 15,
    norm: Norm = "l1",
    debias: bool = False,
    **given: Unpack[Given],
) -> float | Grouped:
    """Adaptive calibration error: ECE of the predicted class over bins of equal mass.

    Σ_m share_m |acc(B_m) − conf(B_m)| with B_m the m-th M-quantile of confidence: "Adaptive ECE" of Mukhoti
    et al. 2020, and `ece(..., scheme="mass")`. Others use the name differently: Nixon et al. 2019 average
    over classes as well (here: `classwise_ece(..., scheme="mass")`), netcal averages equal-width bins
    without weights.
    """
    return ece(probs, labels, bins, "mass", norm, debias, **given)


@metric()
def classwise_ece(
    probs: Any = None,
    labels: Any = None,
    bins: int = 15,
    scheme: Scheme = "width",
    *,
    norm: Norm = "l1",
    debias: bool = False,
    average: Literal["macro"] | None = "macro",
    **given: Unpack[Given],
) -> float | Grouped | Array:
    """Class-wise ECE, (1/C) Σ_c ECE of p_c against 1[y = c] (Nixon et al. 2019; Kull et al. 2019).

    `average=None` returns the C values instead of their mean, in the kind of array that was given. Other arguments are
    as in `ece`. Pairs are not accepted, since the probability of every class is judged.
    """
    check_choice("average", average, ("macro", None))
    if average is None:
        if given.pop("groups", None) is not None:
            raise ValueError("average=None cannot be combined with groups; evaluate one group at a time.")
        p = read(probs, labels, matrix_only=True, **given)  # type: ignore[misc]
        return like(_classwise(p, bins, scheme, norm, debias), probs)

    def core(p: Predictions) -> float:
        return _classwise(p, bins, scheme, norm, debias).mean().item()

    return evaluate(core, probs, labels, matrix_only=True, **given)


def _classwise(p: Predictions, bins: int, scheme: Scheme, norm: Norm, debias: bool) -> Tensor:
    assert p.probs is not None
    assert p.labels is not None
    if scheme == "width":
        return calibration_error(width_sums(p.probs, p.labels, p.weight, bins), norm, debias)
    values = []
    for c, column in enumerate(p.probs.unbind(dim=1)):
        one = Predictions(column.contiguous(), p.labels == c, p.weight)
        values.append(calibration_error(_table(one, bins, scheme), norm, debias))
    return torch.stack(values)


def width_sums(probs: Tensor, labels: Tensor, weight: Tensor | None, bins: int) -> BinSums:
    """Equal-width sums of every class at once, shape (C, M)."""
    n, classes = probs.shape
    edges = bin_edges(probs, bins, "width")
    bins = len(edges)
    sums = torch.zeros(4, classes * bins, dtype=torch.float64, device=probs.device)
    offset = torch.arange(classes, device=probs.device) * bins
    step = max(1, CHUNK // classes)
    for start in range(0, n, step):
        part = probs[start : start + step]
        index = bin_index(part.flatten(), edges, "width").view(part.shape) + offset
        hit = index.gather(1, labels[start : start + step, None])[:, 0]
        flat = index.flatten()
        w = None if weight is None else weight[start : start + step]
        every = None if w is None else w.repeat_interleave(classes)
        values = part.flatten().double()
        size = classes * bins
        total = histogram(flat, size, every)
        sums += torch.stack(
            [
                total,
                total if every is None else histogram(flat, size, every**2),
                histogram(flat, size, values if every is None else every * values),
                histogram(hit, size, w),
            ]
        )
    return BinSums(*sums.view(4, classes, bins))


@metric(top_label=True)
def overconfidence(
    probs: Any = None, labels: Any = None, bins: int = 15, scheme: Scheme = "width", **given: Unpack[Given]
) -> float | Grouped:
    """Σ_m share_m max(conf(B_m) − acc(B_m), 0): the part of ECE from over-confident bins.

    ECE = overconfidence + underconfidence. Keywords as in `ece`.
    """
    return _one_sided(-1.0, probs, labels, bins, scheme, **given)


@metric(top_label=True)
def underconfidence(
    probs: Any = None, labels: Any = None, bins: int = 15, scheme: Scheme = "width", **given: Unpack[Given]
) -> float | Grouped:
    """Σ_m share_m max(acc(B_m) − conf(B_m), 0): the part of ECE from under-confident bins."""
    return _one_sided(1.0, probs, labels, bins, scheme, **given)


def _one_sided(
    sign: float,
    probs: Any,
    labels: Any,
    bins: int,
    scheme: Scheme,
    **given: Unpack[Given],
) -> float | Grouped:
    def core(q: Predictions) -> float:
        sums = _table(q, bins, scheme)
        return (sums.share * (sign * sums.gap).clamp(min=0)).sum().item()

    return evaluate(core, probs, labels, **given)
