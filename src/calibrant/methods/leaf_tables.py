"""Tables of reachable leaves: the words of many trees for each interval of one or several columns.

:mod:`calibrant.methods.reachable` describes the words. Here they are looked up and combined for many rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

STEP = 1024
"""Rows per step, so that the words of all trees of a block stay in the cache."""
_STEPS = 16
"""The rows of the tables are found for this many steps at once."""
CELLS = 512
"""The most entries of a table for several columns. Columns with few thresholds share one table."""


_WORDS: tuple[tuple[int, type[np.integer[Any]]], ...] = ((16, np.uint16), (31, np.int32), (63, np.int64))
"""The most leaves of a tree, and the word that has a bit for each. Signed words are converted to floats faster."""
MOST_LEAVES = _WORDS[-1][0]
_MANTISSA, _BIAS = 23, 127
"""The position of a float32's exponent, and the exponent of 1."""


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
    def of(cls, inputs: np.ndarray, thresholds: Mapping[int, np.ndarray]) -> Intervals:
        """Find the intervals of all rows; ``thresholds`` has those of each column, in order."""
        sizes, missing = {}, {}
        codes: dict[int, np.ndarray] = {}
        for k, own in thresholds.items():
            values = inputs[:, k].astype(np.float64)
            absent = np.isnan(values)
            kind = np.uint16 if len(own) < 2**16 - 1 else np.int64
            codes[k] = np.searchsorted(own, values, side="left").astype(kind)
            missing[k] = bool(absent.any())
            if missing[k]:
                codes[k][absent] = len(own) + 1
            sizes[k] = len(own) + 1 + missing[k]
        groups = tuple(group for group in joined_columns(sizes) if len(group) > 1)
        joint = []
        for group in groups:
            found = np.zeros(len(inputs), dtype=np.uint16)
            for k in group:
                found *= np.uint16(sizes[k])
                found += codes[k]
            joint.append(found)
        return cls(sizes, missing, codes, groups, tuple(joint))


def joined_columns(sizes: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Groups of columns, smallest first, with at most ``CELLS`` combinations of intervals if there are several."""
    found: list[tuple[int, ...]] = []
    cells = 0
    for k in sorted(sizes, key=lambda k: sizes[k]):
        if found and cells * sizes[k] <= CELLS:
            found[-1], cells = (*found[-1], k), cells * sizes[k]
        else:
            found.append((k,))
            cells = sizes[k]
    return found


class LeafTable(NamedTuple):
    """The words of a block's trees for every combination of intervals of some columns.

    The row of the table is the sum of ``offsets[code]`` over the pairs in ``columns``.
    """

    words: np.ndarray
    """(combinations, trees)."""
    columns: list[tuple[np.ndarray, np.ndarray | None]]
    """The codes of all rows, and the offset of each code; None if the code is the row of the table."""

    def rows(self, part: slice) -> np.ndarray:
        """The row of the table for each of some rows of the inputs."""
        found = np.zeros(part.stop - part.start, dtype=np.intp)
        for codes, offsets in self.columns:
            found += codes[part] if offsets is None else offsets[codes[part]]
        return found


def block_tables(block: Block, rows: Intervals) -> list[LeafTable]:
    """The tables of a block for some rows. Each column that the block splits is in one of them."""
    own = {int(feature): _column_words(block, k, rows) for k, feature in enumerate(block.features)}
    found = []
    for group, codes in zip(rows.groups, rows.joint, strict=True):
        if any(k in own for k in group):
            words = np.full((1, _width(block)), ~block.words.dtype.type(0))
            for k in group:
                if k in own:
                    each, interval = own.pop(k)
                    words = (words[:, None] & each[interval]).reshape(-1, words.shape[1])
                else:
                    words = words.repeat(rows.sizes[k], axis=0)
            found.append(LeafTable(words, [(codes, None)]))
    for group in joined_columns({k: len(words) for k, (words, _) in own.items()}):
        words, cells = own[group[-1]][0], len(own[group[-1]][0])
        columns: list[tuple[np.ndarray, np.ndarray | None]] = [(rows.codes[group[-1]], own[group[-1]][1])]
        for k in reversed(group[:-1]):
            each, interval = own[k]
            words = (each[:, None] & words).reshape(-1, words.shape[1])
            columns.append((rows.codes[k], interval * cells))
            cells *= len(each)
        found.append(LeafTable(words, columns))
    return found


def _width(block: Block) -> int:
    """The number of trees, rounded up to an even number."""
    return len(block.values) + len(block.values) % 2


def _column_words(block: Block, k: int, rows: Intervals) -> tuple[np.ndarray, np.ndarray]:
    """The words for each of a block's intervals of its k-th column, and the block's interval for each interval."""
    ranks, part, feature = block.ranks[k], slice(block.starts[k], block.starts[k + 1]), int(block.features[k])
    count, missing = len(ranks) + 1, rows.missing[feature]
    words = np.full((count + missing, _width(block)), ~block.words.dtype.type(0))
    own, tree = block.words[part], block.trees[part]
    np.bitwise_and.at(words, (block.places[part] + 1, tree), own)
    np.bitwise_and.accumulate(words[:count], axis=0, out=words[:count])
    interval = np.searchsorted(ranks, np.arange(rows.sizes[feature]))
    if missing:
        right = block.missing_right[part]
        np.bitwise_and.at(words[-1], tree[right], own[right])
        interval[-1] = count
    return words, interval


class PairedValues(NamedTuple):
    """The sums of the leaf values of trees 2k and 2k + 1, for each pair of leaves."""

    sums: np.ndarray
    """(pairs × 2**bits × 2**bits,); the leaf of the first tree changes fastest."""
    bits: int
    """The number of bits that a leaf's number needs."""


def paired_values(values: np.ndarray) -> PairedValues:
    """The sums for a block's leaf values, (trees, leaves); an odd number of trees is completed by one of value 0."""
    trees, leaves = values.shape
    bits = max(1, (leaves - 1).bit_length())
    padded = np.zeros((trees + trees % 2, 2**bits))
    padded[:trees, :leaves] = values
    return PairedValues((padded[1::2, :, None] + padded[::2, None, :]).ravel(), bits)


def add_leaves(tables: Sequence[LeafTable], values: PairedValues, part: slice, result: np.ndarray) -> None:
    """Add the values of the leaves that some rows reach in the trees of a block."""
    pairs = len(values.sums) >> 2 * values.bits
    if not tables:  # every tree is a single leaf
        result[part] += values.sums[:: 4**values.bits].sum()
        return
    size = min(STEP, part.stop - part.start)
    words = np.empty((2, size, 2 * pairs), dtype=tables[0].words.dtype)
    powers = np.empty((size, 2 * pairs), dtype=np.float32)
    places, found = np.empty((2, size, pairs), dtype=np.int64), np.empty((size, pairs))
    first = np.tile((np.arange(pairs) << 2 * values.bits) - _BIAS * (1 + 2**values.bits), (size, 1))
    for start in range(part.start, part.stop, STEP):
        rows = slice(start, min(start + STEP, part.stop))
        now = slice(rows.stop - rows.start)
        if (start - part.start) % (_STEPS * STEP) == 0:
            index = [table.rows(slice(start, min(start + _STEPS * STEP, part.stop))) for table in tables]
        own = slice((start - part.start) % (_STEPS * STEP), None)
        left, other = words[:, now]
        np.take(tables[0].words, index[0][own][now], axis=0, out=left, mode="clip")
        for k in range(1, len(tables)):
            np.take(tables[k].words, index[k][own][now], axis=0, out=other, mode="clip")
            np.bitwise_and(left, other, out=left)
        np.bitwise_and(left, np.negative(left, out=other), out=left)  # the lowest bit
        powers[now] = left
        # A pair of exponents as one integer, a + 2**32·b, becomes a + 2**bits·b
        one, two = places[:, now]
        np.right_shift(powers[now].view(np.int64), _MANTISSA, out=one)
        np.right_shift(one, 32 - values.bits, out=two)
        np.add(one, two, out=one)
        np.bitwise_and(one, 2 ** (8 + values.bits) - 1, out=one)
        np.add(one, first[now], out=one)
        np.take(values.sums, one, out=found[now], mode="clip")
        result[rows] += np.einsum("ij->i", found[now])
