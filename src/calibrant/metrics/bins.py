"""Bins (lo, hi] of confidence, and the four sums per bin that determine every binned metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.base.settings import check_choice, check_whole

Scheme = Literal["width", "mass"]
Norm = Literal["l1", "l2", "max"]

# Rows are binned in pieces. They fit into the cache, so memory does not grow with the sample. They are also too small
# for torch to split them over threads, which would make every small step wait for the slowest thread.
CHUNK = 1 << 15


@dataclass(frozen=True)
class BinSums:
    """Per bin: Σw, Σw², Σw·confidence and Σw·correct, each of shape (..., M), float64."""

    weight: Tensor
    weight_sq: Tensor
    confidence: Tensor
    correct: Tensor

    @property
    def gap(self) -> Tensor:
        """acc(B_m) − conf(B_m); zero in empty bins."""
        return (self.correct - self.confidence) / self.weight.where(self.weight > 0, 1.0)

    @property
    def share(self) -> Tensor:
        """|B_m| / n."""
        return self.weight / self.weight.sum(dim=-1, keepdim=True)


def bin_edges(confidence: Tensor, bins: int, scheme: Scheme, weight: Tensor | None = None) -> Tensor:
    """Upper edges of the bins, shape (M,), in the dtype of the confidence.

    Equal width: I_m = ((m−1)/M, m/M], Section 2.2 of Sanguin et al. 2024. Equal mass: the m-th edge is the smallest
    confidence with at least a share m/M of the sample at or below it. Equal confidences therefore share a bin in any
    order, and bins can be empty.
    """
    bins = check_whole("bins", bins)
    check_choice("scheme", scheme, ("width", "mass"))
    if scheme == "width":
        edges = torch.arange(1, bins + 1, dtype=torch.float64, device=confidence.device) / bins
        return edges.to(confidence.dtype)
    ordered, order = confidence.sort()
    if weight is None:
        ranks = torch.arange(1, bins + 1, dtype=torch.int64, device=confidence.device) * len(ordered)
        return ordered[(ranks + bins - 1).div(bins, rounding_mode="floor") - 1]
    mass = weight[order].cumsum(0)
    mass_limits = torch.arange(1, bins + 1, dtype=torch.float64, device=confidence.device) * mass[-1] / bins
    edges = ordered[torch.searchsorted(mass, mass_limits).clamp_(max=len(ordered) - 1)]
    edges[-1] = ordered[-1]
    return edges


def bin_index(confidence: Tensor, edges: Tensor, scheme: Scheme) -> Tensor:
    """Index of the bin (edges[m−1], edges[m]] of each confidence; 0 is in the first bin."""
    bins = len(edges)
    if scheme == "mass":
        return torch.bucketize(confidence, edges).clamp_(max=bins - 1)
    # Truncating the product never gives a bin that is too low, because rounding is monotone and keeps integers. On an
    # edge, or if the product was rounded up to one, it gives the bin above: compare with that bin's lower edge.
    index = (confidence * bins).to(torch.int32)
    lower = torch.cat([edges.new_full((1,), -1.0), edges])
    return index - (confidence <= lower.index_select(0, index)).to(torch.int32)


def histogram(index: Tensor, size: int, weight: Tensor | None) -> Tensor:
    """Σ weight per index, float64."""
    if index.device.type == "cpu":
        return torch.bincount(index, weight, minlength=size).double()
    # bincount has no deterministic mode on a GPU; index_add_ has one.
    ones = torch.ones_like(index, dtype=torch.float64) if weight is None else weight
    return ones.new_zeros(size).index_add_(0, index, ones)


def bin_sums(confidence: Tensor, correct: Tensor, weight: Tensor | None, edges: Tensor, scheme: Scheme) -> BinSums:
    """Sum over the sample in pieces; `confidence` and `correct` are 1-D."""
    bins = len(edges)
    sums = torch.zeros(4, bins, dtype=torch.float64, device=confidence.device)
    for start in range(0, len(confidence), CHUNK):
        rows = slice(start, start + CHUNK)
        conf, hit = confidence[rows], correct[rows]
        index = bin_index(conf, edges, scheme)
        if weight is None:
            # One integer count of (bin, correct) gives both Σ1 and Σcorrect.
            count = histogram(index * 2 + hit, 2 * bins, None).view(bins, 2)
            total = count.sum(dim=1)
            sums += torch.stack([total, total, histogram(index, bins, conf.double()), count[:, 1]])
        else:
            w = weight[rows]
            parts = (w, w * w, w * conf.double(), w * hit)
            sums += torch.stack([histogram(index, bins, part) for part in parts])
    return BinSums(*sums)


def calibration_error(sums: BinSums, norm: Norm, debias: bool) -> Tensor:
    """Calibration error from the sums, over the last axis; see `calibrant.metrics.ece` for the formulas."""
    check_choice("norm", norm, ("l1", "l2", "max"))
    share, gap = sums.share, sums.gap
    if not debias:
        if norm == "l1":
            return (share * gap.abs()).sum(dim=-1)  # Eq. (4), Sanguin et al. 2024
        if norm == "l2":
            return (share * gap**2).sum(dim=-1).sqrt()
        return gap.abs().amax(dim=-1)
    if norm == "max":
        raise ValueError("norm must be 'l1' or 'l2' with debias=True; got 'max', which has no such correction.")
    effective = sums.weight**2 / sums.weight_sq.where(sums.weight_sq > 0, 1.0)
    accuracy = sums.correct / sums.weight.where(sums.weight > 0, 1.0)
    spread = accuracy * (1 - accuracy)
    # One prediction does not show its own noise, so bins of one are left out, as in Kumar et al. 2019.
    noise_is_known = effective > 1 + 1e-9
    if norm == "l2":
        excess = gap**2 - spread / (effective - 1).where(noise_is_known, 1.0)  # Kumar et al. 2019, Definition 5.1
        return (share * excess.where(noise_is_known, 0.0)).sum(dim=-1).clamp(min=0).sqrt()
    sd = (spread / effective.where(noise_is_known, 1.0)).sqrt()
    corrected = 2 * gap.abs() - folded_normal_mean(gap, sd)
    return (share * corrected.where(noise_is_known, 0.0)).sum(dim=-1).clamp(min=0)


def folded_normal_mean(mean: Tensor, sd: Tensor) -> Tensor:
    """E|N(mean, sd²)|, also for sd = 0."""
    safe = sd.where(sd > 0, 1.0)
    ratio = mean / safe
    value = safe * (2 / torch.pi) ** 0.5 * torch.exp(-(ratio**2) / 2) + mean * torch.erf(ratio / 2**0.5)
    return value.where(sd > 0, mean.abs())
