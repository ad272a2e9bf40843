"""Tests that prediction sets agree with MAPIE (1.6) where both use the same formula.

MAPIE's u is 1 − u here: its APS score is ρ + p − u·p. Its randomised scores on the sample and its deterministic sets of
new rows belong to different scores; the tests take its scores and its sets apart.
"""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit
from sklearn.utils import check_random_state

from calibrant.selective import APS, LAC, RAPS, CrossSetRule, SetRule, conformal_rule, cross_conformal_rule
from calibrant.selective.conformal import conformal_quantile
from calibrant.selective.set_scores import rank_classes
from tests.blobs import blobs

mapie = pytest.importorskip("mapie.classification")
N = 100


class Given(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose inputs are the probabilities themselves."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return np.asarray(X)

    def predict(self, X):
        return self.classes_[np.argmax(X, axis=1)]

    def __sklearn_is_fitted__(self):
        return True


class Inclusive(APS):
    """ρ + p: what MAPIE compares with its quantile for a deterministic set."""

    def __call__(self, classes, u=1.0):
        return classes.above + classes.proba


def sample(rows=N, seed=0):
    data = blobs(rows, seed=seed)
    return data.posterior(data.inputs), data.labels


def theirs(score, coverage, probs, labels, new, **params):
    model = Given().fit(probs, labels)
    fitted = mapie.SplitConformalClassifier(
        model, confidence_level=coverage, conformity_score=score, prefit=True, random_state=3
    ).conformalize(probs, labels)
    sets = fitted.predict_set(new, conformity_score_params=params)[1][:, :, 0]
    return fitted._mapie_classifier.conformity_score_function_, sets


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_lac(coverage):
    probs, labels = sample()
    new, _ = sample(500, seed=1)
    inside, sets = theirs("lac", coverage, probs, labels, new)
    rule = conformal_rule(probs, labels, coverage, score="lac", allow_empty=True)
    assert rule.quantile[0] == pytest.approx(inside.quantiles_[0], abs=1e-12)
    np.testing.assert_array_equal(rule.apply(new), sets)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_randomised_aps(coverage):
    probs, labels = sample()
    new, _ = sample(500, seed=1)
    inside, sets = theirs("aps", coverage, probs, labels, new, include_last_label="randomized")
    score = APS(randomised=True)
    scores = score(rank_classes(probs).at(labels), 1 - check_random_state(3).uniform(size=N))
    quantile = conformal_quantile(scores, coverage)
    assert quantile == pytest.approx(inside.quantiles_[0], abs=1e-12)
    own = score(rank_classes(new), 1 - check_random_state(3).uniform(size=(500, 1))) <= quantile
    np.testing.assert_array_equal(own, sets)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_deterministic_aps_sets_for_the_same_quantile(coverage):
    probs, labels = sample()
    new, _ = sample(500, seed=1)
    for score, up_to_last in ((APS(), True), (Inclusive(), False)):
        inside, sets = theirs("aps", coverage, probs, labels, new, include_last_label=up_to_last)
        rule = SetRule(score, coverage, (float(inside.quantiles_[0]),), N, 5)
        np.testing.assert_array_equal(rule.apply(new), sets)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_raps(coverage):
    probs, labels = sample(400)
    new, _ = sample(500, seed=1)
    inside, sets = theirs("raps", coverage, probs, labels, new, include_last_label=False)
    kept, _ = next(StratifiedShuffleSplit(1, test_size=len(inside.X_raps), random_state=3).split(probs, labels))
    score = RAPS(randomised=True, k_reg=int(inside.k_star[0]), penalty=inside.lambda_star)
    scores = score(rank_classes(probs[kept]).at(labels[kept]), 1 - check_random_state(3).uniform(size=len(kept)))
    quantile = conformal_quantile(scores, coverage)
    assert quantile == pytest.approx(inside.quantiles_[0], abs=1e-12)
    ranked = rank_classes(new)
    np.testing.assert_array_equal((score(ranked, 1.0) <= quantile) | (ranked.rank == 1), sets)


@pytest.fixture(scope="module")
def crossed():
    """Five fold models, their out-of-fold probabilities, and MAPIE's classifier on the same folds."""
    data, new = blobs(N, seed=2), blobs(300, seed=3).inputs
    splitter = StratifiedKFold(5, shuffle=True, random_state=0)
    folds, oof, on_new = np.empty(N, int), np.empty((N, 5)), []
    for k, (train, held) in enumerate(splitter.split(data.inputs, data.labels)):
        model = clone(LogisticRegression(max_iter=1000)).fit(data.inputs[train], data.labels[train])
        folds[held], oof[held] = k, model.predict_proba(data.inputs[held])
        on_new.append(model.predict_proba(new))

    def sets(score, **how):
        fitted = mapie.CrossConformalClassifier(
            LogisticRegression(max_iter=1000), confidence_level=0.9, conformity_score=score, cv=splitter, random_state=3
        ).fit_conformalize(data.inputs, data.labels)
        return fitted.predict_set(new, **how)[1][:, :, 0]

    return data.labels, folds, oof, np.stack(on_new), sets


def test_cross_conformal_lac(crossed):
    # MAPIE asks for α(n − 1) rows that do not beat a class, the theorem for more than α(n + 1) − 1: both are 10 here.
    labels, folds, oof, on_new, sets = crossed
    rule = cross_conformal_rule(oof, labels, folds, 0.9, score="lac", allow_empty=True)
    np.testing.assert_array_equal(rule.apply(on_new), sets("lac", agg_scores="crossval"))


def test_cross_conformal_aps(crossed):
    labels, folds, oof, on_new, sets = crossed
    scores = APS(randomised=True)(rank_classes(oof).at(labels), 1 - check_random_state(3).uniform(size=N))
    rows = (tuple(values.tolist()) for values in (scores, folds, labels))
    rule = CrossSetRule(Inclusive(), 0.9, *rows, n_classes=5, allow_empty=True)
    expected = sets("aps", agg_scores="crossval", conformity_score_params={"include_last_label": True})
    np.testing.assert_array_equal(rule.apply(on_new), expected)


def test_one_final_classifier(crossed):
    """The mean of the fold models with the quantile of the out-of-fold scores is MAPIE's default."""
    labels, _, oof, on_new, sets = crossed
    rule = conformal_rule(oof, labels, 0.9, score=LAC(), allow_empty=True)
    np.testing.assert_array_equal(rule.apply(on_new.mean(axis=0)), sets("lac", agg_scores="mean"))
