"""Kernel estimates of the calibration error: SECE, the KDE-based ECE of order d, and MMCE.

Equations are those of "Towards Unbiased Calibration using Meta-Regularization".
"""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.base.settings import check_choice, check_number
from calibrant.metrics._grid import (
    MIN_BANDWIDTH,
    cosine_coefficients,
    gaussian_sums,
    integrate,
    integrate_abs,
    interpolate,
    place,
    smooth,
)
from calibrant.metrics.predictions import Grouped, MetricKeywords, Predictions, evaluate, metric, without_zero_weights

# Above this many points SECE uses the grid: O(n) instead of O(n²), with an error of about 1e-6.
PAIRWISE_LIMIT = 2048
_GRID_BANDWIDTH = 1e-3
PAIRS_AT_ONCE = 1 << 22
_SMALLEST_WIDTH = 1 / 600  # exp(1/width) must fit into float64


def nadaraya_watson(
    points: Tensor,
    values: Tensor,
    bandwidth: float,
    *,
    queries: Tensor | None = None,
    weight: Tensor | None = None,
    leave_out: Tensor | None = None,
) -> Tensor:
    """π̂(z) = Σ_j π_j K(z, z_j) / Σ_j K(z, z_j) at each query, K the Gaussian of Eq. (6): Eq. (12).

    A pure, differentiable function of tensors. `points` is (n, L) or (n,), `values` (n,) or (n, k). `queries` has any
    number of rows; the default is the points themselves. The quotient is a softmax of −|z − z_j|² / 2h², so it is
    defined at any distance and bandwidth. `leave_out` names, for each query, the one point that it must not use.
    """
    points = points[:, None] if points.ndim == 1 else points
    at = points if queries is None else (queries[:, None] if queries.ndim == 1 else queries)
    # |a − b|² by differences in each coordinate: no cancellation, and the gradient at a = b is 0, not NaN.
    square = torch.zeros(len(at), len(points), dtype=points.dtype, device=points.device)
    for a, b in zip(at.unbind(dim=1), points.unbind(dim=1), strict=True):
        square = square + (a[:, None] - b[None, :]) ** 2
    scores = -square / (2 * bandwidth**2)  # log of Eq. (6)
    if weight is not None:
        scores = scores + weight.log()
    if leave_out is not None:
        scores = scores.scatter(1, leave_out[:, None], -torch.inf)
    return torch.softmax(scores, dim=1) @ values.to(scores.dtype)


@metric(top_label=True)
def sece(
    probs: Any = None,
    labels: Any = None,
    bandwidth: float = 0.01,
    *,
    leave_one_out: bool = False,
    **keywords: Unpack[MetricKeywords],
) -> float | Grouped:
    """Smooth expected calibration error of "Towards Unbiased Calibration using Meta-Regularization". ::

        SECE = (1/M) Σ_i |SACC(i) − conf(i)|                                    Eq. (7)
        SACC(i) = Σ_j π(j) K(z_i, z_j) / Σ_j K(z_i, z_j)                        π̂ of Eq. (12)
        K(z, z') = exp(−(z − z')² / 2h²),  h = `bandwidth`                      Eq. (6)

    Deviations from the paper: Eq. (5) as printed has π(x_i) instead of π(x_j) and is not normalised, so SACC is the
    normalised form of Eq. (12). π says whether the prediction was right; the paper's differentiable substitute is not
    needed here. The self term j = i is kept, as in Eq. (12); `leave_one_out=True` drops it. Despite its name this is
    not smECE (`smooth_ece`). On small samples with narrow kernels it measures mostly noise: compare it with its
    `noise_floor`. For training, use :func:`calibrant.losses.sece`, which is differentiable.

    Up to 2,048 predictions all pairs are summed. Beyond that, with the self term and h ≥ 0.001, the sums are computed
    on a fine grid (linear time, error about 1e-6). Other arguments and the result are as in `ece`.
    """
    h = _check_bandwidth(bandwidth)
    return evaluate(lambda q: _sece(q, h, leave_one_out), probs, labels, **keywords)


def _check_bandwidth(bandwidth: float) -> float:
    if not 0 < check_number("bandwidth", bandwidth) < math.inf:
        raise ValueError(f"bandwidth must be positive and finite; got {bandwidth}.")
    return float(bandwidth)


def _sece(p: Predictions, bandwidth: float, leave_one_out: bool) -> float:
    p = without_zero_weights(p)
    z, hit = p.confidence.double(), p.correct.double()
    if len(p) > PAIRWISE_LIMIT and not leave_one_out and bandwidth >= _GRID_BANDWIDTH:
        nodes = place(z, lambda rows: _mass_and_hits(p, rows), kinds=2)
        mass, hits = gaussian_sums(nodes, bandwidth)
        # Far from every point both sums are rounding noise. No point reads those nodes.
        rate = hits / np.where(mass > 0, mass, 1.0)
        return p.mean((interpolate(rate, z) - z).abs())
    return p.mean((_at_own_points(z, hit, bandwidth, p.weight, leave_one_out) - z).abs())


def _mass_and_hits(p: Predictions, rows: slice) -> tuple[Tensor, Tensor]:
    hit = p.correct[rows].double()
    return (torch.ones_like(hit), hit) if p.weight is None else (p.weight[rows], p.weight[rows] * hit)


def _at_own_points(z: Tensor, values: Tensor, h: float, weight: Tensor | None, leave_one_out: bool) -> Tensor:
    """Nadaraya–Watson at the points themselves, in pieces of bounded memory."""
    if leave_one_out and len(z) < 2:
        raise ValueError("leave_one_out=True needs at least 2 predictions; got 1.")
    point_indices = torch.arange(len(z), device=z.device)
    pieces = []
    for rows in point_indices.split(max(1, PAIRS_AT_ONCE // len(z))):
        left_out = rows if leave_one_out else None
        pieces.append(nadaraya_watson(z, values, h, queries=z[rows], weight=weight, leave_out=left_out))
    return torch.cat(pieces)


@metric()
def kde_ece(
    probs: Any = None,
    labels: Any = None,
    d: float = 1,
    mode: Literal["top", "full"] = "top",
    bandwidth: float | None = None,
    *,
    leave_one_out: bool = True,
    **keywords: Unpack[MetricKeywords],
) -> float | Grouped:
    """KDE-based calibration error of order d (Zhang et al. 2020), Eq. (8). ::

        ECE^d = ∫ ‖z − π̂(z)‖_d^d p̂(z) dz

    p̂ and π̂ are the kernel estimates of Eq. (12) with a Gaussian K. As in Eq. (8), no d-th root is taken.

    mode="top": z is the confidence of the predicted class. The kernel is reflected at 0 and 1, so that p̂ has mass 1 on
    [0, 1], and the integral is computed numerically. The default bandwidth is 1.06 s n^(−1/5) (Silverman), with s the
    standard deviation of the confidence, and at least 0.001.

    mode="full": z is the whole vector of C class probabilities, and π̂ the vector of class frequencies near it. This is
    the strongest sense of calibration. The integral over the simplex is replaced by a mean over the sample, as in SECE.
    The self term is dropped unless `leave_one_out=False`, because with many classes a point's nearest neighbour is the
    point itself. The default bandwidth is 1.06 s n^(−1/(C+3)), with s the mean standard deviation over classes. Time is
    O(n² C).

    Other arguments and the result are as in `ece`.
    """
    if not 1 <= d < math.inf:
        raise ValueError(f"d, the order, must be at least 1 and finite; got {d}.")
    check_choice("mode", mode, ("top", "full"))
    h = None if bandwidth is None else _check_bandwidth(bandwidth)
    if h is not None and mode == "top" and h < MIN_BANDWIDTH:
        raise ValueError(f"bandwidth must be at least {MIN_BANDWIDTH:.3g}, the grid's resolution; got {h}.")

    def core(p: Predictions) -> float:
        return _kde_top(p, d, h) if mode == "top" else _kde_full(p, d, h, leave_one_out)

    return evaluate(core, probs, labels, matrix_only=mode == "full", **keywords)


def _silverman(z: Tensor, weight: Tensor | None, dimensions: int) -> float:
    w = torch.ones(len(z), dtype=torch.float64, device=z.device) if weight is None else weight
    share = (w / w.sum())[:, None]
    z = z.double().view(len(z), -1)
    sd = (share * (z - (share * z).sum(dim=0)) ** 2).sum(dim=0).sqrt().mean().item()
    effective = (w.sum() ** 2 / (w**2).sum()).item()
    return max(1.06 * sd * effective ** (-1 / (dimensions + 4)), 1e-3)


def _kde_top(p: Predictions, d: float, bandwidth: float | None) -> float:
    h = _silverman(p.confidence, p.weight, 1) if bandwidth is None else bandwidth
    nodes = place(p.confidence, lambda rows: _mass_and_hits(p, rows), kinds=2)
    total = len(p) if p.weight is None else p.weight.sum().item()
    density, hits = smooth(cosine_coefficients(nodes / total), h)
    z = np.linspace(0, 1, len(density))
    if d == 1:
        return integrate_abs(z * density - hits)
    filled = density > 1e-12  # elsewhere the quotient is rounding noise without weight
    gap = np.abs(z - np.divide(hits, density, out=z.copy(), where=filled))
    return integrate(gap**d * density)


def _kde_full(p: Predictions, d: float, bandwidth: float | None, leave_one_out: bool) -> float:
    p = without_zero_weights(p)
    assert p.probs is not None
    assert p.labels is not None
    z = p.probs.double()
    h = _silverman(z, p.weight, z.shape[1] - 1) if bandwidth is None else bandwidth
    one_hot = torch.nn.functional.one_hot(p.labels, z.shape[1]).double()
    frequency = _at_own_points(z, one_hot, h, p.weight, leave_one_out)
    return p.mean(((z - frequency).abs() ** d).sum(dim=1))  # Eq. (8), p̂ the sample


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
