"""The forest member of the pool: trees grown independently of each other, whose class probabilities are averaged.

Each leaf's probabilities are shrunk towards those of the nodes above it (hierarchical shrinkage, Agarwal et al. 2022).
With the nodes ``t_0, …, t_L`` from the root to the leaf, ``N(t)`` training rows and class shares ``q(t)``::

    q(leaf) = q(t_0) + Σ_l (q(t_l) − q(t_{l−1}))/(1 + λ/N(t_{l−1}))

The mean p of many trees is under-confident where classes are clearly separated, so it becomes ``softmax(β·log p)``.
λ and β are chosen by held-out loss. One forest serves all of them, because they do not change the splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier

from calibrant.methods.mean_trees import MeanTrees
from calibrant.methods.members import Rows, held_out_loss
from calibrant.methods.trees import telling_columns

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

    def at(self, place: int) -> MeanTrees:
        """The forest with λ and β of one place."""
        shrinkage, inverse_temperature = self.places[place]
        probs = smoothed(shrunk_shares(self.model, shrinkage), self.train)
        return MeanTrees.of(self.model, self.columns, probs, inverse_temperature)


@dataclass(frozen=True)
class Bagging:
    """Extremely randomised trees (Geurts et al. 2006): each split takes the best of one random threshold per column.

    Parameters
    ----------
    trees : the number of trees of one fold
    max_features : the share of the columns that a split considers
    shrinkages : λ of the path, from strong to weak
    inverse_temperatures : β of the path, for each λ
    """

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
            leaves = model.apply(held.inputs[:, columns]) + starts_of(model)[:-1]
            for shrinkage in self.shrinkages:
                mean = np.log(smoothed(shrunk_shares(model, shrinkage), train)[leaves].mean(1))
                losses += [held_out_loss(beta * mean, held) for beta in self.inverse_temperatures]
        return BaggedPath(np.array(losses or [0.0]), model, columns, train, places)

    def mean(self, models: Sequence[MeanTrees]) -> MeanTrees:
        """A forest of the first trees of each model, so that all together do not have too many."""
        return MeanTrees.mean([model.first(max(1, MOST // len(models))) for model in models])


def starts_of(model: ExtraTreesClassifier) -> np.ndarray:
    """The index of the first node of each tree if the nodes of all trees are concatenated; then their number."""
    return np.concatenate([[0], np.cumsum([each.tree_.node_count for each in model.estimators_], dtype=np.int64)])


def shrunk_shares(model: ExtraTreesClassifier, shrinkage: float) -> np.ndarray:
    """The class shares of all nodes, shrunk towards those of the nodes above, (nodes, classes)."""
    trees, starts = [each.tree_ for each in model.estimators_], starts_of(model)
    own = np.concatenate([tree.value[:, 0, :] for tree in trees])
    size = np.concatenate([tree.weighted_n_node_samples for tree in trees])
    children = [
        np.concatenate([np.where(c < 0, -1, c + first) for c, first in zip(sides, starts[:-1], strict=True)])
        for sides in ([t.children_left for t in trees], [t.children_right for t in trees])
    ]
    found, at = own.copy(), starts[:-1]
    while len(at := at[children[0][at] >= 0]):
        factor = 1 / (1 + shrinkage / size[at])[:, None]
        for child in children:
            found[child[at]] = found[at] + factor * (own[child[at]] - own[at])
        at = np.concatenate([child[at] for child in children])
    return found


def smoothed(shares: np.ndarray, train: Rows) -> np.ndarray:
    """Probabilities of all classes, (nodes, C), mixed with one uniform row beside the n training rows.

    Every probability is at least ``1/(C·(n + 1))``, also those of classes that are absent from the training rows.
    """
    n, classes = len(train.labels), train.n_classes
    found = np.full((len(shares), classes), 1 / (classes * (n + 1)))
    found[:, np.unique(train.labels)] += shares * n / (n + 1)
    return found
