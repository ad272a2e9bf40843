"""Tests of rejection rules and prediction sets from out-of-fold probabilities, for any classifier."""

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from calibrant import BO4SCClassifier, CrossCalibrated, SelfCalibratedClassifier
from calibrant.estimators import load_classifier
from calibrant.estimators.selective import SelectiveMixin
from calibrant.selective import RAPS, RejectionRule, SetRule, Window, conformal_rule, threshold_for_risk
from tests import blobs as clusters
from tests.estimators.cases import QUICK, three_classes


class CrossFitted(SelectiveMixin, ClassifierMixin, BaseEstimator):
    """Logistic regression on all rows, with out-of-fold probabilities."""

    def fit(self, X, y):
        model = LogisticRegression(max_iter=1000)
        self.classes_, self.oof_labels_ = np.unique(y, return_inverse=True)
        self.oof_proba_ = cross_val_predict(model, X, y, method="predict_proba")
        self.model_ = model.fit(X, y)
        return self

    def predict_proba(self, X):
        return self.model_.predict_proba(X)


NAMES = np.array(["one", "two", "three", "four", "five"])


def blobs(n, seed=0):
    data = clusters.blobs(n, seed=seed)
    return data.inputs, NAMES[data.labels]


def network():
    """A quick classifier without trees and lines."""
    return clone(QUICK["self-calibrated"]).set_params(members=("network",))


@pytest.fixture(scope="module")
def fitted():
    return CrossFitted().fit(*blobs(800))


@pytest.fixture(scope="module")
def quick():
    """A self-calibrated classifier and its training data."""
    X, y = three_classes(120)
    y[::6] = (y[::6] + 1) % 3
    return clone(QUICK["self-calibrated"]).fit(X, y), X, y


def test_the_rule_is_that_of_the_out_of_fold_rows(fitted):
    conf, right = fitted.oof_proba_.max(1), fitted.oof_proba_.argmax(1) == fitted.oof_labels_
    for method in ("ranks", "fixed-sequence", "uniform"):
        rule = fitted.rejection_rule(0.08, 0.8, method=method)
        assert rule == threshold_for_risk(conf, right, 0.08, level=0.8, method=method)
        assert rule.found
    with pytest.raises(ValueError, match="method must be 'ranks'"):
        fitted.rejection_rule(method="sgr")


def test_predict_abstains_by_a_rule_or_window(fitted):
    X, _ = blobs(50, seed=1)
    rule = fitted.rejection_rule(0.05)
    accepted = rule.accepts(fitted.confidence(X))
    assert 0 < accepted.sum() < 50
    expected = np.where(accepted, fitted.predict(X), None)
    np.testing.assert_array_equal(fitted.predict(X, reject=rule), expected)
    np.testing.assert_array_equal(fitted.predict(X, reject=rule.window), expected)
    np.testing.assert_array_equal(fitted.predict(X, reject=Window(), reject_label="?"), ["?"] * 50)
    for arguments, message in (
        ({"reject": rule, "reject_below": 0.5}, "must not be given together"),
        ({"reject": 0.9}, "Give a number as reject_below"),
        ({"reject_label": "?"}, "reject_label needs a rule"),
        ({"reject": fitted.rejection_rule(1e-4)}, "No window was found"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.predict(X, **arguments)


@pytest.mark.parametrize("method", ["aps", "raps", "lac", RAPS(k_reg=1, penalty=0.2)])
@pytest.mark.parametrize("by_class", [False, True])
def test_sets_are_those_of_the_out_of_fold_rows(fitted, method, by_class):
    X, _ = blobs(50, seed=1)
    rule = conformal_rule(fitted.oof_proba_, fitted.oof_labels_, 0.85, score=method, by_class=by_class)
    assert fitted.set_rule(0.85, method, by_class=by_class) == rule
    assert SetRule.from_json(rule.to_json()) == rule
    np.testing.assert_array_equal(
        fitted.predict_set(X, 0.85, method, by_class=by_class), rule.apply(fitted.predict_proba(X))
    )


def test_randomised_sets_repeat_with_their_seed(fitted):
    X, _ = blobs(200, seed=1)
    drawn = [fitted.predict_set(X, 0.9, RAPS(randomised=True), random_state=seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


def test_one_row_of_each_group_counts(fitted):
    kept = CrossFitted().fit(*blobs(800))
    kept.oof_groups_ = np.arange(800) // 8
    kept.oof_proba_[:400] = np.nan
    rule = kept.rejection_rule(0.3)
    assert rule.n == kept.set_rule().n == 50
    assert rule == kept.rejection_rule(0.3)
    first = CrossFitted().fit(*blobs(800))
    first.oof_proba_[np.r_[:400, np.flatnonzero(np.arange(800) % 8)]] = np.nan
    assert first.rejection_rule(0.3).coverage != rule.coverage  # not always the first of a group


def test_copies_break_the_promise_and_groups_keep_it():
    """At every confidence, predictions are wrong a little more often than allowed, so every rule found is broken."""
    generator, trials, risk = np.random.default_rng(0), 150, 0.1
    clf = CrossFitted()
    clf.classes_, clf.model_ = np.arange(2), None
    groups, broken = np.repeat(np.arange(100), 5), np.zeros(2, int)
    for _ in range(trials):
        confidence = np.repeat(generator.uniform(0.5, 1, 100), 5)
        clf.oof_proba_ = np.stack([confidence, 1 - confidence], axis=1)
        clf.oof_labels_ = np.repeat(generator.random(100) < risk + 1e-6, 5).astype(int)
        for k, clf.oof_groups_ in enumerate((None, groups)):
            broken[k] += clf.rejection_rule(risk, level=0.9, method="fixed-sequence").found
    assert broken[0] > binom.isf(1e-6, trials, 0.1)
    assert broken[1] <= binom.isf(1e-6, trials, 0.1)


def test_rows_that_took_no_part_are_left_out(fitted):
    clf = CrossFitted().fit(*blobs(800))
    clf.oof_proba_[:300] = np.nan
    assert clf.rejection_rule().n == clf.set_rule().n == 500
    clf.oof_proba_[:] = np.nan
    for ask in (clf.rejection_rule, clf.set_rule, lambda: clf.predict_set(blobs(5)[0])):
        with pytest.raises(ValueError, match="needs out-of-fold probabilities"):
            ask()
    with pytest.raises(NotFittedError):
        CrossFitted().rejection_rule()


def test_the_classifier_keeps_its_out_of_fold_rows(quick):
    clf, X, y = quick
    known = np.isfinite(clf.oof_proba_).all(axis=1)
    assert known.sum() == clf.rejection_rule(0.4).n >= 100
    np.testing.assert_allclose(clf.oof_proba_[known].sum(1), 1)
    np.testing.assert_array_equal(clf.classes_[clf.oof_labels_], y)
    assert (clf.oof_proba_[known] != clf.predict_proba(X)[known]).any()


def test_rows_of_weight_zero_and_single_networks():
    X, y = three_classes(120)
    weights = np.r_[np.zeros(20), np.ones(100)]
    clf = network().fit(X, y, weights)
    assert np.isnan(clf.oof_proba_[:20]).all()
    assert clf.set_rule().n == np.isfinite(clf.oof_proba_[:, 0]).sum() > 90
    single = network().set_params(refit=False).fit(X, y)
    np.testing.assert_array_equal(
        np.flatnonzero(np.isfinite(single.oof_proba_[:, 0])), np.sort(single.validation_indices_)
    )


def test_groups_given_to_fit_count_once():
    X, y = three_classes(120)
    groups = np.arange(120) // 4
    clf = network().fit(X, y, groups=groups)
    assert clf.set_rule().n == len(np.unique(groups[np.isfinite(clf.oof_proba_[:, 0])])) <= 30
    assert CrossCalibrated(LogisticRegression(max_iter=1000), cv=3).fit(X, y, groups=groups).set_rule().n == 30


def test_cross_calibrated_has_rules_and_sets():
    X, y = blobs(300)
    clf = CrossCalibrated(LogisticRegression(max_iter=1000), cv=3, random_state=0).fit(X, y)
    rule = clf.rejection_rule(0.15)
    assert rule.n == 300
    new, _ = blobs(40, seed=1)
    accepted = rule.accepts(clf.confidence(new))
    np.testing.assert_array_equal(clf.predict(new, reject=rule), np.where(accepted, clf.predict(new), None))
    np.testing.assert_array_equal(
        clf.predict_set(new), conformal_rule(clf.oof_proba_, clf.oof_labels_).apply(clf.predict_proba(new))
    )


def test_bo4sc_abstains_by_a_rule_but_has_none_itself():
    X, y = three_classes()
    clf = clone(QUICK["bo4sc"]).fit(X, y)
    rule = threshold_for_risk(clf.confidence(X), clf.predict(X) == y, 0.3)
    assert isinstance(rule, RejectionRule)
    assert len(clf.predict(X, reject=rule)) == len(y)
    assert not hasattr(BO4SCClassifier, "rejection_rule")


def test_rules_survive_files(quick, tmp_path):
    clf, X, _ = quick
    clf.save(tmp_path / "clf")
    found = load_classifier(tmp_path / "clf")
    assert isinstance(found, SelfCalibratedClassifier)
    assert found.rejection_rule(0.4) == clf.rejection_rule(0.4)
    np.testing.assert_array_equal(found.predict_set(X), clf.predict_set(X))


def test_errors_name_the_argument_of_the_method(fitted):
    with pytest.raises(ValueError, match="level must be a fraction"):
        fitted.rejection_rule(0.1, 95)
