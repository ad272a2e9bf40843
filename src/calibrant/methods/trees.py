"""The tree member: gradient boosting whose number of trees is chosen by held-out loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from calibrant.methods.forest import Forest
from calibrant.methods.members import Rows, held_out_loss, unseen


@dataclass(frozen=True)
class TreePath:
    """A forest after each boosting iteration."""

    losses: np.ndarray
    model: HistGradientBoostingClassifier
    baseline: np.ndarray
    column: Any

    def at(self, place: int) -> Forest:
        """The forest after so many iterations, or all of them."""
        return Forest.of(self.model, place, self.baseline, self.column)


@dataclass(frozen=True)
class ConstantPath:
    """Rows of one class have no trees."""

    losses: np.ndarray
    forest: Forest

    def at(self, place: int) -> Forest:
        """The same forest everywhere."""
        return self.forest


@dataclass(frozen=True)
class Trees:
    """Histogram gradient boosting.

    Parameters
    ----------
    learning_rate, leaves, least : shrinkage, most leaves of a tree, and least rows of a leaf
    iterations : most boosting iterations
    patience : iterations without a better held-out loss after which a fold stops
    penalty : L2 penalty of the leaf values
    """

    learning_rate: float = 0.05
    leaves: int = 31
    least: int = 20
    iterations: int = 1000
    patience: int = 20
    penalty: float = 0.0
    columns: float = 1.0

    def path(self, train: Rows, held: Rows, seed: int) -> TreePath | ConstantPath:
        """Boost until the held-out loss rises for so long."""
        present = np.unique(train.labels)
        baseline = np.full(train.classes, unseen(train))
        baseline[present] = 0.0
        if len(present) < 2:
            forest = Forest.constant(baseline)
            return ConstantPath(np.array([held_out_loss(forest.scores(held.inputs), held)]), forest)
        model = HistGradientBoostingClassifier(
            learning_rate=self.learning_rate,
            max_leaf_nodes=self.leaves,
            min_samples_leaf=max(1, min(self.least, len(train.labels) // 10)),
            max_iter=self.iterations,
            l2_regularization=self.penalty,
            max_features=self.columns,
            early_stopping=True,
            n_iter_no_change=self.patience,
            tol=0.0,
            random_state=seed,
        )
        judges = held.take(np.flatnonzero(np.isin(held.labels, present)))
        if not len(judges.labels):
            judges = train
        model.fit(
            train.inputs,
            train.labels,
            train.weights,
            X_val=judges.inputs,
            y_val=judges.labels,
            sample_weight_val=judges.weights,
        )
        column = present[1:] if len(present) == 2 else present
        start = model._baseline_prediction.ravel()
        baseline[present] = [0.0, start[0]] if len(present) == 2 else start
        return TreePath(-model.validation_score_, model, baseline, column)

    def mean(self, models: Sequence[Forest]) -> Forest:
        """The forest of all trees, each with its share."""
        return Forest.mean(models)
