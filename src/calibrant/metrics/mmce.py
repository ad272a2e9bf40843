"""Maximum mean calibration error: a kernel distance between confidence and correctness."""

from __future__ import annotations

from typing import Any, Unpack

import torch

from calibrant.base.settings import check_number
from calibrant.metrics.predictions import Grouped, MetricKeywords, Predictions, evaluate, metric

_SMALLEST_WIDTH = 1 / 600  # exp(1/width) must fit into float64


@metric(top_label=True)
def mmce(
    probs: Any = None, labels: Any = None, width: float = 0.4, **keywords: Unpack[MetricKeywords]
) -> float | Grouped:
    """Maximum mean calibration error (Kumar, Sarawagi & Jain 2018). ::

        MMCE² = (1/n²) Σ_i Σ_j (c_i − r_i)(c_j − r_j) k(r_i, r_j),   k(r, r') = exp(−|r − r'| / width)

    r is the confidence, and c says whether the prediction was right. The width 0.4 is the authors'. This is the plain
    estimator (V-statistic), not the weighted form that the paper trains with (:func:`calibrant.losses.mmce`). Sampling
    noise biases it upwards: compare it with its `noise_floor`. In one dimension the double sum of a Laplacian kernel is
    a single pass over the sorted confidences, so it takes O(n log n). Other arguments and the result are as in `ece`.
    """
    if not _SMALLEST_WIDTH <= check_number("width", width) < float("inf"):
        raise ValueError(f"width must be finite and at least 1/600; got {width}.")
    return evaluate(lambda q: _mmce(q, float(width)), probs, labels, **keywords)


def _mmce(p: Predictions, width: float) -> float:
    confidence, order = torch.sort(p.confidence.double(), stable=True)
    gap = (p.correct.double() - p.confidence.double())[order]
    weight = torch.ones_like(gap) if p.weight is None else p.weight.double()[order]
    gap = gap * weight / weight.sum()
    # Σ_{j<i} g_j exp(−(r_i − r_j)/w) = exp(−r_i/w) · Σ_{j<i} g_j exp(r_j/w), a running sum
    grown = gap * torch.exp(confidence / width)
    before = torch.cumsum(grown, 0) - grown
    square = (gap * gap).sum() + 2 * (gap * torch.exp(-confidence / width) * before).sum()
    return square.clamp_min(0).sqrt().item()
