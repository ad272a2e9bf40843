"""Fast evaluation of boosted trees: bit masks of the leaves that a row can reach, and descent for few rows.

Masks follow QuickScorer (Lucchese et al. 2015, "QuickScorer: a fast algorithm to rank documents with additive ensembles
of regression trees"). The leaves of a tree are the bits of a word, from left to right. A node that sends a row to the
right removes the leaves of its left subtree, and the lowest bit that remains is the row's leaf. The words of many trees
are looked up at once in one table per column, by the interval between thresholds that a value lies in. Each lookup
copies neighbouring words, whereas a walk down a tree waits for one node after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

_TREES = 64
"""Trees per block: the words of a block's trees lie side by side."""
_ROWS = 1024
"""Rows per step, so that the words of all trees of a block stay in the cache."""
CELLS = 512
"""The most entries of a table for several columns. Columns with few thresholds share one table."""
_FEW = 32
"""Up to this many rows, walking down all trees at once is faster than making tables."""
_WORDS = ((16, np.uint16, np.float32), (32, np.uint32, np.float32), (64, np.uint64, np.float64))
"""The most leaves of a tree, the word that has a bit for each, and a float type whose exponent finds the lowest bit."""


class Nodes(NamedTuple):
    """The nodes of all trees. Child indices refer to these arrays; a leaf is its own child."""

    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    roots: np.ndarray
    column: np.ndarray
    """The class of each tree."""


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
    """The leaf values, (trees × leaves,)."""


@dataclass(frozen=True)
class Evaluator:
    """Sums of leaf values, one for each class."""

    nodes: Nodes

    @cached_property
    def levels(self) -> list[np.ndarray]:
        """The inner nodes by depth."""
        found, at = [], self.nodes.roots
        while len(at := at[self.nodes.left[at] != at]):
            found.append(at)
            at = np.concatenate([self.nodes.left[at], self.nodes.right[at]])
        return found

    @cached_property
    def leaves(self) -> tuple[np.ndarray, np.ndarray]:
        """For each node: the number of leaves below it, and the position of the first one in its tree."""
        left, right = self.nodes.left, self.nodes.right
        count, first = np.ones(len(left), dtype=np.int64), np.zeros(len(left), dtype=np.int64)
        for at in reversed(self.levels):
            count[at] = count[left[at]] + count[right[at]]
        for at in self.levels:
            first[left[at]], first[right[at]] = first[at], first[at] + count[left[at]]
        return count, first

    @cached_property
    def most(self) -> int:
        """The largest number of leaves of a tree."""
        return int(self.leaves[0][self.nodes.roots].max(initial=1))

    @cached_property
    def thresholds(self) -> dict[int, np.ndarray]:
        """All thresholds of each column, in order."""
        inner = np.concatenate([*self.levels, np.empty(0, dtype=np.int64)])
        feature = self.nodes.feature[inner]
        return {int(k): np.unique(self.nodes.threshold[inner[feature == k]]) for k in np.unique(feature)}

    @cached_property
    def blocks(self) -> list[Block]:
        """The trees, in blocks of one class."""
        tree = np.zeros(len(self.nodes.left), dtype=np.int64)
        tree[self.nodes.roots] = np.arange(len(self.nodes.roots))
        for at in self.levels:
            tree[self.nodes.left[at]] = tree[self.nodes.right[at]] = tree[at]
        by_tree = np.argsort(tree, kind="stable")
        ends = np.searchsorted(tree[by_tree], np.arange(len(self.nodes.roots) + 1))
        found = []
        for column in np.unique(self.nodes.column):
            same = np.flatnonzero(self.nodes.column == column)
            for chosen in np.split(same, range(_TREES, len(same), _TREES)):
                at = np.concatenate([by_tree[ends[t] : ends[t + 1]] for t in chosen])
                found.append(self._block(int(column), at, np.searchsorted(chosen, tree[at]), len(chosen)))
        return found

    def _block(self, column: int, at: np.ndarray, tree: np.ndarray, trees: int) -> Block:
        nodes, (count, first) = self.nodes, self.leaves
        leaf = nodes.left[at] == at
        values = np.zeros((trees, self.most))
        values[tree[leaf], first[at[leaf]]] = nodes.value[at[leaf]]
        at, tree = at[~leaf], tree[~leaf]
        order = np.lexsort((nodes.threshold[at], nodes.feature[at]))
        at, tree = at[order], tree[order]
        features, starts = np.unique(nodes.feature[at], return_index=True)
        starts = np.append(starts, len(at))
        ranks, places = [], np.empty(len(at), dtype=np.int64)
        for k, (a, b) in enumerate(pairwise(starts)):
            own = np.searchsorted(self.thresholds[int(features[k])], nodes.threshold[at[a:b]])
            distinct, places[a:b] = np.unique(own, return_inverse=True)
            ranks.append(distinct)
        one = np.uint64(1)
        below = (one << (count[nodes.left[at]] % 64).astype(np.uint64)) - one
        words = ~(below << first[at].astype(np.uint64))
        word = next(word for most, word, _ in _WORDS if self.most <= most)
        missing_right = ~nodes.missing_left[at].astype(bool)
        return Block(column, features, ranks, starts, places, tree, words.astype(word), missing_right, values.ravel())

    def sums(self, inputs: np.ndarray, classes: int, threads: int = 1) -> np.ndarray:
        """The sums of the leaf values for each class, (n, C). NaN is treated as missing."""
        result = np.zeros((len(inputs), classes))
        if not len(self.nodes.roots):
            return result
        if len(inputs) <= _FEW or self.most > _WORDS[-1][0]:
            for start in range(0, len(inputs), _FEW):
                self._walk(inputs[start : start + _FEW], result[start : start + _FEW])
            return result
        missing = np.isnan(inputs).any(0)
        codes = {}
        for k, own in self.thresholds.items():  # NaN is sorted last, above all thresholds
            kind = np.uint16 if len(own) < 2**16 - 1 else np.int64
            codes[k] = np.searchsorted(own, inputs[:, k].astype(np.float64), side="left").astype(kind)
            if missing[k]:
                codes[k][np.isnan(inputs[:, k])] = len(own) + 1
        parts = np.array_split(np.arange(len(inputs)), min(threads, 1 + len(inputs) // (2 * _ROWS)))
        slices = [slice(part[0], part[-1] + 1) for part in parts]
        with ThreadPoolExecutor(len(slices)) as pool:
            for block in self.blocks:
                tables = list(_tables(block, self.most, self.thresholds, missing))
                list(pool.map(lambda rows: _add(block, self.most, tables, codes, rows, result), slices))  # noqa: B023
        return result

    def _walk(self, inputs: np.ndarray, result: np.ndarray) -> None:
        """Add the leaf values of few rows, which go down all trees at the same time."""
        nodes = self.nodes
        at = np.tile(nodes.roots, (len(inputs), 1))
        rows = np.arange(len(inputs))[:, None]
        for _ in self.levels:
            values = inputs[rows, nodes.feature[at]]
            goes_left = (values <= nodes.threshold[at]) | (np.isnan(values) & (nodes.missing_left[at] > 0))
            at = np.where(goes_left, nodes.left[at], nodes.right[at])
        order = np.argsort(nodes.column, kind="stable")
        columns, starts = np.unique(nodes.column[order], return_index=True)
        result[:, columns] += np.add.reduceat(nodes.value[at[:, order]], starts, axis=1)


class LeafTable(NamedTuple):
    """The words of a block's trees for every combination of intervals of some columns."""

    words: np.ndarray
    """(intervals, trees); of several columns, the interval of the last one changes fastest."""
    columns: list[tuple[int, np.ndarray, int]]
    """Of each column: its index, the block's interval for each interval of all thresholds, and the number of them."""


def _tables(block: Block, leaves: int, thresholds: dict[int, np.ndarray], missing: np.ndarray) -> Iterator[LeafTable]:
    """The tables of a block; columns with few thresholds share one."""
    trees = len(block.values) // leaves
    single = []
    for k, feature in enumerate(block.features.tolist()):
        ranks, part = block.ranks[k], slice(block.starts[k], block.starts[k + 1])
        words = np.full((len(ranks) + 1 + missing[feature], trees), ~block.words.dtype.type(0))
        places, own, tree = block.places[part], block.words[part], block.trees[part]
        np.bitwise_and.at(words, (places + 1, tree), own)
        np.bitwise_and.accumulate(words[: len(ranks) + 1], axis=0, out=words[: len(ranks) + 1])
        interval = np.searchsorted(ranks, np.arange(len(thresholds[feature]) + 2))  # the last one is for NaN
        if missing[feature]:
            right = block.missing_right[part]
            np.bitwise_and.at(words[-1], tree[right], own[right])
            interval[-1] = len(ranks) + 1
        single.append(LeafTable(words, [(feature, interval.astype(np.uint16), len(words))]))
    single.sort(key=lambda table: len(table.words))
    joined: LeafTable | None = None
    for table in single:
        if joined is not None and len(joined.words) * len(table.words) <= CELLS:
            both = (joined.words[:, None] & table.words).reshape(-1, trees)
            joined = LeafTable(both, joined.columns + table.columns)
            continue
        if joined is not None:
            yield joined
        joined = table
    if joined is not None:
        yield joined


def _add(
    block: Block, leaves: int, tables: list[LeafTable], codes: dict[int, np.ndarray], part: slice, result: np.ndarray
) -> None:
    """Add the leaf values of a block's trees for some rows."""
    trees = len(block.values) // leaves
    if not tables:  # every tree is a single leaf
        result[part, block.column] += block.values.reshape(trees, leaves)[:, 0].sum()
        return
    _, word, real = next(kind for kind in _WORDS if leaves <= kind[0])
    exponents, shift, offset = (np.int32, 23, 127) if real is np.float32 else (np.int64, 52, 1023)
    intervals = []
    for table in tables:
        found = np.zeros(part.stop - part.start, dtype=np.intp)
        for feature, interval, count in table.columns:
            found *= count
            found += interval[codes[feature][part]]
        intervals.append(found)
    words = np.empty((2, _ROWS, trees), dtype=word)
    first_leaf = (np.arange(trees) * leaves - offset).astype(exponents)
    for start in range(0, part.stop - part.start, _ROWS):
        rows = slice(part.start + start, min(part.start + start + _ROWS, part.stop))
        size = rows.stop - rows.start
        left, other = words[:, :size]
        for k, (table, interval) in enumerate(zip(tables, intervals, strict=True)):
            np.take(table.words, interval[start : start + size], axis=0, out=other if k else left, mode="clip")
            if k:
                np.bitwise_and(left, other, out=left)
        np.bitwise_and(left, np.negative(left, out=other), out=left)  # the lowest bit
        leaf = left.astype(real).view(exponents)
        leaf >>= shift
        leaf += first_leaf
        result[rows, block.column] += np.take(block.values, leaf, mode="clip").sum(1)
