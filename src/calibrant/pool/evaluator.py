"""Fast evaluation of boosted trees: bit masks of the leaves that a row can reach, and descent for few rows.

Masks follow QuickScorer (Lucchese et al. 2015, "QuickScorer: a fast algorithm to rank documents with additive ensembles
of regression trees"). The leaves of a tree are the bits of a word, from left to right. A node that sends a row to the
right removes the leaves of its left subtree, and the lowest bit that remains is the row's leaf. The words of many trees
are looked up at once in one table per column, by the interval between thresholds that a value lies in. Each lookup
copies neighbouring words, whereas a walk down a tree waits for one node after the other.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from calibrant.pool.leaf_tables import (
    MOST_LEAVES,
    ROW_BYTES,
    STEP,
    Block,
    Intervals,
    block_tables,
    leaf_sums,
    paired_values,
    word_for,
)

ROWS = 2**17
"""Rows that are evaluated at once, to limit the memory for their intervals."""
_BALANCED = 8
"""With fewer blocks per thread, rows are divided among the threads as well, so that all have the same work."""
_FEW = 32
"""Up to this many rows, walking down all trees at once is faster than making tables."""


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


@dataclass(frozen=True)
class Evaluator:
    """Sums of leaf values, one for each class."""

    nodes: Nodes

    @cached_property
    def levels(self) -> list[np.ndarray]:
        """The inner nodes by depth."""
        levels, at = [], self.nodes.roots
        while len(at := at[self.nodes.left[at] != at]):
            levels.append(at)
            at = np.concatenate([self.nodes.left[at], self.nodes.right[at]])
        return levels

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
    def chosen(self) -> list[tuple[int, np.ndarray]]:
        """The class and the trees of each block. The words of a block's trees lie side by side in tables."""
        most, blocks = ROW_BYTES // np.dtype(word_for(self.most)).itemsize, []
        for column in np.unique(self.nodes.column):
            same = np.flatnonzero(self.nodes.column == column)
            blocks += [(int(column), block_trees) for block_trees in np.array_split(same, -(-len(same) // most))]
        return blocks

    @cached_property
    def by_tree(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tree of each node, the nodes in the order of their trees, and the end of each tree in this order."""
        tree = np.zeros(len(self.nodes.left), dtype=np.int64)
        tree[self.nodes.roots] = np.arange(len(self.nodes.roots))
        for at in self.levels:
            tree[self.nodes.left[at]] = tree[self.nodes.right[at]] = tree[at]
        order = np.argsort(tree, kind="stable")
        return tree, order, np.searchsorted(tree[order], np.arange(len(self.nodes.roots) + 1))

    @cached_property
    def _built_blocks(self) -> dict[int, Block]:
        return {}

    def block(self, k: int) -> Block:
        """The k-th block, which is made when it is first needed."""
        if k not in self._built_blocks:
            (column, chosen), (tree, order, ends) = self.chosen[k], self.by_tree
            at = np.concatenate([order[ends[t] : ends[t + 1]] for t in chosen])
            self._built_blocks[k] = self._block(column, at, np.searchsorted(chosen, tree[at]), len(chosen))
        return self._built_blocks[k]

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
            rank = np.searchsorted(self.thresholds[int(features[k])], nodes.threshold[at[a:b]])
            distinct, places[a:b] = np.unique(rank, return_inverse=True)
            ranks.append(distinct)
        one = np.uint64(1)
        below = (one << (count[nodes.left[at]] % 64).astype(np.uint64)) - one
        words = ~(below << first[at].astype(np.uint64))
        missing_right = ~nodes.missing_left[at].astype(bool)
        return Block(
            column, features, ranks, starts, places, tree, words.astype(word_for(self.most)), missing_right, values
        )

    def sums(self, inputs: np.ndarray, classes: int, threads: int = 1) -> np.ndarray:
        """The sums of the leaf values for each class, (n, C). NaN is treated as missing."""
        result = np.zeros((classes, len(inputs))).T  # rows of one class are neighbours in memory
        if not len(self.nodes.roots):
            return result
        if len(inputs) <= _FEW or self.most > MOST_LEAVES:
            for start in range(0, len(inputs), _FEW):
                self._walk(inputs[start : start + _FEW], result[start : start + _FEW])
            return result
        with ThreadPoolExecutor(threads) as pool:
            for start in range(0, len(inputs), ROWS):
                self._add(inputs[start : start + ROWS], result[start : start + ROWS], pool, threads)
        return result

    def _add(self, inputs: np.ndarray, result: np.ndarray, pool: ThreadPoolExecutor, threads: int) -> None:
        """Add the leaf values of many rows. Each thread evaluates one block after the other."""
        rows = Intervals.of(inputs, self.thresholds, pool.map)
        parts = 1 if len(self.chosen) >= _BALANCED * threads else min(threads, 1 + len(inputs) // (2 * STEP))
        bounds = np.linspace(0, len(inputs), parts + 1).astype(int).tolist()
        jobs = [(k, slice(a, b)) for k in range(len(self.chosen)) for a, b in pairwise(bounds)]
        _ = self.leaves, self.by_tree  # made once, not by every thread

        def sums(job: tuple[int, slice]) -> np.ndarray:
            block = self.block(job[0])
            return leaf_sums(block_tables(block, rows), paired_values(block.values), job[1])

        for (k, part), block_sums in zip(jobs, pool.map(sums, jobs), strict=True):
            result[part, self.chosen[k][0]] += block_sums

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
