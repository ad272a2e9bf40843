"""Class-wise ECE: the calibration error of the probability of every class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from calibrant.base.inputs import Array, like
from calibrant.base.settings import check_choice
from calibrant.metrics.binned import bin_table
from calibrant.metrics.bins import CHUNK, BinSums, Norm, Scheme, bin_edges, bin_index, calibration_error, histogram
from calibrant.metrics.predictions import Grouped, MetricKeywords, Predictions, evaluate, metric, read


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
    **keywords: Unpack[MetricKeywords],
) -> float | Grouped | Array:
    """Class-wise ECE, (1/C) Σ_c ECE of p_c against 1[y = c] (Nixon et al. 2019; Kull et al. 2019).

    `average=None` returns the C values instead of their mean, in the kind of array that was given. Other arguments are
    as in `ece`. Pairs are not accepted, since the probability of every class is judged.
    """
    check_choice("average", average, ("macro", None))
    if average is None:
        if keywords.pop("groups", None) is not None:
            raise ValueError("average=None cannot be combined with groups; evaluate one group at a time.")
        p = read(probs, labels, matrix_only=True, **keywords)  # type: ignore[misc]
        return like(_classwise(p, bins, scheme, norm, debias), probs)

    def core(p: Predictions) -> float:
        return _classwise(p, bins, scheme, norm, debias).mean().item()

    return evaluate(core, probs, labels, matrix_only=True, **keywords)


def _classwise(p: Predictions, bins: int, scheme: Scheme, norm: Norm, debias: bool) -> Tensor:
    assert p.probs is not None
    assert p.labels is not None
    if scheme == "width":
        return calibration_error(width_sums(p.probs, p.labels, p.weight, bins), norm, debias)
    values = []
    for c, column in enumerate(p.probs.unbind(dim=1)):
        class_predictions = Predictions(column.contiguous(), p.labels == c, p.weight)
        values.append(calibration_error(bin_table(class_predictions, bins, scheme), norm, debias))
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


def classwise_of_draws(
    p: Predictions, draws: Iterable[Tensor], bins: int = 15, norm: Norm = "l1", debias: bool = False
) -> Tensor:
    """`classwise_ece` of the same probabilities for several draws of labels; equal-width bins are computed once."""
    assert p.probs is not None
    assert p.labels is not None
    sums = width_sums(p.probs, p.labels, p.weight, bins)
    edges = bin_edges(p.probs, bins, "width")
    values = []
    for labels in draws:
        label_probs = p.probs.gather(1, labels[:, None])[:, 0]
        index = bin_index(label_probs, edges, "width") + labels * len(edges)
        hits = histogram(index, sums.correct.numel(), p.weight).view(sums.correct.shape)
        values.append(calibration_error(replace(sums, correct=hits), norm, debias).mean())
    return torch.stack(values).cpu()
