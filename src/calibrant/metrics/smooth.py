"""smECE, the smooth calibration error of Błasiok & Nakkiran 2023."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from calibrant.base.settings import check_number
from calibrant.metrics._grid import MIN_BANDWIDTH, cosine_coefficients, integrate_abs, place, smooth
from calibrant.metrics.predictions import Grouped, MetricKeywords, Predictions, evaluate, metric


@metric(top_label=True)
def smooth_ece(
    probs: Any = None, labels: Any = None, bandwidth: float | None = None, **keywords: Unpack[MetricKeywords]
) -> float | Grouped:
    """Smooth calibration error, smECE (Błasiok & Nakkiran 2023, "Smooth ECE").

    With K_σ the Gaussian kernel on [0, 1], reflected at both ends, ::

        smECE_σ = ∫_0^1 |E[(correct − confidence) K_σ(t, confidence)]| dt
        smECE   = σ*, the one σ with smECE_σ = σ

    There are no bins and no free parameter. The kernel is summed over all its mirror images, so that a prediction at
    exactly 0 or 1 keeps its whole mass. relplot drops half of the mass there; otherwise it agrees up to its coarser
    grid.

    The sample is placed once on a grid of 65,537 nodes and smoothed there by a cosine transform. Time is linear in n,
    and the extra memory is constant. Values below about 1e-4 are not resolved.

    `bandwidth` is a fixed σ instead of σ*; the result is then smECE_σ. Other arguments and the result are as in `ece`.
    """
    if bandwidth is not None and not MIN_BANDWIDTH <= check_number("bandwidth", bandwidth) < np.inf:
        raise ValueError(
            f"bandwidth must be finite and at least {MIN_BANDWIDTH:.3g}, the grid's resolution; got {bandwidth}."
        )
    return evaluate(lambda q: _smece(q, bandwidth), probs, labels, **keywords)


def _smece(p: Predictions, bandwidth: float | None) -> float:
    coefficients = residual_coefficients(p)

    def at(sigma: float) -> float:
        return integrate_abs(smooth(coefficients, sigma))

    if bandwidth is not None:
        return at(bandwidth)
    # smECE_σ does not increase with σ and is at most 1, so σ − smECE_σ changes sign once in (0, 1]. The
    # search for the bracket starts from above because large bandwidths need few nodes.
    low = 1.0
    while (value := at(low)) < low:
        if low == MIN_BANDWIDTH:
            return value
        low = max(low / 2, MIN_BANDWIDTH)
    if value == low:
        return value
    return at(brentq(lambda sigma: sigma - at(sigma), low, 2 * low, xtol=1e-10))


def residual_coefficients(p: Predictions) -> np.ndarray:
    """Cosine coefficients of the (weighted) mean residual as a measure on [0, 1]."""

    def residual(rows: slice) -> tuple[Tensor]:
        value = p.correct[rows].double() - p.confidence[rows]
        return (value if p.weight is None else value * p.weight[rows],)

    total = len(p) if p.weight is None else p.weight.sum().item()
    return cosine_coefficients(place(p.confidence, residual)[0] / total)


def smoothed_moments(p: Predictions, sigma: float) -> tuple[np.ndarray, ...]:
    """Residual, density, variance of the residual if calibrated, and Σ K² / n², each on the smoothing grid."""
    c = p.confidence.double()
    weight = torch.ones_like(c) if p.weight is None else p.weight
    weight = weight / weight.sum()
    bernoulli = c * (1 - c)

    def masses(rows: slice) -> tuple[Tensor, ...]:
        w = weight[rows]
        return w * (p.correct[rows].double() - c[rows]), w, w**2 * bernoulli[rows], w**2

    coefficients = cosine_coefficients(place(p.confidence, masses, kinds=4))
    residual, density = smooth(coefficients[:2], sigma)
    # φ_σ² is φ_{σ/√2} / (2σ√π): the square of the kernel is a kernel again. Each pair of images at an end adds a
    # product of a factor in t and a factor in c.
    squared = smooth(coefficients[2:], sigma / math.sqrt(2))
    step = (squared.shape[-1] - 1) // (density.shape[-1] - 1)
    squared = squared[..., ::step] / (2 * sigma * math.sqrt(math.pi))
    t = np.linspace(0, 1, density.shape[-1])
    for end in (0.0, 1.0):
        near = torch.exp(-((c - end) ** 2) / sigma**2) * weight**2
        sums = np.array([[(near * bernoulli).sum().item()], [near.sum().item()]])
        squared = squared + sums * np.exp(-((t - end) ** 2) / sigma**2) / (math.pi * sigma**2)
    variance, squares = np.maximum(squared, 0)
    return residual, np.maximum(density, 0), variance, squares
