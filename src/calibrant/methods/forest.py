"""Boosted trees as plain arrays: predictions without the estimator that fitted them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from calibrant.methods.reachable import Evaluator, Nodes

_FIELDS = {
    "feature": "feature_idx",
    "threshold": "num_threshold",
    "missing_left": "missing_go_to_left",
    "left": "left",
    "right": "right",
    "leaf": "is_leaf",
    "value": "value",
}
"""Our names for the fields of scikit-learn's nodes."""


@dataclass(frozen=True)
class Forest:
    """Sums of trees, one for each class: ``baseline_c + Σ_t leaf value of tree t``.

    The nodes of all trees are concatenated. Child indices count from the first node of the tree.
    """

    feature: np.ndarray
    threshold: np.ndarray
    """A row goes left if its value is at most this."""
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    leaf: np.ndarray
    value: np.ndarray
    starts: np.ndarray
    """The index of the first node of each tree, followed by the total number of nodes."""
    column: np.ndarray
    """The class whose logit each tree adds to."""
    baseline: np.ndarray
    """Logits before any tree, (C,)."""

    @classmethod
    def of(cls, model: HistGradientBoostingClassifier, iterations: int, baseline: np.ndarray, column: Any) -> Forest:
        """The trees of the first iterations of a fitted model. ``column`` is the class of each tree of an iteration."""
        chosen = model._predictors[:iterations]
        trees = [tree.nodes for each in chosen for tree in each]
        nodes = np.concatenate(trees) if trees else np.empty(0, dtype=PREDICTOR_RECORD_DTYPE)
        if nodes["is_categorical"].any():
            raise ValueError("All splits of a forest must be numeric; got trees with categorical splits.")
        kinds = {"feature": np.int32, "left": np.int16, "right": np.int16}
        arrays = {name: nodes[own].astype(kinds.get(name, nodes[own].dtype)) for name, own in _FIELDS.items()}
        starts = np.concatenate([[0], np.cumsum([len(nodes) for nodes in trees], dtype=np.int64)])
        return cls(**arrays, starts=starts, column=np.tile(np.asarray(column), len(chosen)), baseline=baseline)

    @classmethod
    def constant(cls, baseline: np.ndarray) -> Forest:
        """A forest without trees."""
        count, number = np.empty(0, dtype=np.int32), np.empty(0)
        return cls(count, number, count, count, count, count, number, np.zeros(1, dtype=np.int64), count, baseline)

    @classmethod
    def mean(cls, forests: Sequence[Forest]) -> Forest:
        """One forest whose logits are the mean of the logits of these forests."""
        names = [f.name for f in fields(cls) if f.name not in ("starts", "baseline", "value")]
        joined = {name: np.concatenate([getattr(forest, name) for forest in forests]) for name in names}
        sizes = np.concatenate([np.diff(forest.starts) for forest in forests])
        return cls(
            **joined,
            value=np.concatenate([forest.value for forest in forests]) / len(forests),
            starts=np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
            baseline=np.mean([forest.baseline for forest in forests], axis=0),
        )

    @cached_property
    def _evaluator(self) -> Evaluator:
        sizes = np.diff(self.starts)
        root = np.repeat(self.starts[:-1], sizes)
        own, leaf = np.arange(len(root)), self.leaf.astype(bool)
        left, right = (np.where(leaf, own, root + child) for child in (self.left, self.right))
        feature = np.where(leaf, 0, self.feature)
        parts = feature, self.threshold, self.missing_left, left, right, self.value, self.starts[:-1], self.column
        return Evaluator(Nodes(*parts))

    def check(self, features: int, n_classes: int) -> None:
        """Raise an error if the arrays are inconsistent, for example because a child does not exist."""
        if self.baseline.shape != (n_classes,) or len(self.starts) != len(self.column) + 1:
            raise ValueError("the trees of a forest do not match its classes")
        others = (self.threshold, self.missing_left, self.leaf, self.value)
        check_nodes(self.feature, self.left, self.right, self.leaf == 0, self.starts, features, others)
        if self.column.dtype.kind not in "iu" or ((self.column < 0) | (self.column >= n_classes)).any():
            raise ValueError("a tree of a forest belongs to a class that does not exist")

    def scores(self, inputs: np.ndarray, sparse: Any = None) -> np.ndarray:
        """Logits, (n, C). NaN is treated as missing."""
        return self.baseline + self._evaluator.sums(inputs, len(self.baseline), _openmp_effective_n_threads())


def check_nodes(
    feature: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    inner: np.ndarray,
    starts: np.ndarray,
    features: int,
    others: Sequence[np.ndarray],
) -> None:
    """Raise an error if the nodes of concatenated trees are inconsistent, for example because a child does not exist.

    Parameters
    ----------
    left, right : the children of each node, counted from the first node of its tree
    inner : whether a node has children
    starts : the index of the first node of each tree, followed by the total number of nodes
    features : the number of columns of the inputs
    others : further arrays with one value for each node
    """
    if any(part.dtype.kind not in "iu" for part in (feature, left, right, starts)):  # NaN passes all checks below
        raise ValueError("the columns and children of a forest must be integers")
    count, sizes = len(feature), np.diff(starts)
    if any(part.shape != (count,) for part in (feature, left, right, inner, *others)):
        raise ValueError("the arrays of a forest differ in length")
    if starts[0] != 0 or starts[-1] != count or (sizes < 1).any():
        raise ValueError("the trees of a forest do not match its nodes")
    room = np.repeat(sizes, sizes)
    own = np.arange(count) - np.repeat(starts[:-1], sizes)
    for child in (left, right):
        if ((child <= own) | (child >= room))[inner].any():  # children come later, so no loops
            raise ValueError("a tree of a forest refers to a child that does not exist")
    if ((feature < 0) | (feature >= features))[inner].any():
        raise ValueError(f"a tree of a forest splits a column that does not exist; there are {features}")
