"""Inputs as a network likes them: each column of mean 0 and variance 1, with no value far out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LIMIT = 10.0
"""Standardised values beyond ±LIMIT are drawn in: one wild value must not decide what the network does."""
FEW = 0.1
"""The greatest share of a column that may count as wild."""
_SPREADS = ((0.25, 1.349), (0.1, 2.563), (0.05, 3.290), (0.01, 4.653))
"""Lower quantiles, and how many standard deviations of a normal distribution lie between each and its upper one."""


class Scaling(NamedTuple):
    """``(x − mean)/scale``, drawn in beyond ±LIMIT. Columns that never varied have ``scale = inf`` and become 0."""

    mean: np.ndarray
    scale: np.ndarray

    def apply(self, inputs: np.ndarray) -> Tensor:
        """Standardised inputs, float32, whatever precision they came in."""
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is drawn in
            values = (inputs.astype(np.float64) - self.mean) / self.scale
        values[:, np.isinf(self.scale)] = 0.0
        return torch.from_numpy(drawn_in(values).astype(np.float32))


def drawn_in(values: np.ndarray) -> np.ndarray:
    """Values beyond ±LIMIT by the logarithm of their excess, and none beyond ±2·LIMIT: far, and still in order."""
    excess = np.maximum(np.abs(values) - LIMIT, 0.0)
    return np.clip(values, -LIMIT, LIMIT) + np.sign(values) * np.minimum(np.log1p(excess), LIMIT)


def fit_scaling(inputs: np.ndarray, weights: np.ndarray | None = None) -> Scaling:
    """Weighted mean and standard deviation of each column, without the pull of wild values.

    A sentinel such as 999 in one row of a thousand would widen the scale until all other values are next to equal, so
    values further than ``LIMIT`` robust deviations from the median count as that far (:func:`plausible`). Where there
    are none, these are the plain mean and deviation.

    A column that holds one value tells nothing, and its network weights would stay as they were drawn: it is switched
    off (``scale = inf``), so that another value at prediction time cannot let them loose. Spread within rounding error
    of the mean counts as none.
    """
    inputs = np.clip(inputs, *plausible(inputs, weights))
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


def plausible(inputs: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest value of each column that its scale is taken from: the median ± LIMIT robust deviations.

    The robust deviation is that of the middle half of the values; of the middle 80, 90 or 98 %, where the half is all
    one value up to rounding, or leaves more than a tenth of the values out, which are many and not wild. A column for
    which none of these will do has no limits: what is rare there may be all that it tells.
    """
    held = np.ones(len(inputs)) if weights is None else np.asarray(weights, dtype=np.float64)
    levels = [0.5, *(level for lower, _ in _SPREADS for level in (lower, 1 - lower))]
    low, high = np.full(inputs.shape[1], -np.inf), np.full(inputs.shape[1], np.inf)
    for k, column in enumerate(inputs.T.astype(np.float64)):
        middle, *ends = _quantiles(column, held, levels)
        rounding = 1e-9 * max(abs(ends[-2]), abs(ends[-1]))
        for (_, deviations), lower, upper in zip(_SPREADS, ends[::2], ends[1::2], strict=True):
            with np.errstate(over="ignore"):
                spread = upper - lower
                reach = LIMIT * spread / deviations
                outside = (column < middle - reach) | (column > middle + reach)
            if spread > rounding and held[outside].sum() <= FEW * held.sum():
                low[k], high[k] = middle - reach, middle + reach
                break
    return low, high


def _quantiles(values: np.ndarray, weights: np.ndarray, levels: list[float]) -> np.ndarray:
    """Values at which so much of the weight is reached; never one of no weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return values[order[np.searchsorted(reached, np.asarray(levels) * reached[-1])]]
