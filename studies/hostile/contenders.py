"""The contenders on hostile data: class frequencies, the pool and its members, scikit-learn, and earlier versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from calibrant.data.scaling import fit_scaling
from calibrant.estimators import CrossCalibrated, SelfCalibratedClassifier
from calibrant.estimators.folds import dealt_splits
from calibrant.methods.blend import KINDS
from calibrant.pool.pool import class_shares, fit_pool
from calibrant.pool.pool_members import Rows, cross_fit
from studies.hostile.cases import Data
from studies.hostile.earlier import SCRIPT

OWN, BEFORE, FREQUENCIES = "self-calibrated", "before", "class-frequencies"
MEMBERS = ("network", "trees", "linear")
CONTENDERS = {
    OWN: "SelfCalibratedClassifier with default settings",
    BEFORE: "SelfCalibratedClassifier of an earlier version",
    FREQUENCIES: "the shares of the classes in the training rows",
    "network": "the networks of the pool alone",
    "trees": "the trees of the pool alone",
    "linear": "the lines of the pool alone",
    "cross-calibrated": "CrossCalibrated(HistGradientBoostingClassifier(early_stopping=True))",
    "hist-gradient-boosting": "scikit-learn's HistGradientBoostingClassifier(early_stopping=True)",
    "logistic-regression": "scikit-learn's LogisticRegression(max_iter=1000) of standardised columns",
    "mlp": "scikit-learn's MLPClassifier(early_stopping=True) of standardised columns",
}
"""The contenders by id, in the order of the report."""


class Frequencies(ClassifierMixin, BaseEstimator):
    """A classifier that predicts the class shares, smoothed by one additional row spread over all classes."""

    def fit(self, X: Any, y: np.ndarray) -> Frequencies:
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.shares_ = class_shares(codes, len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.tile(self.shares_, (X.shape[0], 1))


class Alone(ClassifierMixin, BaseEstimator):
    """One pool member other than the networks, cross-fitted and calibrated alone."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.kind = kind
        self.seed = seed

    def fit(self, X: np.ndarray, y: np.ndarray, groups: np.ndarray | None = None) -> Alone:
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.scaling_ = fit_scaling(_dense(X).astype(np.float64), None)
        rows = Rows(self._inputs(X), codes, None, len(self.classes_))
        splits, together = dealt_splits(rows.inputs, codes, 5, seed=self.seed, groups=groups)
        found = cross_fit(KINDS[self.kind], rows, splits, self.seed)
        assert found is not None
        self.model_ = found.model
        self.pool_ = fit_pool(found.held_out[None], codes, groups=together)
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return self.pool_.probs(log_softmax(self.model_.scores(self._inputs(X)), axis=1)[None])

    def _inputs(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.scaling_.apply(_dense(X)).numpy(), dtype=np.float64)


def fold_seed(seed: int) -> int:
    """Return the seed from which the classifier with this ``random_state`` draws its folds."""
    return int(check_random_state(seed).randint(np.iinfo(np.int32).max))


def estimators(seed: int) -> dict[str, Callable[[], Any]]:
    """Return a function for each contender that makes it, except for earlier versions.

    A member alone uses the folds of the classifier. Other folds would change its loss by chance, and a pool that keeps
    only this member could then be significantly better or worse than the member.
    """
    early: dict[str, Any] = {"early_stopping": True, "random_state": seed}
    return {
        OWN: lambda: SelfCalibratedClassifier(random_state=seed, device="cpu"),
        FREQUENCIES: Frequencies,
        "network": lambda: SelfCalibratedClassifier(members=("network",), random_state=seed, device="cpu"),
        "trees": lambda: Alone("trees", fold_seed(seed)),
        "linear": lambda: Alone("linear", fold_seed(seed)),
        "cross-calibrated": lambda: CrossCalibrated(HistGradientBoostingClassifier(**early), random_state=seed),
        "hist-gradient-boosting": lambda: HistGradientBoostingClassifier(**early),
        "logistic-regression": lambda: make_pipeline(
            StandardScaler(with_mean=False), LogisticRegression(max_iter=1000)
        ),
        "mlp": lambda: make_pipeline(StandardScaler(with_mean=False), MLPClassifier(**early)),
    }


def settings(method: str) -> str:
    """Return a contender's settings as text, for the key of its runs."""
    return CONTENDERS[method] if method == BEFORE else repr(estimators(0)[method]())


def fitted(method: str, data: Data, seed: int) -> Any:
    """Fit a contender to a case; pass the groups if its ``fit`` accepts them."""
    model = estimators(seed)[method]()
    grouped = data.groups is not None and isinstance(model, SelfCalibratedClassifier | CrossCalibrated | Alone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(data.X, data.y, **({"groups": data.groups} if grouped else {}))


def earlier(source: str, data: Data, seed: int) -> tuple[np.ndarray, Mapping[str, Any]]:
    """Return the probabilities and cost of an earlier version's classifier, run in a separate process.

    ``source`` is the folder that holds its package ``calibrant``.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "given.npz"), Path(folder, "found.npz")
        thin = np.array(sparse.issparse(data.X))
        np.savez(given, y=data.y, sparse=thin, X=_dense(data.X), X_test=_dense(data.X_test))
        call = [sys.executable, "-c", SCRIPT, str(given), str(found), str(seed)]
        done = subprocess.run(
            call, env=os.environ | {"PYTHONPATH": source}, capture_output=True, text=True, check=False, cwd=folder
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it ended without an error message"]
            raise ValueError(lines[-1])
        return np.load(found)["probs"], json.loads(done.stdout.splitlines()[-1])


def _dense(X: Any) -> np.ndarray:
    return np.asarray(X.todense()) if sparse.issparse(X) else X
