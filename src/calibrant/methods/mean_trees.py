"""A forest as plain arrays: the mean of the trees' class probabilities, without the estimator that fitted them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.tree._tree import NODE_DTYPE, Tree
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from calibrant.methods.forest import check_nodes

_SPLITS = ("feature", "threshold", "missing_left", "left", "right")
_ROWS = 8192
"""Rows per step."""


@dataclass(frozen=True)
class MeanTrees:
    """Logits ``β·log p`` with the mean p of the trees' class probabilities.

    The nodes of all trees are concatenated. Child indices count from the first node of the tree.
    """

    feature: np.ndarray
    threshold: np.ndarray
    """A row goes left if its value is at most this. Inputs and thresholds are float32."""
    missing_left: np.ndarray
    left: np.ndarray
    """The left child; −1 for a leaf."""
    right: np.ndarray
    probs: np.ndarray
    """The class probabilities of the leaves in the order of their nodes, (leaves, C)."""
    starts: np.ndarray
    """The index of the first node of each tree, followed by the total number of nodes."""
    inverse_temperature: float
    """β."""

    @classmethod
    def of(
        cls, model: ExtraTreesClassifier, columns: np.ndarray, probs: np.ndarray, inverse_temperature: float
    ) -> MeanTrees:
        """The trees of a fitted forest, with the columns that it was fitted to and the probabilities of its nodes."""
        trees = [each.tree_ for each in model.estimators_]
        names = ("feature", "threshold", "missing_go_to_left", "children_left", "children_right")
        feature, threshold, missing, left, right = (
            np.concatenate([getattr(tree, name) for tree in trees]) for name in names
        )
        leaf = left < 0
        return cls(
            np.where(leaf, 0, columns[np.where(leaf, 0, feature)]).astype(np.int32),
            rounded_down(np.where(leaf, 0.0, threshold)),
            np.where(leaf, 0, missing).astype(np.uint8),
            left.astype(np.int32),
            right.astype(np.int32),
            probs[leaf].astype(np.float32),
            np.concatenate([[0], np.cumsum([tree.node_count for tree in trees], dtype=np.int64)]),
            inverse_temperature,
        )

    @classmethod
    def mean(cls, forests: Sequence[MeanTrees]) -> MeanTrees:
        """One forest of all trees, for forests with the same β."""
        sizes = np.concatenate([np.diff(forest.starts) for forest in forests])
        joined = {name: np.concatenate([getattr(forest, name) for forest in forests]) for name in (*_SPLITS, "probs")}
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        return cls(**joined, starts=starts, inverse_temperature=forests[0].inverse_temperature)

    def first(self, trees: int) -> MeanTrees:
        """The forest of the first trees."""
        starts = self.starts[: trees + 1]
        kept = {name: getattr(self, name)[: starts[-1]] for name in _SPLITS}
        return replace(self, **kept, probs=self.probs[: (kept["left"] < 0).sum()], starts=starts)

    def check(self, features: int, n_classes: int) -> None:
        """Raise an error if the arrays are inconsistent, for example because a child does not exist."""
        leaf = self.left < 0
        if len(self.starts) < 2:
            raise ValueError("a forest must have at least one tree")
        others = (self.threshold, self.missing_left)
        check_nodes(self.feature, self.left, self.right, ~leaf, self.starts, features, others)
        if self.probs.shape != (leaf.sum(), n_classes) or not ((self.probs > 0) & (self.probs <= 1)).all():
            raise ValueError(f"a forest must have probabilities of {n_classes} classes for each leaf")
        if not 0 < self.inverse_temperature < np.inf:
            raise ValueError("a forest must have a positive inverse temperature")

    @cached_property
    def _trees(self) -> list[tuple[Any, np.ndarray]]:
        """scikit-learn's compiled trees, and the probabilities of their nodes; those of inner nodes are not used."""
        probs = np.zeros((len(self.left), self.probs.shape[1]), dtype=np.float32)
        probs[self.left < 0] = self.probs
        features = int(self.feature.max(initial=0)) + 1
        found = []
        for a, b in zip(self.starts[:-1], self.starts[1:], strict=True):
            nodes = np.zeros(b - a, dtype=NODE_DTYPE)
            nodes["left_child"], nodes["right_child"] = self.left[a:b], self.right[a:b]
            nodes["feature"], nodes["threshold"] = self.feature[a:b], self.threshold[a:b]
            nodes["missing_go_to_left"] = self.missing_left[a:b]
            tree = Tree(features, np.ones(1, dtype=np.intp), 1)
            values = np.zeros((b - a, 1, 1))
            tree.__setstate__({"max_depth": 0, "node_count": b - a, "nodes": nodes, "values": values})
            found.append((tree, probs[a:b]))
        return found

    def mean_probs(self, inputs: np.ndarray) -> np.ndarray:
        """The mean of the trees' class probabilities, (n, C)."""
        total = np.zeros((len(inputs), self.probs.shape[1]))
        for tree, probs in self._trees:
            total += probs.take(tree.apply(inputs), axis=0)
        return total / len(self._trees)

    def scores(self, inputs: np.ndarray, sparse: Any = None) -> np.ndarray:
        """Logits, (n, C). NaN is treated as missing."""
        if inputs.shape[1] <= self.feature.max(initial=-1):
            raise ValueError(f"inputs must have at least {self.feature.max() + 1} columns; got {inputs.shape[1]}.")
        steps = np.split(inputs.astype(np.float32), range(_ROWS, len(inputs), _ROWS))
        with ThreadPoolExecutor(min(len(steps), _openmp_effective_n_threads())) as pool:
            probs = np.concatenate(list(pool.map(self.mean_probs, steps)))
        return np.asarray(self.inverse_temperature * np.log(probs))


def rounded_down(threshold: np.ndarray) -> np.ndarray:
    """Thresholds as float32. Rounded down, they split float32 numbers exactly as in float64."""
    found = threshold.astype(np.float32)
    above = found.astype(np.float64) > threshold
    found[above] = np.nextafter(found[above], np.float32(-np.inf))
    return found
