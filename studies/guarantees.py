"""Measure how often rejection rules and prediction sets keep their guarantees: ``python -m studies.guarantees``.

Classifiers are fitted to small data sets whose posterior is known. Rules and sets come from their out-of-fold rows.
Risk and coverage on new data are exact, up to the choice of new inputs. For comparison, "split" fits rules and sets to
a fifth of the rows that is set aside.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from scipy.stats import beta
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from calibrant.estimators import SelfCalibratedClassifier
from calibrant.estimators.selective import SelectiveMixin
from calibrant.metrics import Estimate, mean_interval
from calibrant.selective import RAPS, RejectionRule, Window, conformal_rule, threshold_for_risk
from studies import script
from studies.report import Column, Record, Verdict, to_markdown
from studies.sets import NOISE_FREE, SETS, fresh, load_problem

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
NOISY = [name for name in SETS if name not in NOISE_FREE]
"""Sets with label noise, where every classifier makes errors."""
ROWS = 500
NEW_ROWS = 8_000
RISKS = (0.05, 0.1, 0.15)
SHOWN_RISK = 0.1
"""The risk of the rules in the table; the targets are judged at all three."""
CONFIDENCE, COVERAGE = 0.9, 0.9
TESTS: tuple[Literal["ranks", "fixed-sequence"], ...] = ("ranks", "fixed-sequence")
"""Tests of thresholds: the default, and a sharper one that assumes that risk falls with confidence."""
FIXED = (0.7, 0.9)
"""Thresholds that do not depend on the data. For independent rows, the upper limit of Clopper and Pearson for their
risk is nearly exact, so it tests out-of-fold rows more sharply than rules that search for a threshold."""
SCORES: dict[str, Any] = {"aps": "aps", "raps": RAPS(k_reg=1, penalty=0.1), "lac": "lac"}
"""Scores of the prediction sets. With at most five classes, RAPS with default settings would equal APS."""
FINALS = {"mean": "mean of the fold models", "refit": "one model of all rows", "split": "a fifth set aside"}
"""The classifiers that are judged; "folds" are the fold models, one by one."""
Rules = dict[str, RejectionRule]


class FoldMean(SelectiveMixin, ClassifierMixin, BaseEstimator):
    """The mean of models that each leave out one fold; ``refitted_`` is one model trained on all rows."""

    def __init__(self, estimator: Any, random_state: int | None = None) -> None:
        self.estimator = estimator
        self.random_state = random_state

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Train one model per left-out fold, and one on all rows."""
        self.classes_, self.oof_labels_ = np.unique(y, return_inverse=True)
        self.oof_proba_ = np.empty((len(y), len(self.classes_)))
        self.models_ = []
        for train, held in StratifiedKFold(FOLDS, shuffle=True, random_state=self.random_state).split(X, y):
            model = clone(self.estimator).fit(X[train], y[train])
            self.oof_proba_[held] = model.predict_proba(X[held])
            self.models_.append(model)
        self.refitted_ = clone(self.estimator).fit(X, y)
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """The mean of the fold models' probabilities."""
        return np.mean([model.predict_proba(X) for model in self.models_], axis=0)


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


def measure(runs: Sequence[script.Run]) -> list[Record]:
    """The records of data sets: values for each final classifier, and for a calibration part set aside."""
    return [{**run, **measure_one(run["dataset"], run["learner"], run["seed"])} for run in runs]


def measure_one(dataset: str, learner: str, seed: int) -> Record:
    """The values of one data set and learner."""
    X, y = load_problem(dataset, seed, sizes=(ROWS, 0, 0)).train
    new = world(dataset)
    record: Record = {}
    if learner == NETWORK:
        clf: Any = clone(LEARNERS[NETWORK]).set_params(random_state=seed).fit(X, y)
        finals = {"mean": clf.predict_proba(new.inputs)}
    else:
        clf = FoldMean(LEARNERS[learner], random_state=seed).fit(X, y)
        each = [model.predict_proba(new.inputs) for model in clf.models_]
        finals = {"mean": np.mean(each, axis=0), "refit": clf.refitted_.predict_proba(new.inputs)}
        record["split"] = _split(learner, X, y, new)
    predicted = np.isfinite(clf.oof_proba_).all(axis=1)
    rules = _rules(partial(clf.rejection_rule, level=CONFIDENCE))
    rules |= fixed_rules(clf.oof_proba_[predicted], clf.oof_labels_[predicted])
    if learner != NETWORK:
        outcomes = [new.outcome(probs) for probs in each]
        record["folds"] = {"rules": {name: kept(rule, outcomes) for name, rule in rules.items()}}
    sets = {name: clf.set_rule(COVERAGE, score) for name, score in SCORES.items()}
    return record | {name: _judged(rules, sets, probs, new) for name, probs in finals.items()}


def _rules(make: Callable[..., RejectionRule]) -> Rules:
    """One rule for each test and risk."""
    return {f"{test} {risk:g}": make(risk, method=test) for test in TESTS for risk in RISKS}


def fixed_rules(probs: np.ndarray, labels: np.ndarray) -> Rules:
    """Rules at the thresholds ``FIXED``, each with an upper limit of its risk."""
    confidence, wrong = probs.max(axis=1), probs.argmax(axis=1) != labels
    rules = {}
    for threshold in FIXED:
        window = Window.below(threshold)
        accepted = window.accepts(confidence)
        n, errors = int(accepted.sum()), int(wrong[accepted].sum())
        bound = float(beta.ppf(CONFIDENCE, errors + 1, n - errors)) if errors < n else 1.0
        share, risk = n / len(labels), errors / max(n, 1)
        rules[f"fixed {threshold:g}"] = RejectionRule(
            window, "none", None, "Clopper and Pearson", len(labels), share, risk, CONFIDENCE, bound
        )
    return rules


def _judged(rules: Rules, sets: dict[str, Any], probs: np.ndarray, new: World) -> Record:
    """Risk and share of accepted rows for each rule, coverage and size for each score."""
    covered = {}
    for name, set_rule in sets.items():
        members = set_rule.apply(probs)
        covered[name] = {"coverage": new.coverage(members), "size": members.sum(1).mean()}
    outcome = new.outcome(probs)
    return {"rules": {name: kept(rule, [outcome]) for name, rule in rules.items()}, "sets": covered}


def kept(rule: RejectionRule, outcomes: Sequence[RuleOutcome]) -> Record:
    """The pooled risk of some classifiers at one threshold (None if they accept nothing), and the share accepted."""
    if not rule.found:
        return {"found": False, "bound": rule.target, "risk": None, "accepted": 0.0}
    accepted = [rule.accepts(outcome.confidence) for outcome in outcomes]
    number = sum(int(rows.sum()) for rows in accepted)
    wrong = sum(outcome.wrong[rows].sum() for outcome, rows in zip(outcomes, accepted, strict=True))
    risk = float(wrong / number) if number else None
    return {"found": True, "bound": rule.risk_bound, "risk": risk, "accepted": number / sum(map(len, accepted))}


def _split(learner: str, X: np.ndarray, y: np.ndarray, new: World) -> Record:
    """Rules and sets from a fifth of the rows set aside, for one model trained on the other rows."""
    held = np.arange(len(y)) % FOLDS == 0
    model = clone(LEARNERS[learner]).fit(X[~held], y[~held])
    probs = model.predict_proba(X[held])
    choose = partial(threshold_for_risk, probs.max(axis=1), probs.argmax(axis=1) == y[held], level=CONFIDENCE)
    sets = {name: conformal_rule(probs, y[held], COVERAGE, score=score) for name, score in SCORES.items()}
    rules = _rules(choose) | fixed_rules(probs, y[held])
    return _judged(rules, sets, model.predict_proba(new.inputs), new)


def frame(records: Sequence[Record], kind: str) -> pd.DataFrame:
    """One row for each data set, classifier and rule (``kind`` "rules"), or score of prediction sets ("sets")."""
    rows = [
        {"learner": r["learner"], "dataset": r["dataset"], "seed": r["seed"], "final": final, "name": name, **values}
        for r in records
        for final in (*FINALS, "folds")
        for name, values in r.get(final, {}).get(kind, {}).items()
    ]
    table = pd.DataFrame(rows)
    return table.assign(broken=table["risk"].astype(float) > table["bound"]) if kind == "rules" else table


def share(broken: pd.Series) -> Estimate:
    """The share of data sets whose risk on new data exceeds the bound, with the interval of Clopper and Pearson."""
    n, count = len(broken), int(broken.sum())
    low = beta.ppf(0.025, count, n - count + 1) if count else 0.0
    high = beta.ppf(0.975, count + 1, n - count) if count < n else 1.0
    return Estimate(count / n, float(low), float(high), 0.95, "Clopper and Pearson")


def by_classifier(table: pd.DataFrame) -> list[tuple[list[str], pd.DataFrame]]:
    """The rows of each learner and final classifier, in the order of the tables; the first cells name them."""
    groups = dict(iter(table.groupby(["learner", "final"], sort=False)))
    keys = itertools.product(table["learner"].unique(), FINALS)
    return [([learner, FINALS[final]], groups[learner, final]) for learner, final in keys if (learner, final) in groups]


def targets(records: Sequence[Record]) -> str:
    """Whether the promises were kept by each final classifier: the worst case over all learners, sets and risks.

    A promise is missed if the interval of some case lies beyond it.
    """
    rules, sets = frame(records, "rules"), frame(records, "sets")
    rows: list[list[str]] = []
    for final, test in itertools.product(FINALS, TESTS):
        judged = rules[(rules["final"] == final) & rules["name"].str.startswith(test)]
        cases = {key: share(rows) for key, rows in judged.groupby(["learner", "dataset", "name"], sort=False)["broken"]}
        if cases:
            learner, dataset, name = worst = max(cases, key=lambda key: cases[key].low)
            where = f"most: {cases[worst].value:.3f} ({learner}, {dataset}, risk {name.removeprefix(test + ' ')})"
            allowed = 1 - CONFIDENCE
            statement = f"Rules ({test}), {FINALS[final]}: not significantly more than {allowed:.0%} broken"
            rows.append([statement, where, Verdict(statement, None, cases[worst].low <= allowed).word])
    for final, title in FINALS.items():
        least = least_covered(sets[sets["final"] == final])
        if least:
            learner, dataset, score, covered = least
            statement = f"Sets, {title}: coverage not significantly below {COVERAGE:.0%}"
            where = f"least: {covered.value:.3f} ({learner}, {dataset}, {score})"
            rows.append([statement, where, Verdict(statement, None, covered.high >= COVERAGE).word])
    return to_markdown(["target", "measured", "verdict"], rows)


def least_covered(sets: pd.DataFrame) -> tuple[str, str, str, Estimate] | None:
    """Learner, set, score and mean coverage with the lowest upper limit; None without intervals."""
    groups = sets.groupby(["learner", "dataset", "name"], sort=False)["coverage"]
    means = {key: mean_interval(values) for key, values in groups}
    measured = [(*key, mean) for key, mean in means.items() if not np.isnan(mean.high)]
    return min(measured, key=lambda entry: entry[-1].high, default=None)


def rules_table(records: Sequence[Record]) -> str:
    """How often rules for one risk were found and broken, and how much they accept."""
    rows = []
    for about, judged in by_classifier(frame(records, "rules")):
        each = [judged[judged["name"] == f"{test} {SHOWN_RISK:g}"] for test in TESTS]
        cells = [cell for rules in each for cell in (share(rules["broken"]), mean_interval(rules["accepted"]))]
        rows.append([*about, len(each[0]), each[0]["found"].mean(), *cells])
    headings = [Column(f"{what} ({test})", digits=n) for test in TESTS for what, n in (("broken", 3), ("accepted", 2))]
    return to_markdown(["learner", "classifier", "data sets", Column("rules found", digits=2), *headings], rows)


def bounds_table(records: Sequence[Record]) -> str:
    """How often bounds at fixed thresholds were exceeded, one table for each threshold.

    "Fold models" tests whether out-of-fold errors are like errors on new rows; "classifier" also tests whether the
    final classifier is no worse than the fold models. The difference of risk is that of these two.
    """
    parts = []
    for threshold in FIXED:
        rules = frame(records, "rules").query(f"name == 'fixed {threshold:g}'")
        folds = dict(iter(rules[rules["final"] == "folds"].groupby("learner")))
        rows = []
        for (learner, title), judged in by_classifier(rules):
            cells: list[Any] = [None, share(judged["broken"]), None]
            if learner in folds and title != FINALS["split"]:
                final, pooled = (rows_of["risk"].to_numpy(float) for rows_of in (judged, folds[learner]))
                gaps = (final - pooled)[~np.isnan(final - pooled)]
                cells[::2] = share(folds[learner]["broken"]), mean_interval(gaps)
            rows.append([learner, title, len(judged), *cells])
        headings = ["exceeded by fold models", "exceeded by classifier", "difference of risk"]
        parts += [f"Threshold {threshold:g}:", to_markdown(["learner", "classifier", "data sets", *headings], rows)]
    return "\n\n".join(parts)


def sets_table(records: Sequence[Record]) -> str:
    """Coverage and mean size of prediction sets, and the synthetic set with the lowest coverage over all scores."""
    rows = []
    for about, judged in by_classifier(frame(records, "sets")):
        means = [mean_interval(judged[judged["name"] == s][what]) for s in SCORES for what in ("coverage", "size")]
        least = least_covered(judged)
        rows.append([*about, *means, f"{least[-1].value:.3f} on {least[1]}" if least else None])
    headings = [f"{score}: {what}" for score in SCORES for what in ("coverage", "size")]
    return to_markdown(["learner", "classifier", *headings, "least covered"], rows)


def main(words: Sequence[str]) -> None:
    """Measure the data sets that are not stored, and print the tables."""
    parser = script.options(__doc__ or "", "results/guarantees.json")
    parser.add_argument("--seeds", type=int, default=100, help="data sets for each fast learner and set")
    parser.add_argument("--network-seeds", type=int, default=6, help="data sets for the self-calibrated classifier")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--sets", nargs="+", choices=NOISY, default=NOISY)
    chosen = parser.parse_args(words)
    runs = [
        [{"dataset": dataset, "learner": learner, "seed": seed}]
        for learner in chosen.learners
        for dataset in chosen.sets
        for seed in range(chosen.network_seeds if learner == NETWORK else chosen.seeds)
    ]
    order = {"dataset": NOISY, "learner": list(LEARNERS), "seed": None}
    records = script.run_missing(chosen, "guarantees", runs, measure, order)
    print("\n\n".join(make(records) for make in (targets, rules_table, bounds_table, sets_table)))


if __name__ == "__main__":
    main(sys.argv[1:])
