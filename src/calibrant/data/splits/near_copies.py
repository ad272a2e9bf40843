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
_SHUFFLES = 5
_LEVELS = 10
"""Columns with at most this many different values form cells."""


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

    This fails for small cells. A cell is a set of rows that agree in all columns with few values, such as categories.
    If it has at most 4k rows, their k-th neighbours may be in other cells and therefore far away. All rows of the cell
    then look like near copies. For these rows the expected share is measured: it is their share after the other columns
    are shuffled between all rows. Pairs of rows that come from one cell, such as near copies, do not count.

    Parameters
    ----------
    values : (n, d) array of standardised numbers
    seed : seed of the sample

    Returns
    -------
    copies : None for fewer than 60 different rows
    """
    values = np.asarray(values, dtype=np.float32).reshape(len(values), -1)
    codes = row_codes(values)
    assert codes is not None
    values = values[np.unique(codes, return_index=True)[1]]
    n, columns = values.shape
    if n < 3 * _NEIGHBOUR or not columns:
        return None
    generator = np.random.default_rng(seed)
    projection = None  # distances survive a random projection
    if columns > 64:
        projection = generator.standard_normal((columns, 64)).astype(np.float32)
    inspected = generator.permutation(n)[: _affordable(values)]
    distances = _distances(values, inspected, projection)
    near = np.sort(np.partition(distances, 2 * _NEIGHBOUR, axis=1)[:, : 2 * _NEIGHBOUR + 1], axis=1)
    first, middle, last = (np.maximum(near[:, k], 1e-12) for k in (1, _NEIGHBOUR, 2 * _NEIGHBOUR))
    dimension = np.log(2) / max(float(np.mean(np.log(last / middle))), 1e-3)
    expected = 1 - (1 - _NEAR**dimension) ** _NEIGHBOUR
    copies = NearCopies(float(np.mean(first < _NEAR * middle)), float(expected))
    return _with_cells(copies, values, inspected, projection, generator) if copies.suspicious else copies


def _with_cells(
    copies: NearCopies,
    values: np.ndarray,
    inspected: np.ndarray,
    projection: np.ndarray | None,
    generator: np.random.Generator,
) -> NearCopies:
    """Return the result with the expected share of rows in small cells measured on shuffled rows."""
    few = np.array([len(np.unique(column)) <= _LEVELS for column in values.T])
    cells = _Cells.of(values[:, few])
    if few.all() or not cells.small[inspected].any():
        return copies
    measured = np.mean([_shuffled_share(values, few, cells, projection, generator) for _ in range(_SHUFFLES)])
    share = float(cells.small[inspected].mean())
    return copies._replace(expected=max(copies.expected, share * float(measured) + (1 - share) * copies.expected))


def _shuffled_share(
    values: np.ndarray, few: np.ndarray, cells: _Cells, projection: np.ndarray | None, generator: np.random.Generator
) -> float:
    """Return the share of rows in small cells that have a suspiciously near neighbour after shuffling."""
    order = generator.permutation(len(values))
    rows = generator.permutation(np.flatnonzero(cells.small))[: _affordable(values)]
    distances = _distances(_shuffled(values, few, cells, order), rows, projection)
    barred = (cells.numbers[order[rows], None] == cells.numbers[order]) | (distances == 0)
    first = np.where(barred, np.inf, distances).min(1)
    near = first < _NEAR * np.partition(distances, _NEIGHBOUR, axis=1)[:, _NEIGHBOUR]
    together = cells.numbers[rows, None] == cells.numbers
    pairs = max(int(together.sum()) - len(rows), 1)
    counted = float((together & ~barred).sum()) / pairs
    return float(1 - (1 - near.mean()) ** (1 / max(counted, 0.1)))  # the share if all pairs counted


class _Cells(NamedTuple):
    """The number of each row's cell, and the number of rows of each cell."""

    numbers: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> _Cells:
        codes = row_codes(values)
        assert codes is not None
        return cls(*np.unique(codes, return_inverse=True, return_counts=True)[1:])

    @property
    def small(self) -> np.ndarray:
        """Whether each row is in a cell of at most 4k rows."""
        return np.asarray(self.counts[self.numbers] <= 4 * _NEIGHBOUR)

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of each cell, (cells, d)."""
        sums = np.zeros((len(self.counts), values.shape[1]))
        np.add.at(sums, self.numbers, values)
        return sums / self.counts[:, None]


def _shuffled(values: np.ndarray, few: np.ndarray, cells: _Cells, order: np.ndarray) -> np.ndarray:
    """Return rows whose columns outside ``few`` are in another order, as deviations from the means of the cells.

    The mean of a cell is not used if its rows differ so little that all of them may be near copies.
    """
    quantities = values[:, ~few]
    centres = cells.means(quantities)
    spread = cells.means(((quantities - centres[cells.numbers]) ** 2).sum(1, keepdims=True))[:, 0]
    centres[spread < _NEAR**2 * quantities.var(0).sum()] = 0
    shuffled = values.copy()
    shuffled[:, ~few] = centres[cells.numbers] + (quantities - centres[cells.numbers])[order]
    return shuffled


def _affordable(values: np.ndarray) -> int:
    """Return the number of rows that :func:`near_copies` inspects."""
    n, columns = values.shape
    return int(np.clip(_WORK / (n * min(columns, 64)), 30, 300))


def _distances(values: np.ndarray, inspected: np.ndarray, projection: np.ndarray | None) -> np.ndarray:
    """Return the distances of some rows to all rows."""
    places = values if projection is None else values @ projection
    return np.asarray(cdist(places[inspected], places))


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
    codes = row_codes(values)
    assert codes is not None
    _, kept, place = np.unique(codes, return_index=True, return_inverse=True)
    values, n = values[kept] - values.mean(0), len(kept)
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
