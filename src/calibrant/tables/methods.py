"""The methods of `calibrant train`, and the choice of their rejection rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.base.settings import check_choice
from calibrant.estimators import BO4SCClassifier, SelfCalibratedClassifier
from calibrant.estimators.base import NetworkClassifier
from calibrant.selective import RejectionRule, threshold_for_risk

LEVEL = 0.9
"""The probability with which a rejection rule keeps its risk."""


@dataclass(frozen=True)
class TableMethod:
    """A method: how to make its classifier, and a one-line summary."""

    make: Callable[..., NetworkClassifier]
    summary: str
    cross_fitted: bool
    """Whether every training row has out-of-fold probabilities, from which a rule can be chosen."""


METHODS: dict[str, TableMethod] = {
    "self-calibrated": TableMethod(
        SelfCalibratedClassifier, "networks, boosted trees and a linear model, cross-fitted and pooled", True
    ),
    "self-calibrated-network": TableMethod(
        lambda **settings: SelfCalibratedClassifier(members=("network",), **settings), "its networks alone", True
    ),
    "bo4sc": TableMethod(
        BO4SCClassifier, "one network with a learned weight for each row (Sanguin et al. 2024)", False
    ),
}


def find_method(name: str) -> TableMethod:
    """Return a method by its id."""
    check_choice("--method", name, tuple(METHODS))
    return METHODS[name]


def choose_rule(classifier: Any, risk: float, aside: tuple[Any, np.ndarray] | None) -> RejectionRule:
    """Choose when to withhold a prediction, so that at most a share ``risk`` of the others is wrong.

    ``aside`` holds rows that the classifier was not trained on, for classifiers that are not cross-fitted.
    """
    if aside is None:
        rule: RejectionRule = classifier.rejection_rule(risk, LEVEL)
        return rule
    inputs, labels = aside
    probs = classifier.predict_proba(inputs)
    correct = classifier.classes_[probs.argmax(axis=1)] == labels
    return threshold_for_risk(probs.max(axis=1), correct, risk, level=LEVEL)
