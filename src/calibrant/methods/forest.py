"""Boosted trees as plain arrays: what a fitted forest predicts, without the estimator that fitted it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

_BLOCK = 8192
"""Rows that all trees see before the next ones do: they stay in the cache."""
_NO_CATEGORIES = np.zeros((0, 8), dtype=np.uint32)
_FIELDS = {
    "feature": "feature_idx",
    "threshold": "num_threshold",
    "missing_left": "missing_go_to_left",
    "left": "left",
    "right": "right",
    "leaf": "is_leaf",
    "value": "value",
}
"""Our names of the fields of scikit-learn's nodes."""


@dataclass(frozen=True)
class Forest:
    """Sums of trees, one sum for each class: ``baseline_c + Σ_t leaf value of tree t``.

    Nodes of all trees lie one after the other. Child numbers count from the tree's first node.
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
    """The first node of each tree, and the number of all nodes at the end."""
    column: np.ndarray
    """The class whose logit each tree adds to."""
    baseline: np.ndarray
    """Logits before any tree, (C,)."""

    @classmethod
    def of(cls, model: HistGradientBoostingClassifier, iterations: int, baseline: np.ndarray, column: Any) -> Forest:
        """The first trees of a fitted model. ``column`` holds the class of each tree of an iteration."""
        chosen = model._predictors[:iterations]
        trees = [tree.nodes for each in chosen for tree in each]
        nodes = np.concatenate(trees) if trees else np.empty(0, dtype=PREDICTOR_RECORD_DTYPE)
        if nodes["is_categorical"].any():
            raise ValueError("A forest of plain arrays holds numeric splits only; got trees with categorical splits.")
        kinds = {"feature": np.int32, "left": np.int32, "right": np.int32}
        arrays = {name: nodes[own].astype(kinds.get(name, nodes[own].dtype)) for name, own in _FIELDS.items()}
        starts = np.concatenate([[0], np.cumsum([len(nodes) for nodes in trees], dtype=np.int64)])
        return cls(**arrays, starts=starts, column=np.tile(np.asarray(column), len(chosen)), baseline=baseline)

    @classmethod
    def mean(cls, forests: Sequence[Forest]) -> Forest:
        """One forest whose logits are the mean of these forests' logits."""
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
    def _trees(self) -> list[TreePredictor]:
        """scikit-learn's predictors, which walk through the nodes in compiled code."""
        nodes = np.zeros(len(self.feature), dtype=PREDICTOR_RECORD_DTYPE)
        for name, own in _FIELDS.items():
            nodes[own] = getattr(self, name)
        ends = zip(self.starts[:-1], self.starts[1:], strict=True)
        return [TreePredictor(nodes[a:b], _NO_CATEGORIES, _NO_CATEGORIES) for a, b in ends]

    def scores(self, inputs: np.ndarray) -> np.ndarray:
        """Logits, (n, C). NaN counts as missing."""
        result = np.tile(self.baseline, (len(inputs), 1))
        places, threads = np.zeros(inputs.shape[1], dtype=np.uint32), _openmp_effective_n_threads()
        for start in range(0, len(inputs), _BLOCK):
            block = np.ascontiguousarray(inputs[start : start + _BLOCK], dtype=np.float64)
            own = result[start : start + _BLOCK]
            for tree, column in zip(self._trees, self.column.tolist(), strict=True):
                own[:, column] += tree.predict(block, _NO_CATEGORIES, places, threads)
        return result
