"""Gaussian smoothing on [0, 1] with reflection at both ends, by a cosine transform on a fine grid."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.fft import dct
from scipy.signal import fftconvolve
from torch import Tensor

from calibrant.metrics.bins import CHUNK

# Number of grid cells. The node spacing, 1.5e-5, is far below any useful bandwidth.
CELLS = 1 << 16
# The smallest bandwidth that the grid resolves.
MIN_BANDWIDTH = 8 / CELLS


def place(position: Tensor, values: Callable[[slice], tuple[Tensor, ...]], kinds: int = 1) -> np.ndarray:
    """Put Σ values of each kind on the nodes 0, 1/N, .., 1, shape (kinds, N + 1).

    `values` returns one float64 tensor per kind for a slice of the sample; reading in slices bounds the memory. A value
    between two nodes is divided linearly between them, which keeps its mass and its mean position. Points at exactly 0
    and 1 lie on the end nodes with their whole mass. The result is a small numpy array for data on any device.
    """
    grid = torch.from_numpy(np.zeros((kinds, CELLS + 2))).to(position.device)
    for start in range(0, len(position), CHUNK):
        rows = slice(start, start + CHUNK)
        scaled = position[rows].double() * CELLS
        left = scaled.to(torch.int32)
        fraction = scaled - left
        for row, value in zip(grid, values(rows), strict=True):
            right = value * fraction
            row.index_add_(0, left, value - right)
            row[1:].index_add_(0, left, right)
    return grid[:, : CELLS + 1].cpu().numpy()


def cosine_coefficients(nodes: np.ndarray) -> np.ndarray:
    """a_k = Σ_j mass_j cos(πk t_j) over the nodes t_j = j/N, k = 0..N."""
    halved = nodes.copy()
    halved[..., 1:-1] /= 2  # the DCT-I counts inner nodes twice
    return dct(halved, type=1, axis=-1)


def smooth(coefficients: np.ndarray, bandwidth: float) -> np.ndarray:
    """Σ_i mass_i K(t, c_i) on a grid of t with spacing well below the bandwidth, ends included.

    K is the Gaussian kernel reflected at 0 and 1 (all images). Its cosine series is
    1 + 2 Σ_k exp(−(πkσ)²/2) cos(πk t) cos(πk c), the heat kernel with reflecting ends, so no mass is lost.
    """
    cells = min(CELLS, 1 << max(10, math.ceil(math.log2(64 / bandwidth))))
    damping = np.exp(-((math.pi * bandwidth * np.arange(cells + 1)) ** 2) / 2)
    # f(t_j) = a_0 + 2 Σ_k a_k cos(πkj/N); the DCT-I counts the last mode once, but its factor is practically 0
    return dct(coefficients[..., : cells + 1] * damping, type=1, axis=-1)


def integrate(values: np.ndarray) -> float:
    """∫_0^1 by the trapezoidal rule over equally spaced values."""
    return float(values.sum() - (values[0] + values[-1]) / 2) / (len(values) - 1)


def integrate_abs(values: np.ndarray) -> float:
    """∫_0^1 |f| for f linear between equally spaced values; exact in cells where f changes sign too."""
    a, b = values[:-1], values[1:]
    height = np.abs(a) + np.abs(b)
    crossing = (a**2 + b**2) / np.where(height > 0, height, 1.0)
    return float(np.where(a * b >= 0, height, crossing).sum()) / (2 * (len(values) - 1))


def gaussian_sums(nodes: np.ndarray, bandwidth: float) -> np.ndarray:
    """Σ_i mass_i exp(−(t − c_i)² / 2σ²) at every node t, without reflection."""
    distance = np.arange(-CELLS, CELLS + 1) / CELLS
    kernel = np.exp(-(distance**2) / (2 * bandwidth**2))
    return fftconvolve(nodes, kernel[None], axes=-1)[..., CELLS : 2 * CELLS + 1]


def interpolate(values: np.ndarray, position: Tensor) -> Tensor:
    """Interpolate values at the nodes linearly, at any positions."""
    table = torch.from_numpy(np.ascontiguousarray(values)).to(position.device)
    scaled = position.double() * CELLS
    left = scaled.long().clamp_(max=CELLS - 1)
    fraction = scaled - left
    return table[left] * (1 - fraction) + table[left + 1] * fraction
