"""Seconds to fit the classifiers on a large table with 5 % random labels, and the resulting scores."""

from __future__ import annotations

import time
from typing import Any

from sklearn.datasets import make_classification

from calibrant import BO4SCClassifier, SelfCalibratedClassifier
from calibrant.metrics import accuracy, ece, nll, noise_floor
from studies.benchmarks.harness import Record, record

ROWS, TEST = 50_000, 10_000
LIMIT = 300.0
"""Seconds on two cores: "minutes"."""


def run() -> list[Record]:
    """Measure one fit each; the time of such a long fit varies little."""
    X, y = make_classification(ROWS + TEST, 50, n_informative=20, n_classes=4, flip_y=0.05, random_state=0)
    return [_fit(kind(random_state=0), X, y) for kind in (SelfCalibratedClassifier, BO4SCClassifier)]


def _fit(classifier: Any, X: Any, y: Any) -> Record:
    begin = time.perf_counter()
    classifier.fit(X[:ROWS], y[:ROWS])
    seconds = time.perf_counter() - begin
    probs, labels = classifier.predict_proba(X[ROWS:]), y[ROWS:]
    return record(
        f"{type(classifier).__name__}, 50,000 rows × 50 columns, 4 classes, fit, seconds",
        seconds,
        LIMIT,
        accuracy=accuracy(probs, labels),
        nll=nll(probs, labels),
        ece15=ece(probs, labels),
        floor_self15=noise_floor(probs).mean,
        lapse=getattr(classifier, "lapse_", None),
    )
