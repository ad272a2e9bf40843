"""The tree member of the pool: gradient boosting, stored as plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from threadpoolctl import threadpool_limits

from calibrant.pool.evaluator import Evaluator
from calibrant.pool.pool_members import ModelPath, Rows, held_out_loss, unseen

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


@dataclass(frozen=True, kw_only=True)
class StoredBoosted:
    """Sums of trees, one for each class: ``baseline_c + Σ_t leaf value of tree t``.

    The nodes of all trees are concatenated. Child indices count from the first node of the tree. A row goes left if its
    value is at most the threshold, or if it is missing and ``missing_left`` is set.
    """

    feature: np.ndarray
    threshold: np.ndarray
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
    def of(
        cls, model: HistGradientBoostingClassifier, iterations: int, baseline: np.ndarray, column: Any
    ) -> StoredBoosted:
        """The trees of the first iterations of a fitted model. ``column`` is the class of each tree of an iteration."""
        trees = [tree.nodes for iteration in model._predictors[:iterations] for tree in iteration]
        nodes = np.concatenate([np.empty(0, dtype=PREDICTOR_RECORD_DTYPE), *trees])
        kinds = {"feature": np.int32, "left": np.int16, "right": np.int16}
        arrays = {name: nodes[field].astype(kinds.get(name, nodes[field].dtype)) for name, field in _FIELDS.items()}
        column = np.resize(np.asarray(column), len(trees))
        return cls(**arrays, starts=_starts_of([len(tree) for tree in trees]), column=column, baseline=baseline)

    @classmethod
    def constant(cls, baseline: np.ndarray) -> StoredBoosted:
        """A forest without trees."""
        nothing = dict.fromkeys((*_FIELDS, "column"), np.empty(0, dtype=np.int32))
        return cls(**nothing, starts=_starts_of([]), baseline=baseline)

    @classmethod
    def mean(cls, forests: Sequence[StoredBoosted]) -> StoredBoosted:
        """One forest whose logits are the mean of the logits of these forests."""
        names = (*_FIELDS, "column")
        arrays = {name: np.concatenate([getattr(forest, name) for forest in forests]) for name in names}
        arrays["value"] = arrays["value"] / len(forests)
        starts = _starts_of(np.concatenate([np.diff(forest.starts) for forest in forests]))
        return cls(**arrays, starts=starts, baseline=np.mean([forest.baseline for forest in forests], axis=0))

    @property
    def inner(self) -> np.ndarray:
        """Whether a node has children."""
        return self.leaf == 0

    @property
    def root(self) -> np.ndarray:
        """The first node of each node's tree."""
        return np.repeat(self.starts[:-1], np.diff(self.starts))

    @cached_property
    def _evaluator(self) -> Evaluator:
        node = np.arange(len(self.leaf))
        left, right = (np.where(self.inner, self.root + child, node) for child in (self.left, self.right))
        feature = np.where(self.inner, self.feature, 0)
        return Evaluator(feature, self.threshold, self.missing_left, left, right, self.value, self.starts, self.column)

    def check(self, features: int, n_classes: int, sparse: int | None = None) -> None:
        """Raise an error if the arrays are inconsistent, for example because a child does not exist."""
        if self.baseline.shape != (n_classes,) or len(self.starts) != len(self.column) + 1:
            raise ValueError("the trees of a forest do not match its classes")
        integers = (self.feature, self.left, self.right, self.starts, self.column)
        if any(part.dtype.kind not in "iu" for part in integers):  # NaN passes all checks below
            raise ValueError("the columns, children and classes of a forest must be integers")
        count, sizes = len(self.feature), np.diff(self.starts)
        if any(getattr(self, name).shape != (count,) for name in _FIELDS):
            raise ValueError("the arrays of a forest differ in length")
        if self.starts[0] != 0 or self.starts[-1] != count or (sizes < 1).any():
            raise ValueError("the trees of a forest do not match its nodes")
        place, size = np.arange(count) - self.root, np.repeat(sizes, sizes)
        for child in (self.left, self.right):
            # Children come after their parents, so that no path is a circle.
            if ((child <= place) | (child >= size))[self.inner].any():
                raise ValueError("a tree of a forest refers to a child that does not exist")
        if ((self.feature < 0) | (self.feature >= features))[self.inner].any():
            raise ValueError(f"a tree of a forest splits a column that does not exist; there are {features}")
        if ((self.column < 0) | (self.column >= n_classes)).any():
            raise ValueError("a tree of a forest belongs to a class that does not exist")

    def scores(self, inputs: np.ndarray, sparse: Any = None) -> np.ndarray:
        """Logits, (n, C). NaN is treated as missing."""
        return self.baseline + self._evaluator.sums(inputs, len(self.baseline), _openmp_effective_n_threads())

    def onnx(self, graph: Any, inputs: str) -> str:
        """Write the logits to a graph: each leaf adds to the logit of its tree's class."""
        if not len(self.column):
            return str(graph.rows(self.baseline, inputs))
        leaf, sizes = ~self.inner, np.diff(self.starts)
        tree, place = np.repeat(np.arange(len(sizes)), sizes), np.arange(len(leaf)) - self.root
        sums = graph.add(
            "TreeEnsembleRegressor",
            inputs,
            domain="ai.onnx.ml",
            n_targets=len(self.baseline),
            base_values=self.baseline.astype(np.float32).tolist(),
            nodes_treeids=tree.tolist(),
            nodes_nodeids=place.tolist(),
            nodes_featureids=np.where(leaf, 0, self.feature).tolist(),
            nodes_modes=np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(),
            nodes_values=np.where(leaf, np.float32(0), _rounded_down(self.threshold)).tolist(),
            nodes_truenodeids=np.where(leaf, 0, self.left).tolist(),
            nodes_falsenodeids=np.where(leaf, 0, self.right).tolist(),
            nodes_missing_value_tracks_true=np.where(leaf, 0, self.missing_left).astype(int).tolist(),
            target_treeids=tree[leaf].tolist(),
            target_nodeids=place[leaf].tolist(),
            target_ids=self.column[tree[leaf]].astype(int).tolist(),
            target_weights=self.value[leaf].astype(np.float32).tolist(),
        )
        return str(graph.cast(sums, np.float64))


def _starts_of(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """The index of the first node of each tree, for trees of these sizes, followed by the total number of nodes."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _rounded_down(threshold: np.ndarray) -> np.ndarray:
    """Thresholds as float32. Rounded down, they split float32 numbers exactly as in float64."""
    rounded = threshold.astype(np.float32)
    above = rounded.astype(np.float64) > threshold
    rounded[above] = np.nextafter(rounded[above], np.float32(-np.inf))
    return rounded


FEW = 5000
"""With fewer rows, trees are small and consider half of the columns for each split, which gives a lower loss."""
MANY = 10
"""The learning rate is doubled for more classes than this; with more than ``WIDE`` columns, for more than two."""
WIDE = 100
"""Trees use at most this many columns: those that separate the classes best, each considered alone."""
VERY_WIDE = 500
"""With more columns and more than two classes, the learning rate is doubled again, and each split considers only
``TRIED`` of the columns. This takes half the time, and the loss is about the same."""
TRIED = 0.2
COARSE = 63
"""Bins per column if columns were left out; this takes a quarter of the usual work for each split."""
MOST = 500
"""The most trees per logit in the mean of fold models, to limit prediction time; a single model may have more."""


SERIAL = 500_000
"""Up to this many cells (rows × columns), trees are grown by one thread."""


@dataclass(frozen=True)
class TreePath:
    """A forest after each boosting iteration."""

    losses: np.ndarray
    model: HistGradientBoostingClassifier
    baseline: np.ndarray
    """Logits before any tree."""
    classes: np.ndarray
    """The class of each tree of an iteration."""
    columns: np.ndarray
    """The columns of the inputs that the trees were fitted to."""

    def at(self, place: int) -> StoredBoosted:
        """The forest after ``place`` iterations, or after all if there are fewer."""
        forest = StoredBoosted.of(self.model, place, self.baseline, self.classes)
        return replace(forest, feature=self.columns[forest.feature])


@dataclass(frozen=True)
class Trees:
    """Histogram gradient boosting.

    Parameters
    ----------
    learning_rate : shrinkage of each tree. It is doubled if an iteration is slow: for more than ten classes, or for
        wide rows with more than two classes. It is doubled again for very wide rows with more than two classes
    iterations : the maximum number of boosting iterations
    patience : a fold stops after this many iterations without a better held-out loss, at a learning rate of 0.1
    least : the minimum number of rows in a leaf, or a tenth of the rows if that is smaller
    trees : the maximum number of trees of one fold, with one tree per class and iteration
    """

    model: ClassVar[type[StoredBoosted]] = StoredBoosted
    learning_rate: float = 0.1
    iterations: int = 500
    patience: int = 20
    least: int = 20
    trees: int = 1500

    def path(self, train: Rows, held: Rows, seed: int) -> TreePath | ModelPath:
        """Boost until the held-out loss has not improved for ``patience`` iterations."""
        present = np.unique(train.labels)
        baseline = np.full(train.n_classes, unseen(train))
        baseline[present] = 0.0
        if len(present) < 2:
            forest = StoredBoosted.constant(baseline)
            return ModelPath(np.array([held_out_loss(forest.scores(held.inputs), held)]), (forest,))
        few, columns = len(train.labels) < FEW, telling_columns(train)
        wide = len(columns) < train.inputs.shape[1]
        pair = len(present) == 2  # one tree per iteration, for the second class
        quick = train.inputs.shape[1] > VERY_WIDE and not pair
        rate = self.learning_rate * (4 if quick else 2 if len(present) > (2 if wide else MANY) else 1)
        model = HistGradientBoostingClassifier(
            learning_rate=rate,
            max_leaf_nodes=15 if few else 31,
            max_features=TRIED if quick else 0.5 if few else 1.0,
            min_samples_leaf=max(1, min(self.least, len(train.labels) // 10)),
            max_iter=max(1, min(self.iterations, self.trees // (1 if pair else len(present)))),
            early_stopping=True,
            n_iter_no_change=max(1, round(self.patience * 0.1 / rate)),
            tol=0.0,
            max_bins=COARSE if wide else 255,
            random_state=seed,
        )
        judges = held.take(np.flatnonzero(np.isin(held.labels, present)))
        judges = judges if len(judges.labels) else train
        with threads_for(len(train.labels) * len(columns)):
            model.fit(
                train.inputs[:, columns],
                train.labels,
                train.sample_weight,
                X_val=judges.inputs[:, columns],
                y_val=judges.labels,
                sample_weight_val=judges.sample_weight,
            )
        start = model._baseline_prediction.ravel()
        baseline[present] = [0.0, start[0]] if pair else start
        return TreePath(-model.validation_score_, model, baseline, present[1:] if pair else present, columns)

    def mean(self, models: Sequence[StoredBoosted]) -> StoredBoosted:
        """The mean of the forests; only of the first ones if all together would have too many trees."""
        sizes = np.cumsum([np.bincount(model.column, minlength=1).max() for model in models])
        return StoredBoosted.mean(models[: max(1, int((sizes <= MOST).sum()))])


def threads_for(cells: int) -> AbstractContextManager[Any]:
    """One OpenMP thread for a table of few cells, and the usual number for others.

    Threads wait for each other many times per tree. For a small table they save little, and if other processes use the
    same cores, waiting takes up to a hundred times as long as the work.
    """
    return threadpool_limits(1, user_api="openmp") if cells <= SERIAL else nullcontext()


def telling_columns(rows: Rows, most: int = WIDE) -> np.ndarray:
    """The ``most`` columns with the largest ratio of between-class to within-class variance; all if there are fewer."""
    count = rows.inputs.shape[1]
    if count <= most:
        return np.arange(count)
    values = np.nan_to_num(rows.inputs)
    values -= values.mean(0)
    sizes = np.bincount(rows.labels, minlength=rows.n_classes)
    sums = np.eye(rows.n_classes)[rows.labels].T @ values
    between = (sums**2 / np.maximum(sizes, 1)[:, None]).sum(0)
    total = (values**2).sum(0)
    explained = np.divide(between, total, out=np.zeros(count), where=total > 0)  # grows with the F-ratio
    return np.sort(np.argsort(-explained, kind="stable")[:most])
