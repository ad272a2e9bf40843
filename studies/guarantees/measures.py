"""Measure one data set: fit rules and sets on out-of-fold rows, and judge them by the exact posterior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.stats import beta
from sklearn.base import clone

from calibrant.report.results import Record
from calibrant.selective import RAPS, RejectionRule, Window, conformal_rule, threshold_for_risk
from studies.common.keys import Key
from studies.guarantees.learners import FOLDS, LEARNERS, NETWORK, FoldMean
from studies.sets import fresh, load_problem

ROWS = 500
NEW_ROWS = 8_000
RISKS = (0.05, 0.1, 0.15)
CONFIDENCE, COVERAGE = 0.9, 0.9
TESTS: tuple[Literal["ranks", "fixed-sequence"], ...] = ("ranks", "fixed-sequence")
"""Tests of thresholds: the default, and a sharper one that assumes that risk falls with confidence."""
FIXED = (0.7, 0.9)
"""Thresholds that do not depend on the data. For independent rows, the upper limit of Clopper and Pearson for their
risk is nearly exact, so it tests out-of-fold rows more sharply than rules that search for a threshold."""
SCORES: dict[str, Any] = {"aps": "aps", "raps": RAPS(k_reg=1, penalty=0.1), "lac": "lac"}
"""Scores of the prediction sets. With at most five classes, RAPS with default settings would equal APS."""
Rules = dict[str, RejectionRule]


class RuleOutcome(NamedTuple):
    """Confidence and exact error probability of a classifier on the new rows."""

    confidence: np.ndarray
    wrong: np.ndarray


class World(NamedTuple):
    """New rows of a synthetic set with their exact posterior, shared by all data sets drawn from it."""

    inputs: np.ndarray
    posterior: np.ndarray

    def outcome(self, probs: np.ndarray) -> RuleOutcome:
        """The confidence and the exact error probability of each row."""
        chosen = probs.argmax(axis=1)[:, None]
        confidence, right = (np.take_along_axis(values, chosen, axis=1)[:, 0] for values in (probs, self.posterior))
        return RuleOutcome(confidence, 1 - right)

    def coverage(self, sets: np.ndarray) -> float:
        """The exact probability that the prediction sets contain the true class."""
        return float((self.posterior * sets).sum(axis=1).mean())


@cache
def world(dataset: str) -> World:
    """Draw new rows from random numbers that no training set uses."""
    data = fresh(dataset, NEW_ROWS, 0)
    return World(data.inputs, data.posterior(data.inputs))


def measure(key: Key) -> dict[Key, Record]:
    """The record of one data set: values for each final classifier, and for a calibration part set aside."""
    dataset, learner, seed = key["dataset"], key["learner"], key["seed"]
    X, y = load_problem(dataset, seed, sizes=(ROWS, 0, 0)).train
    new = world(dataset)
    if learner == NETWORK:
        clf: Any = clone(LEARNERS[NETWORK]).set_params(random_state=seed).fit(X, y)
        finals = {"mean": clf.predict_proba(new.inputs)}
        found: Record = {}
    else:
        clf = FoldMean(LEARNERS[learner], random_state=seed).fit(X, y)
        each = [model.predict_proba(new.inputs) for model in clf.models_]
        finals = {"mean": np.mean(each, axis=0), "refit": clf.refitted_.predict_proba(new.inputs)}
        found = {"split": _split(learner, X, y, new)}
    known = np.isfinite(clf.oof_proba_).all(axis=1)
    rules = _rules(partial(clf.rejection_rule, level=CONFIDENCE))
    rules |= fixed_rules(clf.oof_proba_[known], clf.oof_labels_[known])
    if learner != NETWORK:
        outcomes = [new.outcome(probs) for probs in each]
        found["folds"] = {"rules": {name: kept(rule, outcomes) for name, rule in rules.items()}}
    sets = {name: clf.set_rule(COVERAGE, score) for name, score in SCORES.items()}
    found |= {name: _judged(rules, sets, probs, new) for name, probs in finals.items()}
    return {key: {"dataset": dataset, "learner": learner, "seed": seed, **found}}


def rule_name(test: str, risk: float) -> str:
    """The name of a rule in a record."""
    return f"{test} {risk:g}"


def _rules(make: Callable[..., RejectionRule]) -> Rules:
    """One rule for each test and risk."""
    return {rule_name(test, risk): make(risk, method=test) for test in TESTS for risk in RISKS}


def fixed_rules(probs: np.ndarray, labels: np.ndarray) -> Rules:
    """Rules at the thresholds ``FIXED``, each with an upper limit of its risk."""
    confidence, wrong = probs.max(axis=1), probs.argmax(axis=1) != labels
    found = {}
    for threshold in FIXED:
        window = Window.below(threshold)
        accepted = window.accepts(confidence)
        n, errors = int(accepted.sum()), int(wrong[accepted].sum())
        bound = float(beta.ppf(CONFIDENCE, errors + 1, n - errors)) if errors < n else 1.0
        found[rule_name("fixed", threshold)] = RejectionRule(
            window,
            "none",
            None,
            "Clopper and Pearson",
            len(labels),
            n / len(labels),
            errors / max(n, 1),
            CONFIDENCE,
            bound,
        )
    return found


def _judged(rules: Rules, sets: dict[str, Any], probs: np.ndarray, new: World) -> Record:
    """Risk and share of accepted rows for each rule, coverage and size for each score."""
    applied = {name: own.apply(probs) for name, own in sets.items()}
    covered = {name: {"coverage": new.coverage(own), "size": own.sum(1).mean()} for name, own in applied.items()}
    outcome = new.outcome(probs)
    return {"rules": {name: kept(rule, [outcome]) for name, rule in rules.items()}, "sets": covered}


def kept(rule: RejectionRule, outcomes: Sequence[RuleOutcome]) -> Record:
    """The pooled risk of some classifiers at one threshold (None if they accept nothing), and the share accepted."""
    if not rule.found:
        return {"found": False, "bound": rule.target, "risk": None, "accepted": 0.0}
    accepted = [rule.accepts(own.confidence) for own in outcomes]
    number = sum(int(rows.sum()) for rows in accepted)
    wrong = sum(own.wrong[rows].sum() for own, rows in zip(outcomes, accepted, strict=True))
    share = number / sum(len(rows) for rows in accepted)
    return {
        "found": True,
        "bound": rule.risk_bound,
        "risk": float(wrong / number) if number else None,
        "accepted": share,
    }


def _split(learner: str, X: np.ndarray, y: np.ndarray, new: World) -> Record:
    """Rules and sets from a fifth of the rows set aside, for one model trained on the other rows."""
    held = np.arange(len(y)) % FOLDS == 0
    model = clone(LEARNERS[learner]).fit(X[~held], y[~held])
    probs = model.predict_proba(X[held])
    choose = partial(threshold_for_risk, probs.max(axis=1), probs.argmax(axis=1) == y[held], level=CONFIDENCE)
    sets = {name: conformal_rule(probs, y[held], COVERAGE, score=score) for name, score in SCORES.items()}
    rules = _rules(choose) | fixed_rules(probs, y[held])
    return _judged(rules, sets, model.predict_proba(new.inputs), new)
