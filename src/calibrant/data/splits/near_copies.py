"""Rows that are repeated with small changes: a warning sign, and the groups of such rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors

from calibrant.data.splits.exact_copies import row_codes

_MOST_ROWS = 20_000
_WORK = 5e7
"""The number of multiplications that :func:`near_copies` may use, about 0.1 seconds. It checks at least 30 rows."""
_NEIGHBOUR = 20
_NEAR = 0.1
_LEVELS = 10
"""Columns with at most this many different values, such as categories, say nothing about small changes."""


class NearCopies(NamedTuple):
    """The result of :func:`near_copies`."""

    share: float
    """The share of rows whose nearest neighbour is suspiciously near."""
    expected: float
    """The share to expect without copies, given how the rows are distributed."""

    @property
    def suspicious(self) -> bool:
        """Whether far more rows than expected have such a neighbour."""
        return self.share > self.expected + 0.25


def near_copies(values: np.ndarray, *, seed: int = 0) -> NearCopies | None:
    """Search a sample of the rows for rows that are repeated with small changes.

    Without copies, rows are locally distributed like points in D dimensions. The nearest of k neighbours is then nearer
    than t times the k-th with probability ``1 − (1 − t^D)^k``. D is estimated from neighbours k to 2k, which near
    copies do not affect unless each row has k copies. The observed share of such rows is compared with this probability
    for ``t = 0.1`` and ``k = 20``; exact copies are not counted.

    Columns with few values, such as categories, are left out: rows that agree in all of them can have their k-th
    neighbour among other rows, far away, and would look like near copies.

    Parameters
    ----------
    values : (n, d) array of standardised numbers
    seed : seed of the sample

    Returns
    -------
    copies : None for fewer than 60 different rows, or only columns with few values
    """
    values = _different(np.asarray(values, dtype=np.float32).reshape(len(values), -1))[0]
    values = _different(values[:, [len(np.unique(column)) > _LEVELS for column in values.T]])[0]
    n, columns = values.shape
    if n < 3 * _NEIGHBOUR or not columns:
        return None
    generator = np.random.default_rng(seed)
    if columns > 64:  # distances survive a random projection
        values = values @ generator.standard_normal((columns, 64)).astype(np.float32)
    inspected = generator.permutation(n)[: int(np.clip(_WORK / (n * min(columns, 64)), 30, 300))]
    distances = cdist(values[inspected], values)
    near = np.sort(np.partition(distances, 2 * _NEIGHBOUR, axis=1)[:, : 2 * _NEIGHBOUR + 1], axis=1)
    first, middle, last = (np.maximum(near[:, k], 1e-12) for k in (1, _NEIGHBOUR, 2 * _NEIGHBOUR))
    dimension = np.log(2) / max(float(np.mean(np.log(last / middle))), 1e-3)
    expected = 1 - (1 - _NEAR**dimension) ** _NEIGHBOUR
    return NearCopies(float(np.mean(first < _NEAR * middle)), float(expected))


def near_copy_groups(values: np.ndarray) -> np.ndarray | None:
    """Group near copies: return one group number per row.

    Two rows are linked if their distance is below a tenth of both rows' distances to their 20th neighbours; linked rows
    form groups. Call this only if :func:`near_copies` is suspicious; otherwise it links rows that are near by chance.

    Parameters
    ----------
    values : (n, d) array of standardised numbers

    Returns
    -------
    groups : None for more than 20,000 different rows, which would take long, and if links chain a fifth of the rows
        together, which does not happen with copies
    """
    values = np.asarray(values, dtype=np.float32).reshape(len(values), -1)
    mean = values.mean(0)
    values, place = _different(values)
    values, n = values - mean, len(values)
    if not 3 * _NEIGHBOUR <= n <= _MOST_ROWS:
        return None
    distances, nearest = NearestNeighbors(n_neighbors=_NEIGHBOUR + 1).fit(values).kneighbors(values)
    limits = _NEAR * distances[:, -1]
    a, rank = np.nonzero(distances < limits[:, None])
    b = nearest[a, rank]
    mutual = distances[a, rank] < limits[b]
    graph = coo_array((np.ones(mutual.sum(), dtype=bool), (a[mutual], b[mutual])), shape=(n, n))
    groups = connected_components(graph, directed=False)[1]
    return None if np.bincount(groups).max() > max(_NEIGHBOUR, n / 5) else groups[place]


def _different(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different rows, and the place of each row among them."""
    codes = row_codes(values)
    assert codes is not None
    _, kept, place = np.unique(codes, return_index=True, return_inverse=True)
    return values[kept], place
