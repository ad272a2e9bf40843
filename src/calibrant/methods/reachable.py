"""Fast evaluation of boosted trees: bit masks of the leaves that a row can reach, and descent for few rows.

Masks follow QuickScorer (Lucchese et al. 2015, "QuickScorer: a fast algorithm to rank documents with additive ensembles
of regression trees"). The leaves of a tree are the bits of a word, from left to right. A node that sends a row to the
right removes the leaves of its left subtree, and the lowest bit that remains is the row's leaf. The words of many trees
are looked up at once in one table per column, by the interval between thresholds that a value lies in. Each lookup
copies neighbouring words, whereas a walk down a tree waits for one node after the other.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from calibrant.methods.leaf_tables import (
    MOST_LEAVES,
    STEP,
    Block,
    Intervals,
    add_leaves,
    block_tables,
    paired_values,
    word_for,
)

_TREES = 64
"""Trees per block: the words of a block's trees lie side by side."""
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
        missing_right = ~nodes.missing_left[at].astype(bool)
        return Block(
            column, features, ranks, starts, places, tree, words.astype(word_for(self.most)), missing_right, values
        )

    def sums(self, inputs: np.ndarray, classes: int, threads: int = 1) -> np.ndarray:
        """The sums of the leaf values for each class, (n, C). NaN is treated as missing."""
        result = np.zeros((len(inputs), classes))
        if not len(self.nodes.roots):
            return result
        if len(inputs) <= _FEW or self.most > MOST_LEAVES:
            for start in range(0, len(inputs), _FEW):
                self._walk(inputs[start : start + _FEW], result[start : start + _FEW])
            return result
        rows = Intervals.of(inputs, self.thresholds)
        parts = np.array_split(np.arange(len(inputs)), min(threads, 1 + len(inputs) // (2 * STEP)))
        slices = [slice(part[0], part[-1] + 1) for part in parts]
        with ThreadPoolExecutor(len(slices)) as pool:
            running: list[Future[None]] = []
            for block in self.blocks:  # the tables of a block are made while the previous block is evaluated
                tables, values = block_tables(block, rows), paired_values(block.values)
                for job in running:
                    job.result()
                running = [pool.submit(add_leaves, tables, values, part, result[:, block.column]) for part in slices]
            for job in running:
                job.result()
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
