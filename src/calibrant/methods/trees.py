"""The tree member of the pool: gradient boosting with its number of trees chosen by held-out loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from calibrant.methods.forest import Forest
from calibrant.methods.members import Rows, held_out_loss, unseen

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

    def at(self, place: int) -> Forest:
        """The forest after ``place`` iterations, or after all if there are fewer."""
        forest = Forest.of(self.model, place, self.baseline, self.classes)
        return replace(forest, feature=self.columns[forest.feature])


@dataclass(frozen=True)
class ConstantPath:
    """A path without trees, for training rows of a single class."""

    losses: np.ndarray
    forest: Forest

    def at(self, place: int) -> Forest:
        """The same forest at every place."""
        return self.forest


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

    learning_rate: float = 0.1
    iterations: int = 500
    patience: int = 20
    least: int = 20
    trees: int = 1500

    def path(self, train: Rows, held: Rows, seed: int) -> TreePath | ConstantPath:
        """Boost until the held-out loss has not improved for ``patience`` iterations."""
        present = np.unique(train.labels)
        baseline = np.full(train.n_classes, unseen(train))
        baseline[present] = 0.0
        if len(present) < 2:
            forest = Forest.constant(baseline)
            return ConstantPath(np.array([held_out_loss(forest.scores(held.inputs), held)]), forest)
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

    def mean(self, models: Sequence[Forest]) -> Forest:
        """The mean of the forests; only of the first ones if all together would have too many trees."""
        sizes = np.cumsum([np.bincount(model.column, minlength=1).max() for model in models])
        return Forest.mean(models[: max(1, int((sizes <= MOST).sum()))])


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
