"""Kernel-weighted means of a batch: all pairs at once, or in blocks of rows with memory that does not grow with n²."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

# The most pairs of one block, whatever the number of rows: they fit into a processor's cache, or keep a GPU busy.
_PAIRS, _PAIRS_ON_GPU = 1 << 18, 1 << 24


def kernel_means(
    points: Tensor, values: Tensor, bandwidth: float | Tensor, weights: Tensor | None = None, *, rows: int = 1024
) -> Tensor:
    """π̂(z_i) = Σ_j w_j π_j K(z_i, z_j) / Σ_j w_j K(z_i, z_j): Eq. (12) of the second paper.

    The points z are n numbers of order 1, and K is the Gaussian of Eq. (6). `bandwidth` is a number or a 0-d tensor.
    The means can be differentiated in all arguments. The mean is 0 at a point of weight 0 that is far from all points
    with a weight.

    With more than `rows` points, blocks of at most `rows` rows are computed one after the other. The first derivative
    recomputes them. The second derivative is also correct, but keeps all pairs.
    """
    n, limits = points.shape[0], torch.finfo(points.dtype)
    width = bandwidth if isinstance(bandwidth, Tensor) else points.new_full((), min(bandwidth, limits.max))
    # A narrower kernel would have the same values, because it is 0 between any two different points.
    width = width.to(points.dtype).clamp_min(16 * limits.tiny**0.5)
    if n <= rows:
        return _block(points, slice(None), width, weights).means(values)
    pairs = _PAIRS if points.device.type == "cpu" else _PAIRS_ON_GPU
    return _KernelMeans.apply(points, values, width, weights, min(rows, max(1, pairs // n)))


class _KernelMeans(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(points: Tensor, values: Tensor, width: Tensor, weights: Tensor | None, rows: int) -> Tensor:
        # Written in place: results of many blocks, kept apart, would keep the memory of the blocks from being reused.
        means = torch.zeros_like(points * values * width if weights is None else points * values * width * weights)
        for block_rows in _slices(points, rows):
            means[block_rows] = _block(points, block_rows, width, weights).means(values)
        return means

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        points, values, width, weights, ctx.rows = inputs
        ctx.save_for_backward(points, values, width, weights, output)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        points, values, width, weights, means = ctx.saved_tensors
        blank = torch.zeros_like(slope * means)
        for_points, for_values, for_width = blank.clone(), blank.clone(), blank.sum()
        for_weights = None if weights is None else blank.clone()
        for block_rows in _slices(points, ctx.rows):
            block = _block(points, block_rows, width, weights)
            share = (slope[block_rows] / block.total).unsqueeze(1) * block.kernel  # slope_i·K_ij / Σ_k w_k K_ik
            gap = share * (values - means[block_rows].unsqueeze(1))
            if for_weights is not None:
                for_weights += gap.sum(0)  # ∂/∂w_j
                share, gap = share * weights, gap * weights
            for_values += share.sum(0)  # ∂/∂π_j
            pull = gap * block.distance / width.square()  # gap is ∂/∂ log K(z_i, z_j)
            for_points += pull.sum(0)
            for_points[block_rows] -= pull.sum(1)
            for_width += (pull * block.distance).sum() / width
        return for_points, for_values, for_width, for_weights, None


class _PairBlock(NamedTuple):
    """Some rows of all pairs: distances z_i − z_j, kernels, kernels times weights, and the sums of the latter."""

    distance: Tensor
    kernel: Tensor
    weighted: Tensor
    total: Tensor

    def means(self, values: Tensor) -> Tensor:
        """A sum instead of a matrix product, which autocast would compute in half precision."""
        return (self.weighted * values).sum(1) / self.total


def _block(points: Tensor, rows: slice, width: Tensor, weights: Tensor | None) -> _PairBlock:
    distance = points[rows].unsqueeze(1) - points
    # Eq. (6), as a power of two: on a processor, exp is ten times slower where its values are almost 0.
    kernel = torch.exp2(distance.square() * (-0.5 * math.log2(math.e) / width.square()))
    weighted = kernel if weights is None else kernel * weights
    total = weighted.sum(1)  # at least w_i, by the self term
    return _PairBlock(distance, kernel, weighted, total if weights is None else torch.where(total > 0, total, 1))


def _slices(points: Tensor, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, points.shape[0], rows))
