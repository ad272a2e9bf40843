"""Rows that belong together: exact copies, and groups named by the user.

If a copy of a held-out row is in the training data, the row is not really held out. Its loss measures memory, so
regularisation and temperature are learned from the wrong number. Copies and groups are therefore kept in one fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import coo_array, issparse
from scipy.sparse.csgraph import connected_components

_BLOCK = 1 << 22
"""Numbers that are hashed at once, to bound memory."""
_EXCUSED = 10.0
"""Copies count as chance if there are at most this many times the pairs that independent columns would give."""
_SAMPLED = 20_000


def row_codes(inputs: Any) -> np.ndarray | None:
    """Return a 64-bit hash for each row: equal for equal rows, and different for others, except with probability 10⁻¹⁹.

    Parameters
    ----------
    inputs : array of numbers with one row per sample, a sparse matrix, or a pandas data frame

    Returns
    -------
    codes : (n,) unsigned integers; None for other kinds of inputs
    """
    if issparse(inputs):
        return _sparse_codes(inputs.tocsr())
    values = _frame_bits(inputs) if hasattr(inputs, "iloc") else np.asarray(inputs)
    if values.dtype.kind not in "biuf" or values.ndim < 1:
        return None
    values = values.reshape(len(values), -1)
    codes = np.zeros(len(values), dtype=np.uint64)
    keys = _keys(values.shape[1])
    rows = max(1, _BLOCK // max(1, values.shape[1]))
    for start in range(0, len(values), rows):
        codes[start : start + rows] = _mixed(_bits(values[start : start + rows]) ^ keys).sum(axis=1)
    return codes


def copy_groups(inputs: Any) -> np.ndarray | None:
    """Group exact copies: return one group number per row, or None if there are no copies.

    Labels are ignored: copies with different labels also belong together.

    In a table with few columns and few values, rows repeat by chance: three yes-no questions have only eight different
    rows. Such rows are separate samples, and future rows will also equal them, so they do not count as copies. They are
    recognised by the number of equal pairs. It is then near ``n(n − 1)/2·Π_j Σ_v p_j(v)²``, the number for independent
    columns with frequencies ``p_j``. Up to ten times as many pairs are attributed to dependence between columns.
    """
    codes = row_codes(inputs)
    if codes is None or len(codes) < 2:
        return None
    _, groups, counts = np.unique(codes, return_inverse=True, return_counts=True)
    pairs = float((counts * (counts - 1.0)).sum() / 2)
    if pairs == 0 or _by_chance(inputs, pairs):
        return None
    return groups


def joined(groups: np.ndarray | None, others: np.ndarray | None) -> np.ndarray | None:
    """Merge two groupings: rows that are together in either of them stay together; None if neither is given."""
    if groups is None or others is None:
        return others if groups is None else groups
    a, b = (np.unique(g, return_inverse=True)[1] for g in (groups, others))
    size = a.max() + b.max() + 2
    graph = coo_array((np.ones(len(a), dtype=bool), (a, a.max() + 1 + b)), shape=(size, size))
    return np.unique(connected_components(graph, directed=False)[1][a], return_inverse=True)[1]


def independent_size(labels: np.ndarray, probs: np.ndarray, groups: np.ndarray | None) -> float:
    """Return the effective number of rows if errors within a group correlate: ``Σ_g m_g/(1 + (m_g − 1)·ρ)``.

    This is the effective sample size of Kish (1965) for groups of m_g rows. ρ is the intraclass correlation of the
    residuals "label minus probability", between 0 and 1. For copies of a row it is 1, so a repeated row counts once.
    For rows with independent labels it is 0, so all rows count.

    Parameters
    ----------
    labels, probs : class indices (n,) and held-out probabilities (n, C)
    groups : one number per row; None if there are no groups
    """
    if groups is None:
        return float(len(labels))
    numbers = np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(numbers)
    residuals = -np.asarray(probs, dtype=np.float64)
    residuals[np.arange(len(labels)), labels] += 1
    several = sizes[numbers] > 1
    squares = np.bincount(numbers, (residuals**2).sum(1))
    sums = np.stack([np.bincount(numbers, column) for column in residuals.T], axis=1)
    between = ((sums**2).sum(1) - squares)[sizes > 1] / (sizes[sizes > 1] - 1)
    total = (residuals[several] ** 2).sum()
    correlation = float(np.clip(between.sum() / total, 0, 1)) if total > 0 else 1.0
    return float((sizes / (1 + (sizes - 1) * correlation)).sum())


def _by_chance(inputs: Any, pairs: float) -> bool:
    """Whether independent columns with these frequencies would give about this many equal pairs of rows."""
    n = inputs.shape[0]
    expected = _EXCUSED * n * (n - 1) / 2
    for column in _columns(inputs):
        counts = np.unique(column, return_counts=True)[1]
        expected *= float((counts / len(column)) @ (counts / len(column)))
        if expected < pairs:
            return False
    return True


def _columns(inputs: Any) -> Iterator[np.ndarray]:
    """Return the columns of a sample of the rows."""
    rows = np.random.default_rng(0).permutation(inputs.shape[0])[:_SAMPLED]
    if issparse(inputs):
        some = inputs.tocsr()[rows].tocsc()
        yield from (some[:, [k]].toarray().ravel() for k in range(some.shape[1]))
    elif hasattr(inputs, "iloc"):
        yield from _frame_bits(inputs.iloc[rows]).T
    else:
        yield from np.asarray(inputs).reshape(len(inputs), -1)[rows].T


def _keys(number: int) -> np.ndarray:
    return _mixed(np.arange(1, number + 1, dtype=np.uint64))


def _bits(values: np.ndarray) -> np.ndarray:
    """Return numbers as 64-bit patterns, with one pattern for both zeros and one for all NaN."""
    if values.dtype.kind != "f":
        return values.astype(np.int64).view(np.uint64)
    values = values.astype(np.float64) + 0.0
    values[np.isnan(values)] = np.nan
    return values.view(np.uint64)


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele et al. 2014): every bit of the result depends on every bit of x."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _sparse_codes(matrix: Any) -> np.ndarray:
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # it may be the user's own
        matrix.sum_duplicates()
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    kept = matrix.data != 0
    mixed = _mixed(_bits(matrix.data[kept]) ^ _keys(matrix.shape[1])[matrix.indices[kept]])
    codes = np.zeros(matrix.shape[0], dtype=np.uint64)
    np.add.at(codes, rows[kept], mixed)
    return codes


def _frame_bits(inputs: Any) -> np.ndarray:
    """The values of a data frame or series as 64-bit patterns; those of other types are numbered by their equality."""
    bits = np.empty((len(inputs), inputs.shape[1] if inputs.ndim > 1 else 1), dtype=np.uint64)
    for place in range(bits.shape[1]):
        column = inputs.iloc[:, place] if inputs.ndim > 1 else inputs
        values = column.to_numpy()
        if values.dtype.kind not in "biuf":
            try:
                values = column.factorize()[0]
            except TypeError:  # unhashable values, such as lists
                values = column.map(repr).factorize()[0]
        bits[:, place] = _bits(values)
    return bits
