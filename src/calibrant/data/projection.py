"""Projection of many sparse columns on a few dense ones, for members of a pool that cannot use sparse columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from sklearn.utils.extmath import randomized_svd

AXES = 128
"""The number of columns after the projection; fewer if there are fewer rows or columns."""
APART = 10.0
"""Columns whose typical value is more than this factor above or below the median column's are rescaled to it."""
LENGTH = 10.0
"""The median length of the scaled rows that are not zero."""
LONGEST = 100.0
"""Longer rows are shortened to this length, so that one row cannot dominate, and new rows stay in reach."""
SAMPLED = 50_000
"""Up to this many rows determine the axes, drawn at random from more, to bound time and memory."""


class Projection(NamedTuple):
    """The scale of each sparse column, and the axes that scaled rows are projected on.

    Scaled rows are ``x·scale``, shortened to the length ``LONGEST`` if they are longer, and projected ones are
    ``x·scale·axes − mean``. NaN counts as 0.
    """

    scale: np.ndarray
    axes: np.ndarray
    """(columns, width), in half precision, which halves the file."""
    mean: np.ndarray
    """The mean of the projected training rows."""

    @property
    def columns(self) -> int:
        """The number of sparse columns."""
        return len(self.scale)

    @property
    def width(self) -> int:
        """The number of projected columns."""
        return len(self.mean)

    def apply(self, matrix: Any) -> tuple[np.ndarray, csr_array]:
        """The projected columns, (n, width), and the sparse columns in comparable units, float32."""
        scaled = _scaled(matrix, self.scale)
        return scaled @ self.axes.astype(np.float32) - self.mean, scaled


def fit_projection(matrix: Any, seed: int = 0) -> Projection:
    """The projection for the sparse columns of training rows: their leading right singular vectors.

    Labels are not used. The vectors come from a randomised decomposition (Halko, Martinsson & Tropp 2011), which is
    determined by ``seed``, of at most ``SAMPLED`` rows. One common factor gives the projected columns a mean square of
    1 on average.
    """
    scale = column_scales(matrix)
    scaled = _scaled(matrix, scale)
    axes = leading_axes(scaled, seed)[1]
    values = scaled @ axes
    mean = values.mean(0, dtype=np.float64)
    spread = float(np.sqrt(np.mean((values - mean) ** 2))) or 1.0
    return Projection(
        scale, np.ascontiguousarray(axes / spread, dtype=np.float16), np.asarray(mean / spread, dtype=np.float32)
    )


def leading_axes(rows: Any, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Right singular vectors of a dense or sparse matrix, (columns, at most ``AXES``), after the rows' mean squares."""
    generator = np.random.default_rng(seed)
    if rows.shape[0] > SAMPLED:
        rows = rows[np.sort(generator.choice(rows.shape[0], SAMPLED, replace=False))]
    width = min(AXES, *rows.shape)
    _, singular, axes = randomized_svd(rows, width, random_state=int(generator.integers(2**31)))
    kept = singular >= 1e-5 * singular[0]
    return singular[kept] ** 2 / rows.shape[0], axes[kept].T


def column_scales(matrix: Any) -> np.ndarray:
    """The factor of each column: one for all, except for columns in units that differ very much from the others.

    The proportions between columns are usually meant: rare terms have a large weight in TF-IDF, and standardised
    columns would lose it. Only a column whose root mean square over its entries is more than ``APART`` times above or
    below the median column's is rescaled, to ``APART`` times above or below.
    """
    columns = matrix.tocsc()
    values = np.abs(np.nan_to_num(columns.data.astype(np.float64)))
    place = np.repeat(np.arange(columns.shape[1]), np.diff(columns.indptr))
    largest = np.zeros(columns.shape[1])
    np.maximum.at(largest, place, values)
    filled = largest > 0
    unit = np.where(filled, largest, 1.0)  # squares of very large or small numbers would overflow or vanish
    entries = np.bincount(place[values > 0], minlength=len(unit))
    squares = np.bincount(place, (values / unit[place]) ** 2, minlength=len(unit))
    typical = unit * np.sqrt(squares / np.maximum(entries, 1))
    if not filled.any():
        return np.ones(len(unit))
    median = float(np.median(typical[filled]))
    factors = np.where(filled, np.clip(typical / median, 1 / APART, APART) / np.where(filled, typical, 1.0), 0.0)
    lengths = np.sqrt(np.bincount(columns.indices, (values * factors[place]) ** 2))
    return factors * (LENGTH / float(np.median(lengths[lengths > 0])))


def _scaled(matrix: Any, scale: np.ndarray) -> csr_array:
    rows = csr_array(matrix)
    data = np.nan_to_num(rows.data.astype(np.float64)) * scale[rows.indices]
    place = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    lengths = np.sqrt(np.bincount(place, data**2, minlength=rows.shape[0]))
    data *= np.minimum(1.0, LONGEST / np.maximum(lengths, LONGEST))[place]
    return csr_array((data.astype(np.float32), rows.indices, rows.indptr), shape=rows.shape)
