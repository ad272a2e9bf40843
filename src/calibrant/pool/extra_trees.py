"""The forest member of the pool: trees grown independently of each other, stored as plain arrays.

The forest member of the pool: trees grown independently of each other, whose class probabilities are averaged. Each
leaf's probabilities are shrunk towards those of the nodes above it (hierarchical shrinkage, Agarwal et al. 2022). With
the nodes ``t_0, …, t_L`` from the root to the leaf, ``N(t)`` training rows and class shares ``q(t)``::

    q(leaf) = q(t_0) + Σ_l (q(t_l) − q(t_{l−1}))/(1 + λ/N(t_{l−1}))

The mean p of many trees is under-confident where classes are clearly separated, so it becomes ``softmax(β·log p)``.
λ and β are chosen by held-out loss. One forest serves all of them, because they do not change the splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.tree._tree import NODE_DTYPE, Tree
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from calibrant.pool.boosted_trees import telling_columns
from calibrant.pool.pool_members import Rows, held_out_loss
from calibrant.pool.stored_trees import StoredTrees, joined, rounded_down, starts_of

_SPLITS = ("feature", "threshold", "missing_left", "left", "right")
_ROWS = 8192
"""Rows per step."""


@dataclass(frozen=True, kw_only=True)
class StoredExtra(StoredTrees):
    """Logits ``β·log p`` with the mean p of the trees' class probabilities.

    A leaf has no left child: −1. Inputs and thresholds are float32.
    """

    probs: np.ndarray
    """The class probabilities of the leaves in the order of their nodes, (leaves, C)."""
    inverse_temperature: float
    """β."""

    @classmethod
    def of(
        cls, model: ExtraTreesClassifier, columns: np.ndarray, probs: np.ndarray, inverse_temperature: float
    ) -> StoredExtra:
        """The trees of a fitted forest, with the columns that it was fitted to and the probabilities of its nodes."""
        trees = trees_of(model)
        names = ("feature", "threshold", "missing_go_to_left", "children_left", "children_right")
        feature, threshold, missing, left, right = (
            np.concatenate([getattr(tree, name) for tree in trees]) for name in names
        )
        leaf = left < 0
        return cls(
            feature=np.where(leaf, 0, columns[np.where(leaf, 0, feature)]).astype(np.int32),
            threshold=rounded_down(np.where(leaf, 0.0, threshold)),
            missing_left=np.where(leaf, 0, missing).astype(np.uint8),
            left=left.astype(np.int32),
            right=right.astype(np.int32),
            starts=starts_of([tree.node_count for tree in trees]),
            probs=probs[leaf].astype(np.float32),
            inverse_temperature=inverse_temperature,
        )

    @property
    def inner(self) -> np.ndarray:
        return self.left >= 0

    def first(self, trees: int) -> StoredExtra:
        """The forest of the first trees."""
        starts = self.starts[: trees + 1]
        kept = {name: getattr(self, name)[: starts[-1]] for name in _SPLITS}
        return replace(self, **kept, probs=self.probs[: (kept["left"] < 0).sum()], starts=starts)

    def check(self, features: int, n_classes: int, sparse: int | None = None) -> None:
        """Raise an error if the arrays are inconsistent, for example because a child does not exist."""
        if len(self.starts) < 2:
            raise ValueError("a forest must have at least one tree")
        self.check_nodes(features)
        leaves = (~self.inner).sum()
        if self.probs.shape != (leaves, n_classes) or not ((self.probs > 0) & (self.probs <= 1)).all():
            raise ValueError(f"a forest must have probabilities of {n_classes} classes for each leaf")
        if not 0 < self.inverse_temperature < np.inf:
            raise ValueError("a forest must have a positive inverse temperature")

    @cached_property
    def _trees(self) -> list[tuple[Any, np.ndarray]]:
        """scikit-learn's compiled trees, and the probabilities of their nodes; those of inner nodes are not used."""
        probs = np.zeros((len(self.left), self.probs.shape[1]), dtype=np.float32)
        probs[self.left < 0] = self.probs
        features = int(self.feature.max(initial=0)) + 1
        trees = []
        for a, b in zip(self.starts[:-1], self.starts[1:], strict=True):
            nodes = np.zeros(b - a, dtype=NODE_DTYPE)
            nodes["left_child"], nodes["right_child"] = self.left[a:b], self.right[a:b]
            nodes["feature"], nodes["threshold"] = self.feature[a:b], self.threshold[a:b]
            nodes["missing_go_to_left"] = self.missing_left[a:b]
            tree = Tree(features, np.ones(1, dtype=np.intp), 1)
            values = np.zeros((b - a, 1, 1))
            tree.__setstate__({"max_depth": 0, "node_count": b - a, "nodes": nodes, "values": values})
            trees.append((tree, probs[a:b]))
        return trees

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

    def onnx(self, graph: Any, inputs: str) -> str:
        """Write the logits to a graph: each leaf adds to the probabilities of all classes."""
        classes = self.probs.shape[1]
        shares = self.probs.astype(np.float64) / (len(self.starts) - 1)
        targets = np.tile(np.arange(classes), len(shares))
        probs = self.onnx_sums(graph, inputs, targets, shares.ravel(), np.zeros(classes))
        return str(graph.add("Mul", graph.add("Log", probs), self.inverse_temperature))


MOST = 100
"""The most trees in the mean of fold models, to limit prediction time."""


@dataclass(frozen=True)
class BaggedPath:
    """One forest with decreasing shrinkage and, for each shrinkage, increasing inverse temperatures."""

    losses: np.ndarray
    model: ExtraTreesClassifier
    columns: np.ndarray
    """The columns of the inputs that the trees were fitted to."""
    train: Rows
    places: tuple[tuple[float, float], ...]
    """λ and β of each place."""

    def at(self, place: int) -> StoredExtra:
        """The forest with λ and β of one place."""
        shrinkage, inverse_temperature = self.places[place]
        probs = smoothed(shrunk_shares(self.model, shrinkage), self.train)
        return StoredExtra.of(self.model, self.columns, probs, inverse_temperature)


@dataclass(frozen=True)
class ExtraTrees:
    """Extremely randomised trees (Geurts et al. 2006): each split takes the best of one random threshold per column.

    Parameters
    ----------
    trees : the number of trees of one fold
    max_features : the share of the columns that a split considers
    shrinkages : λ of the path, from strong to weak
    inverse_temperatures : β of the path, for each λ
    """

    model: ClassVar[type[StoredExtra]] = StoredExtra
    trees: int = 50
    max_features: float = 0.5
    shrinkages: tuple[float, ...] = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
    inverse_temperatures: tuple[float, ...] = (1.0, 1.4, 2.0, 2.8)

    def path(self, train: Rows, held: Rows, seed: int) -> BaggedPath:
        """Grow one forest, and evaluate it with each shrinkage and inverse temperature."""
        columns = telling_columns(train)
        weights = None if train.sample_weight is None else train.sample_weight / train.sample_weight.mean()
        model = ExtraTreesClassifier(self.trees, max_features=self.max_features, random_state=seed)
        model.fit(train.inputs[:, columns], train.labels, weights)
        places = tuple(product(self.shrinkages, self.inverse_temperatures))
        losses: list[float] = []
        if len(held.labels):
            starts = starts_of([tree.node_count for tree in trees_of(model)])
            leaves = model.apply(held.inputs[:, columns]) + starts[:-1]
            for shrinkage in self.shrinkages:
                mean = np.log(smoothed(shrunk_shares(model, shrinkage), train)[leaves].mean(1))
                losses += [held_out_loss(beta * mean, held) for beta in self.inverse_temperatures]
        return BaggedPath(np.array(losses or [0.0]), model, columns, train, places)

    def mean(self, models: Sequence[StoredExtra]) -> StoredExtra:
        """A forest of the first trees of each model, so that all together do not have too many."""
        fewer = [model.first(max(1, MOST // len(models))) for model in models]
        return StoredExtra(
            **joined(fewer, (*_SPLITS, "probs")),
            inverse_temperature=models[0].inverse_temperature,  # β is the same
        )


def trees_of(model: ExtraTreesClassifier) -> list[Tree]:
    """scikit-learn's compiled trees of a fitted forest."""
    return [estimator.tree_ for estimator in model.estimators_]


def shrunk_shares(model: ExtraTreesClassifier, shrinkage: float) -> np.ndarray:
    """The class shares of all nodes, shrunk towards those of the nodes above, (nodes, classes)."""
    trees = trees_of(model)
    starts = starts_of([tree.node_count for tree in trees])
    node_shares = np.concatenate([tree.value[:, 0, :] for tree in trees])
    size = np.concatenate([tree.weighted_n_node_samples for tree in trees])
    children = [
        np.concatenate([np.where(c < 0, -1, c + first) for c, first in zip(sides, starts[:-1], strict=True)])
        for sides in ([t.children_left for t in trees], [t.children_right for t in trees])
    ]
    shrunk, at = node_shares.copy(), starts[:-1]
    while len(at := at[children[0][at] >= 0]):
        factor = 1 / (1 + shrinkage / size[at])[:, None]
        for child in children:
            shrunk[child[at]] = shrunk[at] + factor * (node_shares[child[at]] - node_shares[at])
        at = np.concatenate([child[at] for child in children])
    return shrunk


def smoothed(shares: np.ndarray, train: Rows) -> np.ndarray:
    """Probabilities of all classes, (nodes, C), mixed with one uniform row beside the n training rows.

    Every probability is at least ``1/(C·(n + 1))``, also those of classes that are absent from the training rows.
    """
    n, classes = len(train.labels), train.n_classes
    probs = np.full((len(shares), classes), 1 / (classes * (n + 1)))
    probs[:, np.unique(train.labels)] += shares * n / (n + 1)
    return probs
