"""Inputs as a network likes them: each column of mean 0 and variance 1, with no value far out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LIMIT = 10.0
"""Standardised values are clipped to ±LIMIT: one wild value must not decide what the network does."""


class Scaling(NamedTuple):
    """``clip((x − mean)/scale, ±LIMIT)``. Columns that never varied have ``scale = inf`` and become 0."""

    mean: np.ndarray
    scale: np.ndarray

    def apply(self, inputs: np.ndarray) -> Tensor:
        """Standardised inputs, float32, whatever precision they came in."""
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is clipped
            values = (inputs.astype(np.float64) - self.mean) / self.scale
        values[:, np.isinf(self.scale)] = 0.0
        return torch.from_numpy(np.clip(values, -LIMIT, LIMIT).astype(np.float32))


def fit_scaling(inputs: np.ndarray, weights: np.ndarray | None = None) -> Scaling:
    """Weighted mean and standard deviation of each column.

    A column that holds one value tells nothing, and its network weights would stay as they were drawn: it is switched
    off (``scale = inf``), so that another value at prediction time cannot let them loose. Spread within rounding error
    of the mean counts as none.
    """
    unit = np.abs(inputs).max(axis=0).astype(np.float64)
    unit[unit == 0] = 1.0  # squares of columns near the ends of float64 would overflow or vanish
    values = inputs / unit
    share = None if weights is None else weights / weights.sum()
    mean = values.mean(axis=0) if share is None else share @ values
    squares = np.square(values - mean)
    deviation = np.sqrt(squares.mean(axis=0) if share is None else share @ squares)
    noise = len(inputs) * np.finfo(np.float64).eps * np.abs(mean)
    with np.errstate(over="ignore", under="ignore"):
        scale = deviation * unit
    constant = (deviation <= noise) | (scale == 0)
    return Scaling(mean * unit, np.where(constant, np.inf, scale))
