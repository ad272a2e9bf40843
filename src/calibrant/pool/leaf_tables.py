"""Tables of reachable leaves: the words of many trees for each interval of one or several columns.

:mod:`calibrant.pool.evaluator` describes the words. Here they are looked up and combined for many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

STEP = 4096
"""Rows per step: few enough for the cache, and so many that threads seldom wait for Python's lock."""
STEPS_AT_ONCE = 4
"""The rows of the tables are found for this many steps at once."""
CELLS = 512
"""The most entries of a table for several columns. Columns with few thresholds share one table."""


_WORDS: tuple[tuple[int, type[np.integer[Any]]], ...] = ((16, np.uint16), (31, np.int32), (63, np.int64))
"""The most leaves of a tree, and the word that has a bit for each. Signed words are converted to floats faster."""
MOST_LEAVES = _WORDS[-1][0]
ROW_BYTES = 256
"""The most bytes of a table's row. Longer rows need fewer copies, and shorter ones smaller tables."""
_EXPONENT = 23
"""The position of a float32's exponent."""


def word_for(leaves: int) -> type[np.integer[Any]]:
    """The smallest type of words for trees with this many leaves."""
    return next(word for most, word in _WORDS if leaves <= most)


class Block(NamedTuple):
    """Trees of one class, with their inner nodes sorted by column and threshold."""

    column: int
    features: np.ndarray
    """The columns of the inputs that the trees split."""
    ranks: list[np.ndarray]
    """For each of these columns: the positions of the block's thresholds among all thresholds of the column."""
    starts: np.ndarray
    """Where the nodes of each of these columns start, followed by the number of nodes."""
    places: np.ndarray
    """The position of each node's threshold in ``ranks``."""
    trees: np.ndarray
    """The position of each node's tree in the block."""
    words: np.ndarray
    """Each node's word: 0 for the leaves of its left subtree, 1 for all others."""
    missing_right: np.ndarray
    values: np.ndarray
    """The leaf values, (trees, leaves)."""


@dataclass(frozen=True)
class Intervals:
    """The intervals between thresholds in which the values of some rows lie.

    Interval k of a column has k thresholds below it. If the column has missing values, they form the last interval.
    """

    sizes: Mapping[int, int]
    """The number of intervals of each column."""
    missing: Mapping[int, bool]
    codes: Mapping[int, np.ndarray]
    """The interval of each row, by column."""
    groups: tuple[tuple[int, ...], ...]
    """Columns with few intervals, in groups with at most ``CELLS`` combinations. They share tables in all blocks."""
    joint: tuple[np.ndarray, ...]
    """The combination of intervals of each row, by group."""

    @classmethod
    def of(
        cls, inputs: np.ndarray, thresholds: Mapping[int, np.ndarray], each: Callable[..., Iterable[Any]] = map
    ) -> Intervals:
        """Find the intervals of all rows; ``thresholds`` has those of each column, in order.

        ``each`` calls a function for every column, like ``map``.
        """

        def column(k: int) -> tuple[np.ndarray, bool]:
            cuts, values = thresholds[k], inputs[:, k].astype(np.float64)
            absent = np.isnan(values)
            kind = np.uint16 if len(cuts) < 2**16 - 1 else np.int64
            intervals = np.searchsorted(cuts, values, side="left").astype(kind)
            intervals[absent] = len(cuts) + 1
            return intervals, bool(absent.any())

        both = dict(zip(thresholds, each(column, thresholds), strict=True))
        codes, missing = ({k: pair[part] for k, pair in both.items()} for part in (0, 1))
        sizes = {k: len(column_cuts) + 1 + missing[k] for k, column_cuts in thresholds.items()}
        groups = tuple(group for group in joined_columns(sizes) if len(group) > 1)

        def combined(group: tuple[int, ...]) -> np.ndarray:
            cells = np.zeros(len(inputs), dtype=np.intp)
            for k in group:
                cells *= sizes[k]
                cells += codes[k]
            return cells

        return cls(sizes, missing, codes, groups, tuple(each(combined, groups)))


def joined_columns(sizes: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Groups of columns, smallest first, with at most ``CELLS`` combinations of intervals if there are several."""
    groups: list[tuple[int, ...]] = []
    cells = 0
    for k in sorted(sizes, key=lambda k: sizes[k]):
        if groups and cells * sizes[k] <= CELLS:
            groups[-1], cells = (*groups[-1], k), cells * sizes[k]
        else:
            groups.append((k,))
            cells = sizes[k]
    return groups


class LeafTable(NamedTuple):
    """The words of a block's trees for every combination of intervals of some columns."""

    words: np.ndarray
    """(combinations, trees)."""
    places: np.ndarray | None
    """The row of the table for each row of the inputs; None if it is the sum of ``offsets[codes]`` over ``columns``."""
    columns: list[tuple[np.ndarray, np.ndarray]]
    """The codes of all rows, and the offset of each code."""

    def rows(self, part: slice) -> np.ndarray:
        """The row of the table for each of some rows of the inputs."""
        if self.places is not None:
            return self.places[part]
        (codes, offsets), *others = self.columns
        table_rows = np.take(offsets, codes[part])
        for codes, offsets in others:
            table_rows += np.take(offsets, codes[part])
        return table_rows


def block_tables(block: Block, rows: Intervals) -> list[LeafTable]:
    """The tables of a block for some rows. Each column that the block splits is in one of them."""
    column_words = {int(feature): _column_words(block, k, rows) for k, feature in enumerate(block.features)}
    tables = []
    for group, codes in zip(rows.groups, rows.joint, strict=True):
        if any(k in column_words for k in group):
            words = np.full((1, _width(block)), ~block.words.dtype.type(0))
            for k in group:
                if k in column_words:
                    each, interval = column_words.pop(k)
                    words = (words[:, None] & each[interval]).reshape(-1, words.shape[1])
                else:
                    words = words.repeat(rows.sizes[k], axis=0)
            tables.append(LeafTable(words, codes, []))
    for group in joined_columns({k: len(words) for k, (words, _) in column_words.items()}):
        words, cells = column_words[group[-1]][0], len(column_words[group[-1]][0])
        columns = [(rows.codes[group[-1]], column_words[group[-1]][1])]
        for k in reversed(group[:-1]):
            each, interval = column_words[k]
            words = (each[:, None] & words).reshape(-1, words.shape[1])
            columns.append((rows.codes[k], interval * cells))
            cells *= len(each)
        tables.append(LeafTable(words, None, columns))
    return tables


def _width(block: Block) -> int:
    """The number of trees, rounded up to an even number."""
    return len(block.values) + len(block.values) % 2


def _column_words(block: Block, k: int, rows: Intervals) -> tuple[np.ndarray, np.ndarray]:
    """The words for each of a block's intervals of its k-th column, and the block's interval for each interval."""
    ranks, part, feature = block.ranks[k], slice(block.starts[k], block.starts[k + 1]), int(block.features[k])
    count, missing = len(ranks) + 1, rows.missing[feature]
    words = np.full((count + missing, _width(block)), ~block.words.dtype.type(0))
    split_words, tree = block.words[part], block.trees[part]
    np.bitwise_and.at(words, (block.places[part] + 1, tree), split_words)
    np.bitwise_and.accumulate(words[:count], axis=0, out=words[:count])
    interval = np.searchsorted(ranks, np.arange(rows.sizes[feature]))
    if missing:
        right = block.missing_right[part]
        np.bitwise_and.at(words[-1], tree[right], split_words[right])
        interval[-1] = count
    return words, interval


class PairedValues(NamedTuple):
    """The sums of the leaf values of trees 2k and 2k + 1, for each pair of leaves."""

    sums: np.ndarray
    """(pairs × 2**bits × 2**bits,), in the order of :func:`pair_places`."""
    bits: int
    """The number of bits that a leaf's number needs."""


def pair_places(powers: np.ndarray, bits: int) -> np.ndarray:
    """Replace pairs of float32, ``2**a`` and ``2**b``, by a number for each pair (a, b), from 0 to 2**(2·bits) − 1.

    In the bits of both floats, the exponents a + 127 and b + 127 are at 23 and 55. The product moves them to the end of
    the word, ``bits`` apart, where only their last bits remain. Higher bits of the first exponent are added to the
    second one. So the order of the numbers is irregular, but no two pairs share a number.
    """
    places = powers.view(np.uint64)
    factor = 2 ** (64 - bits - _EXPONENT - 32) + 2 ** (64 - 2 * bits - _EXPONENT)
    np.multiply(places, np.uint64(factor), out=places)
    np.right_shift(places, np.uint64(64 - 2 * bits), out=places)
    return places.view(np.int64)


def paired_values(values: np.ndarray) -> PairedValues:
    """The sums for a block's leaf values, (trees, leaves); an odd number of trees is completed by one of value 0."""
    trees, leaves = values.shape
    bits = max(1, (leaves - 1).bit_length())
    padded = np.zeros((trees + trees % 2, 2**bits))
    padded[:trees, :leaves] = values
    sums = padded[::2, :, None] + padded[1::2, None, :]
    powers = np.exp2(np.arange(2**bits, dtype=np.float32))
    pairs = np.stack(np.meshgrid(powers, powers, indexing="ij"), axis=-1)
    pair_sums = np.empty((len(sums), 4**bits))
    pair_sums[:, pair_places(pairs, bits).ravel()] = sums.reshape(len(sums), -1)
    return PairedValues(pair_sums.ravel(), bits)


def leaf_sums(tables: Sequence[LeafTable], values: PairedValues, part: slice) -> np.ndarray:
    """The sums of the values of the leaves that some rows reach in the trees of a block."""
    pairs = len(values.sums) >> 2 * values.bits
    result = np.empty(part.stop - part.start)
    if not tables:  # every tree is a single leaf
        place = pair_places(np.ones(2, dtype=np.float32), values.bits)[0]
        result[:] = values.sums[place :: 4**values.bits].sum()
        return result
    size = min(STEP, len(result))
    words = np.empty((2, size, 2 * pairs), dtype=tables[0].words.dtype)
    powers, pair_sums = np.empty((size, 2 * pairs), dtype=np.float32), np.empty((size, pairs))
    first = np.tile(np.arange(pairs) << 2 * values.bits, (size, 1))
    for start in range(0, len(result), STEP):
        rows = slice(start, min(start + STEP, len(result)))
        now = slice(rows.stop - start)
        if start % (STEPS_AT_ONCE * STEP) == 0:
            several = slice(part.start + start, min(part.start + start + STEPS_AT_ONCE * STEP, part.stop))
            index = [table.rows(several) for table in tables]
        chunk = slice(start % (STEPS_AT_ONCE * STEP), None)
        left, other = words[:, now]
        np.take(tables[0].words, index[0][chunk][now], axis=0, out=left, mode="clip")
        for k in range(1, len(tables)):
            np.take(tables[k].words, index[k][chunk][now], axis=0, out=other, mode="clip")
            np.bitwise_and(left, other, out=left)
        np.bitwise_and(left, np.negative(left, out=other), out=left)  # the lowest bit
        powers[now] = left
        places = pair_places(powers[now], values.bits)
        np.add(places, first[now], out=places)
        np.take(values.sums, places, out=pair_sums[now], mode="clip")
        np.einsum("ij->i", pair_sums[now], out=result[rows])
    return result
