"""The numbers behind a reliability diagram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from calibrant.metrics.bins import Scheme, bin_edges, bin_sums
from calibrant.metrics.predictions import InputKeywords, read


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
    probs: Any = None,
    labels: Any = None,
    bins: int = 15,
    scheme: Scheme = "width",
    **keywords: Unpack[InputKeywords],
) -> ReliabilityBins:
    """Limits, share of the sample, mean confidence and accuracy of each bin.

    Keywords are as in `ece`, without groups.
    """
    p = read(probs, labels, **keywords)
    upper = bin_edges(p.confidence, bins, scheme, p.weight)
    sums = bin_sums(p.confidence, p.correct, p.weight, upper, scheme)
    lower = torch.cat([upper.new_zeros(1), upper[:-1]])
    effective = sums.weight**2 / sums.weight_sq.where(sums.weight_sq > 0, 1.0)
    return ReliabilityBins(
        lower.double(),
        upper.double(),
        sums.share,
        effective,
        sums.confidence / sums.weight,
        sums.correct / sums.weight,
    )
