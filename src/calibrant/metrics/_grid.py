"""Gaussian smoothing on [0, 1] with reflection at both ends, through a fine grid and the cosine transform."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.fft import dct
from scipy.signal import fftconvolve
from torch import Tensor

from calibrant.metrics._bins import CHUNK, histogram

# Cells of the grid on which the sample is placed; its node spacing, 1.5e-5, is far below any useful
# bandwidth.
CELLS = 1 << 16
# The smallest bandwidth that the grid resolves.
MIN_BANDWIDTH = 8 / CELLS


def place(position: Tensor, values: Callable[[slice], tuple[Tensor, ...]], kinds: int = 1) -> Tensor:
    """Put Σ values of each kind on the nodes 0, 1/N, .., 1, shape (kinds, N + 1).

    `values` gives, for a piece of the sample, one float64 tensor per kind: reading in pieces bounds the
    memory. A value between two nodes is shared linearly, which keeps its mass and its mean position. Points
    at exactly 0 and 1 sit on the end nodes with their whole mass. The result is small, and on the CPU.
    """
    grid = torch.zeros(kinds, CELLS + 2, dtype=torch.float64, device=position.device)
    for start in range(0, len(position), CHUNK):
        rows = slice(start, start + CHUNK)
        scaled = position[rows].double() * CELLS
        left = scaled.to(torch.int32)
        fraction = scaled - left
        for row, value in zip(grid, values(rows), strict=True):
            right = value * fraction
            row += histogram(left, CELLS + 2, value - right)
            row[1:] += histogram(left, CELLS + 1, right)
    return grid[:, : CELLS + 1].cpu()


def cosine_coefficients(nodes: Tensor) -> Tensor:
    """a_k = Σ_j mass_j cos(πk t_j) over the nodes t_j = j/N, k = 0..N."""
    halved = nodes.clone()
    halved[..., 1:-1] /= 2  # the transform counts inner nodes twice
    return _cosine_transform(halved)


def _cosine_transform(values: Tensor) -> Tensor:
    """y_k = x_0 + (−1)^k x_N + 2 Σ_j x_j cos(πkj/N), the DCT-I; scipy's is faster than torch's FFT."""
    return torch.from_numpy(dct(values.numpy(), type=1, axis=-1))


def smooth(coefficients: Tensor, bandwidth: float) -> Tensor:
    """Σ_i mass_i K(t, c_i) on a grid of t with spacing well below the bandwidth, ends included.

    K is the Gaussian kernel reflected at 0 and 1 (all images). Its cosine series is 1 + 2 Σ_k
    exp(−(πkσ)²/2) cos(πk t) cos(πk c), the heat kernel with closed ends: no mass is lost at the boundary.
    """
    cells = min(CELLS, max(1 << 10, 1 << math.ceil(math.log2(64 / bandwidth))))
    modes = torch.arange(cells + 1, dtype=torch.float64)
    # f(t_j) = a_0 + 2 Σ_k a_k cos(πkj/N); the last mode, counted once instead of twice, is damped to nothing
    return _cosine_transform(coefficients[..., : cells + 1] * torch.exp(-((math.pi * bandwidth * modes) ** 2) / 2))


def integrate(values: Tensor) -> Tensor:
    """∫_0^1 by the trapezoidal rule over equally spaced values."""
    return (values.sum(dim=-1) - (values[..., 0] + values[..., -1]) / 2) / (values.shape[-1] - 1)


def integrate_abs(values: Tensor) -> Tensor:
    """∫_0^1 |f| for f linear between equally spaced values: exact also in cells where f changes sign."""
    a, b = values[..., :-1], values[..., 1:]
    height = a.abs() + b.abs()
    crossing = (a**2 + b**2) / height.where(height > 0, 1.0)
    return (height.where(a * b >= 0, crossing) / 2).sum(dim=-1) / (values.shape[-1] - 1)


def gaussian_sums(nodes: Tensor, bandwidth: float) -> Tensor:
    """Σ_i mass_i exp(−(t − c_i)² / 2σ²) at every node t, without reflection."""
    distance = np.arange(-CELLS, CELLS + 1) / CELLS
    kernel = np.exp(-(distance**2) / (2 * bandwidth**2))
    sums = fftconvolve(nodes.numpy(), kernel[None], axes=-1)
    return torch.from_numpy(sums[..., CELLS : 2 * CELLS + 1].copy())


def interpolate(values: Tensor, position: Tensor) -> Tensor:
    """Linear interpolation of values at the nodes."""
    scaled = position.double() * CELLS
    left = scaled.long().clamp_(max=CELLS - 1)
    fraction = scaled - left
    return values[left] * (1 - fraction) + values[left + 1] * fraction
