"""The normal limit of the gaps of binned calibration errors, and two bounds that follow from it.

A binned error is a norm ‖g‖ of the vector of gaps. The sample gives ĝ = g + e, where e is nearly normal and independent
over the bins. Two bounds hold for every g: ‖ĝ‖ − ‖g‖ ≤ ‖e‖, and ‖ĝ‖ − ‖g‖ ≥ ⟨u, e⟩ with u the dual vector of g.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.metrics._resampling import new_generator
from calibrant.metrics.bins import BinSums, Norm


def _noise(sums: BinSums) -> tuple[Tensor, Tensor]:
    """Share and standard deviation of the gap of each bin that is not empty."""
    filled = sums.weight > 0
    weight = sums.weight[filled]
    n = weight**2 / sums.weight_sq[filled]
    rate = (sums.correct[filled] / weight * n + 1) / (n + 2)
    return sums.share[filled], (rate * (1 - rate) / n).sqrt()


def noise_norms(sums: BinSums, norm: Norm, seed: int = 0, draws: int = 20_000) -> Tensor:
    """Draws of ‖e‖. The seed is fixed by default because the draws approximate an integral."""
    share, sd = _noise(sums)
    generator = new_generator(seed, sd.device)
    noise = torch.randn(draws, len(sd), generator=generator, dtype=torch.float64, device=sd.device) * sd
    if norm == "l1":
        return (noise.abs() * share).sum(dim=1)
    if norm == "l2":
        return (noise**2 * share).sum(dim=1).sqrt()
    return noise.abs().amax(dim=1)


def dual_deviation(sums: BinSums, norm: Norm) -> float:
    """The largest standard deviation of ⟨u, e⟩ over the unit vectors u of the dual norm."""
    share, sd = _noise(sums)
    if norm == "l1":
        return (share * sd).square().sum().sqrt().item()
    return (share.sqrt() * sd if norm == "l2" else sd).amax().item()
