"""Kernel-weighted means of a batch in blocks of rows, with memory of order n instead of n²."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def kernel_means(points: Tensor, values: Tensor, bandwidth: float, log_weights: Tensor, rows: int) -> Tensor:
    """π̂(z_i) = Σ_j w_j π_j K(z_i, z_j) / Σ_j w_j K(z_i, z_j): Eq. (12) of the second paper.

    The points z have shape (n,), and K is a Gaussian.

    At most ``rows × n`` pairs exist at a time. The first derivative recomputes them block by block. The second
    derivative is also correct, but keeps all pairs.
    """
    return _KernelMeans.apply(points, values, log_weights, bandwidth, rows)


class _KernelMeans(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(points: Tensor, values: Tensor, log_weights: Tensor, bandwidth: float, rows: int) -> Tensor:
        blocks = _blocks(points, log_weights, bandwidth, rows)
        return torch.cat([share @ values for _, _, share in blocks])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        points, values, log_weights, ctx.bandwidth, ctx.rows = inputs
        ctx.save_for_backward(points, values, log_weights, output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        points, values, log_weights, means = ctx.saved_tensors
        for_points, for_values, for_scores = [], torch.zeros_like(values), torch.zeros_like(points)
        pulled = torch.zeros_like(points)
        for own, distance, share in _blocks(points, log_weights, ctx.bandwidth, ctx.rows):
            weight = slope[own, None] * share  # slope_i·P_ij, P_ij = ∂π̂_i/∂π_j
            for_values = for_values + weight.sum(0)
            score = weight * (values - means[own, None])  # ∂/∂ log K(z_i, z_j)
            for_scores = for_scores + score.sum(0)
            moved = score * distance / ctx.bandwidth**2
            for_points.append(-moved.sum(1))
            pulled = pulled + moved.sum(0)
        return torch.cat(for_points) + pulled, for_values, for_scores, None, None


def _blocks(points: Tensor, log_weights: Tensor, bandwidth: float, rows: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows, their distances z_i − z_j, and their kernel weights, which sum to 1 in each row."""
    for start in range(0, points.shape[0], rows):
        own = slice(start, start + rows)
        distance = points[own, None] - points
        yield own, distance, torch.softmax(log_weights - distance.square() / (2 * bandwidth**2), dim=1)  # Eq. (6)
