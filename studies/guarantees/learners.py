"""The cross-fitted classifiers of the study: fast scikit-learn models, and the recommended classifier."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from calibrant.estimators import SelfCalibratedClassifier
from calibrant.estimators.selective import SelectiveMixin

FOLDS = 5
NETWORK = "self-calibrated"
LEARNERS: dict[str, Any] = {
    "logistic": make_pipeline(
        StandardScaler(), PolynomialFeatures(2, include_bias=False), LogisticRegression(solver="newton-cholesky")
    ),
    "neighbours": KNeighborsClassifier(15),
    "tree": DecisionTreeClassifier(min_samples_leaf=5, random_state=0),
    NETWORK: SelfCalibratedClassifier(),
}
"""From stable to unstable: in a tree, one row can change the predictions of many others."""


class FoldMean(SelectiveMixin, ClassifierMixin, BaseEstimator):
    """The mean of models that each leave out one fold; ``refitted_`` is one model trained on all rows.

    Parameters
    ----------
    estimator : a scikit-learn classifier
    folds : the number of folds
    random_state : seed of the assignment of rows to folds
    """

    def __init__(self, estimator: Any, folds: int = FOLDS, random_state: int | None = None) -> None:
        self.estimator = estimator
        self.folds = folds
        self.random_state = random_state

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Train one model per left-out fold, and one on all rows."""
        self.classes_, self.oof_labels_ = np.unique(y, return_inverse=True)
        self.oof_proba_ = np.empty((len(y), len(self.classes_)))
        self.models_ = []
        for train, held in StratifiedKFold(self.folds, shuffle=True, random_state=self.random_state).split(X, y):
            model = clone(self.estimator).fit(X[train], y[train])
            self.oof_proba_[held] = model.predict_proba(X[held])
            self.models_.append(model)
        self.refitted_ = clone(self.estimator).fit(X, y)
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """The mean of the fold models' probabilities."""
        return np.mean([model.predict_proba(X) for model in self.models_], axis=0)
