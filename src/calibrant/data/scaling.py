"""Scaling the columns of a table for a network.

Numbers get mean 0 and variance 1, and outliers are compressed. Missing numbers become 0 and are marked. Codes of
categories become one-hot. :class:`calibrant.data.TableEncoder` and the classifiers use it, once for each table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LIMIT = 10.0
"""Scaled values beyond ±LIMIT are compressed, so that an outlier cannot dominate the network."""
FEW = 0.1
"""The largest share of a column that may count as outliers."""
UNSEEN = -1
"""The code of a category that was not in the training rows; all of its one-hot outputs are 0."""
_SPREADS = ((0.25, 1.349), (0.1, 2.563), (0.05, 3.290), (0.01, 4.653))
"""Lower quantiles, and the distance to the matching upper quantile in standard deviations of a normal."""
ROWS_AT_ONCE = 65_536
"""Rows that are scaled at a time, to bound memory."""


class Scaling(NamedTuple):
    """The scaling of each column of a table.

    A number becomes ``(x − mean)/scale``, compressed beyond ±``limit``; a missing one becomes 0. A constant column has
    ``scale = inf`` and becomes 0. A code of one of k categories becomes k outputs of 0 or 1.
    """

    mean: np.ndarray
    scale: np.ndarray
    missing: np.ndarray | None = None
    """Whether an additional output of the column marks missing values; None if no column has one."""
    categories: np.ndarray | None = None
    """The number of categories of each column, 0 for numbers; None: all columns are numbers."""
    limit: float = LIMIT

    def apply(self, inputs: np.ndarray) -> Tensor:
        """The inputs of the network in float32, for a table of any precision."""
        return torch.from_numpy(self.transform(inputs))

    def transform(self, inputs: np.ndarray) -> np.ndarray:
        """The same as an array of shape (rows, ``width``)."""
        scaled = np.zeros((len(inputs), self.width), dtype=np.float32)
        for start in range(0, len(inputs), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            self._fill(scaled[rows], inputs[rows])
        return scaled

    @property
    def width(self) -> int:
        """The number of outputs."""
        return int(self._widths.sum())

    @property
    def sources(self) -> np.ndarray:
        """The column of the table that each output comes from."""
        return np.repeat(np.arange(len(self.mean)), self._widths)

    @property
    def numbers(self) -> np.ndarray:
        """The positions of the outputs that are scaled numbers; all others are 0 or 1."""
        return self._starts[self._kinds == 0]

    @property
    def _kinds(self) -> np.ndarray:
        return np.zeros(len(self.mean), dtype=int) if self.categories is None else self.categories

    @property
    def _marked(self) -> np.ndarray:
        return np.zeros(len(self.mean), dtype=bool) if self.missing is None else self.missing

    @property
    def _widths(self) -> np.ndarray:
        return np.maximum(self._kinds, 1) + self._marked

    @property
    def _starts(self) -> np.ndarray:
        return np.cumsum(self._widths) - self._widths

    def _fill(self, scaled: np.ndarray, inputs: np.ndarray) -> None:
        number, starts = self._kinds == 0, self._starts
        values = inputs[:, number].astype(np.float64)
        absent = np.isnan(values)
        with np.errstate(over="ignore", invalid="ignore"):  # overflowing values are compressed
            values -= self.mean[number]
            values /= self.scale[number]
        values[:, np.isinf(self.scale[number])] = 0.0
        values[absent] = 0.0
        scaled[:, starts[number]] = drawn_in(values, self.limit)
        marked = number & self._marked
        scaled[:, starts[marked] + 1] = absent[:, marked[number]]
        if not number.all():
            codes, categories, widths = inputs[:, ~number], self._kinds[~number], self._widths[~number]
            codes = np.where(np.isnan(codes), np.where(widths > categories, categories, UNSEEN), codes)
            rows, columns = np.nonzero((codes >= 0) & (codes < widths) & (codes == np.floor(codes)))
            scaled[rows, starts[~number][columns] + codes[rows, columns].astype(int)] = 1.0


def drawn_in(values: np.ndarray, limit: float = LIMIT) -> np.ndarray:
    """Compress values beyond ±limit logarithmically, at most to ±2·limit, keeping their order."""
    excess = np.maximum(np.abs(values) - limit, 0.0)
    return np.clip(values, -limit, limit) + np.sign(values) * np.minimum(np.log1p(excess), limit)


def fit_scaling(inputs: np.ndarray, weights: np.ndarray | None = None, categories: np.ndarray | None = None) -> Scaling:
    """The scaling of a training table: NaN for missing values, codes in columns of ``categories`` above 0.

    A number is scaled by the weighted mean and standard deviation of its column, without the influence of outliers. A
    sentinel such as 999 in one row of a thousand would widen the scale until all other values are nearly equal.
    Therefore values further than ``LIMIT`` robust deviations from the median are moved to that distance
    (:func:`plausible`). Without such values, these are the plain mean and deviation.

    A constant column carries no information, and its network weights would keep their random initial values. It is
    switched off (``scale = inf``), so that another value at prediction time has no effect. Variation within rounding
    error of the mean counts as constant. A column without any value is switched off too.
    """
    columns = inputs.shape[1]
    mean, scale, missing = np.zeros(columns), np.ones(columns), np.zeros(columns, dtype=bool)
    for k in range(columns):
        column = inputs[:, k].astype(np.float64)  # one column at a time, to save memory
        present = ~np.isnan(column)
        held = present if weights is None else present & (weights > 0)
        missing[k] = held.any() and not present.all()
        if categories is None or not categories[k]:
            some = None if weights is None else weights[held]
            mean[k], scale[k] = column_scale(column[held], some) if held.any() else (0.0, np.inf)
    return Scaling(mean, scale, missing if missing.any() else None, categories)


def column_scale(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[float, float]:
    """Mean and deviation of one column of numbers, as in :func:`fit_scaling`; inf if it is constant."""
    values = np.clip(values, *plausible(values, weights))
    unit = float(np.abs(values).max()) or 1.0  # squares of very large or small numbers would overflow or vanish
    values = values / unit
    share = np.full(len(values), 1 / len(values)) if weights is None else weights / weights.sum()
    mean = float(share @ values)
    deviation = float(np.sqrt(share @ np.square(values - mean)))
    scale = deviation * unit
    noise = len(values) * np.finfo(np.float64).eps * abs(mean)
    return mean * unit, np.inf if deviation <= noise or scale == 0 else scale


def plausible(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[float, float]:
    """The range of plausible values of a column: the median ± LIMIT robust deviations.

    The robust deviation is that of the middle half of the values. If that half is one value up to rounding, or if the
    range would exclude more than a tenth of the values (too many for outliers), it is that of the middle 80, 90 or
    98 %. If none of these works, the column has no limits, because its rare values may be its only information.
    """
    held = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    levels = [0.5, *(level for lower, _ in _SPREADS for level in (lower, 1 - lower))]
    middle, *ends = _quantiles(values, held, levels)
    for (_, deviations), lower, upper in zip(_SPREADS, ends[::2], ends[1::2], strict=True):
        with np.errstate(over="ignore"):
            spread = upper - lower
            reach = LIMIT * spread / deviations
            outside = (values < middle - reach) | (values > middle + reach)
        rounding = 1e-9 * max(abs(lower), abs(upper))  # relative to these ends, so that outliers do not hide a spread
        if spread > rounding and held[outside].sum() <= FEW * held.sum():
            return float(middle - reach), float(middle + reach)
    return -np.inf, np.inf


def _quantiles(values: np.ndarray, weights: np.ndarray, levels: list[float]) -> np.ndarray:
    """Values at which these shares of the weight are reached; never a value without weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    quantiles: np.ndarray = values[order[np.searchsorted(reached, np.asarray(levels) * reached[-1])]]
    return quantiles
