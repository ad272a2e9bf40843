"""Tests of CrossCalibrated: any scikit-learn classifier, calibrated with its out-of-fold predictions."""

import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold, TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant import CrossCalibrated
from calibrant.posthoc import Temperature
from tests.estimators.cases import three_classes

X, y = three_classes()

WEIGHTS = "rows are dealt to folds at random, so that removed and repeated rows change the folds"
EXPECTED_FAILURES = {f"check_sample_weight_equivalence_on_{kind}_data": WEIGHTS for kind in ("dense", "sparse")}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [CrossCalibrated(LogisticRegression(), cv=3), CrossCalibrated(LinearSVC(), cv=2, ensemble=False)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def overconfident(rows: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Twenty copies of two columns: naive Bayes counts each copy as new evidence."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 3, rows)
    x = generator.normal(size=(rows, 2)) * 1.5 + np.array([[0, 2], [2, 0], [-2, -1]])[y]
    return np.tile(x, (1, 20)), np.array(["a", "b", "c"])[y]


def nll(probs: np.ndarray, y: np.ndarray) -> float:
    codes = np.unique(y, return_inverse=True)[1]
    return float(-np.log(np.maximum(probs[np.arange(len(y)), codes], 1e-300)).mean())


@pytest.mark.parametrize("ensemble", [True, False])
def test_overconfident_probabilities_are_mended(ensemble):
    X, y = overconfident()
    fresh, labels = overconfident(4000, seed=1)
    raw = nll(GaussianNB().fit(X, y).predict_proba(fresh), labels)
    clf = CrossCalibrated(GaussianNB(), ensemble=ensemble, random_state=0).fit(X, y)
    own = nll(clf.predict_proba(fresh), labels)
    truth = nll(LogisticRegression(C=100).fit(fresh[:, :2], labels).predict_proba(fresh[:, :2]), labels)
    assert raw > 2 * truth
    assert own < 1.15 * truth
    assert len(clf.estimators_) == (5 if ensemble else 1)
    assert clf.predict(fresh[:3]).dtype == y.dtype
    np.testing.assert_allclose(np.exp(clf.predict_log_proba(fresh[:5])), clf.predict_proba(fresh[:5]))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("make", [LinearSVC, SVC], ids=["linear", "kernel"])
def test_decision_values_serve_where_there_are_no_probabilities(classes, make):
    X, y = overconfident(600)
    kept = np.isin(y, ["a", "b", "c"][:classes])
    X, y = X[kept][:, :2], y[kept]
    clf = CrossCalibrated(make(), random_state=0).fit(1000 * X, y)  # the scale of the values does not matter
    other = CrossCalibrated(LogisticRegression(), random_state=0).fit(X, y)
    fresh, labels = overconfident(3000, seed=1)
    kept = np.isin(labels, ["a", "b", "c"][:classes])
    fresh, labels = fresh[kept][:, :2], labels[kept]
    assert nll(clf.predict_proba(1000 * fresh), labels) < nll(other.predict_proba(fresh), labels) + 0.1


class Memory(ClassifierMixin, BaseEstimator):
    """Knows the labels of the rows that it was fitted to; all classes are equally likely for other rows."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.known_ = {row.tobytes(): label for row, label in zip(X, y, strict=True)}
        return self

    def predict_proba(self, X):
        labels = [self.known_.get(row.tobytes()) for row in np.ascontiguousarray(X)]
        found = np.array([self.classes_ == label for label in labels], dtype=float)
        return np.where(found.any(1, keepdims=True), found, 1 / len(self.classes_))


@pytest.mark.parametrize("how", ["copies", "groups", "splitter"])
def test_out_of_fold_models_never_saw_a_copy_or_group(how):
    generator = np.random.default_rng(0)
    X, y = np.tile(generator.normal(size=(60, 3)), (4, 1)), np.tile(generator.integers(0, 2, 60), 4)
    groups = None if how == "copies" else np.arange(240) % 60
    clf = CrossCalibrated(Memory(), cv=GroupKFold(5) if how == "splitter" else 5, random_state=0)
    clf.fit(X, y, groups=groups)
    assert np.abs(clf.oof_proba_ - clf.oof_proba_[0]).max() < 1e-12  # no model knew a held-out row
    scattered = CrossCalibrated(Memory(), cv=KFold(5, shuffle=True, random_state=0)).fit(X, y)
    assert nll(scattered.oof_proba_, y) < 0.3  # here copies are on both sides of a split


def test_copies_count_once():
    X, y = overconfident(100)
    once = CrossCalibrated(GaussianNB(), random_state=0).fit(X, y)
    often = CrossCalibrated(GaussianNB(), random_state=0).fit(np.tile(X, (10, 1)), np.tile(y, 10))
    fresh, labels = overconfident(4000, seed=1)
    assert nll(often.predict_proba(fresh), labels) == pytest.approx(nll(once.predict_proba(fresh), labels), abs=0.05)
    assert often.predict_proba(fresh).max() <= 101 / 102 + 1e-9  # what 100 rows support, not 1,000


def test_nothing_to_learn_gives_the_class_frequencies():
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(400, 5)), (generator.random(400) < 0.3).astype(int)
    clf = CrossCalibrated(RandomForestClassifier(50, random_state=0), random_state=0).fit(X, y)
    probs = clf.predict_proba(generator.normal(size=(1000, 5)))[:, 1]
    assert probs.std() < 0.05
    assert abs(probs.mean() - y.mean()) < 0.05


def test_data_frames_and_sparse_matrices_pass_through():
    frame = pd.DataFrame(X, columns=[f"c{k}" for k in range(X.shape[1])])
    clf = CrossCalibrated(LogisticRegression(), random_state=0).fit(frame, y)
    assert list(clf.feature_names_in_) == list(frame.columns)
    dense = CrossCalibrated(LogisticRegression(), random_state=0).fit(X, y).predict_proba(X)
    thin = CrossCalibrated(LogisticRegression(), random_state=0).fit(sparse.csr_array(X), y)
    np.testing.assert_allclose(thin.predict_proba(sparse.csr_array(X)), dense, atol=1e-4)
    text = pd.DataFrame({"colour": np.array(["red", "green", "blue"])[np.unique(y, return_inverse=True)[1] % 3]})
    coded = make_pipeline(OneHotEncoder(), LogisticRegression())
    assert CrossCalibrated(coded, random_state=0).fit(text, y).score(text, y) > 0.9


def test_zero_weights_leave_rows_out():
    X, y = overconfident(300)
    weights = np.ones(300)
    weights[200:] = 0
    labels = y.copy()
    labels[200:] = "a"
    clf = CrossCalibrated(GaussianNB(), random_state=0).fit(X, labels, weights)
    assert np.isnan(clf.oof_proba_[200:]).all()
    assert np.isfinite(clf.oof_proba_[:200]).all()
    same = CrossCalibrated(GaussianNB(), random_state=0).fit(X[:200], y[:200])
    np.testing.assert_allclose(clf.predict_proba(X), same.predict_proba(X))


def test_weights_reach_estimator_and_calibration():
    X, y = overconfident(300)
    weights = np.where(y == "a", 5.0, 1.0)
    clf = CrossCalibrated(GaussianNB(), random_state=0).fit(X, y, weights)
    plain = CrossCalibrated(GaussianNB(), random_state=0).fit(X, y)
    assert clf.predict_proba(X)[:, 0].mean() > plain.predict_proba(X)[:, 0].mean() + 0.05


def test_rows_never_held_out_have_no_out_of_fold_prediction():
    X, y = overconfident(200)
    clf = CrossCalibrated(GaussianNB(), cv=TimeSeriesSplit(4)).fit(X, y)
    assert np.isnan(clf.oof_proba_[:40]).all()
    assert np.isfinite(clf.oof_proba_[40:]).all()


def test_a_class_with_one_row():
    X, y = overconfident(100)
    y = y.copy()
    y[0] = "d"
    probs = CrossCalibrated(GaussianNB(), random_state=0).fit(X, y).predict_proba(X)
    assert probs.shape == (100, 4)
    assert 0 < probs[:, 3].mean() < 0.1


@pytest.mark.parametrize(
    "counts", [(2, 1), (4, 4), (6, 6), (1,) * 6, (1000, 2), (3,) * 40], ids=lambda counts: f"{len(counts)}x{counts[0]}"
)
@pytest.mark.parametrize("ensemble", [True, False])
def test_the_default_trees_need_no_rows_for_early_stopping(counts, ensemble):
    y = np.repeat(np.arange(len(counts)), counts)
    X = np.random.default_rng(0).normal(size=(len(y), 3))
    probs = CrossCalibrated(ensemble=ensemble, random_state=0).fit(X, y).predict_proba(X)
    assert probs.shape == (len(y), len(counts))
    assert np.isfinite(probs).all()


def test_early_stopping_is_kept_where_there_are_enough_rows():
    X, y = three_classes(200)
    models = CrossCalibrated(random_state=0).fit(X, y).estimators_
    assert all(model.early_stopping and model.n_iter_ < model.max_iter == 1000 for model in models)


@pytest.mark.parametrize("form", [np.asarray, pd.DataFrame])
@pytest.mark.parametrize("values", [0, 1])
def test_a_column_without_values_in_a_fold(form, values):
    X, y = three_classes(200)
    X = np.column_stack([X, np.full(len(X), np.nan)])
    without = CrossCalibrated(random_state=0).fit(X[:, :-1], y).predict_proba(X[:, :-1])
    X[:values, -1] = 1.0
    clf = CrossCalibrated(random_state=0).fit(form(X), y)
    assert np.allclose(clf.predict_proba(form(X)), without, atol=1e-3)


def test_advice_names_missing_values_only_if_the_estimator_refuses_them():
    X, y = three_classes(60)
    X[0, 0] = np.nan
    with pytest.raises(ValueError, match="LogisticRegression cannot take missing values"):
        CrossCalibrated(LogisticRegression()).fit(X, y)
    with pytest.raises(ValueError, match=r"^monotonic constraints"):
        CrossCalibrated(HistGradientBoostingClassifier(monotonic_cst=[1])).fit(X, y)


def test_near_copies_raise_a_warning_unless_groups_are_given():
    generator = np.random.default_rng(0)
    X = np.repeat(generator.normal(size=(80, 3)), 5, axis=0) + 1e-4 * generator.normal(size=(400, 3))
    y = np.repeat(generator.integers(0, 2, 80), 5)
    with pytest.warns(UserWarning, match="near copy"):
        CrossCalibrated(GaussianNB()).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CrossCalibrated(GaussianNB()).fit(X, y, groups=np.arange(400) // 5)
        CrossCalibrated(GaussianNB()).fit(generator.normal(size=(400, 3)), y)


@pytest.mark.parametrize("calibrator", [None, "isotonic", Temperature()])
def test_calibrators_can_be_chosen(calibrator):
    X, y = overconfident(200)
    clf = clone(CrossCalibrated(GaussianNB(), calibrator=calibrator, random_state=0)).fit(X, y)
    assert np.allclose(clf.predict_proba(X).sum(1), 1)
    assert (clf.calibrator_ is None) == (calibrator is None)


@pytest.mark.parametrize(
    ("settings", "fit", "words"),
    [
        ({"cv": 1}, {}, "cv must be at least 2 folds; got 1"),
        ({"cv": "five"}, {}, "cv must be a number of folds"),
        ({"cv": [(np.arange(50), np.arange(40, 60))] * 2}, {}, "trains on rows"),
        ({}, {"groups": np.zeros(5)}, "inconsistent"),
    ],
)
def test_errors_say_what_was_expected(settings, fit, words):
    X, y = overconfident(60)
    with pytest.raises(ValueError, match=words):
        CrossCalibrated(GaussianNB(), **settings).fit(X, y, **fit)


def test_it_beats_scikit_learns_calibration_of_an_overconfident_classifier():
    """Fifteen samples of one problem: a lower mean loss than each of scikit-learn's three methods."""
    losses = []
    fresh, labels = overconfident(4000, seed=100)
    for seed in range(15):
        X, y = overconfident(150, seed=seed)
        rivals = [CalibratedClassifierCV(GaussianNB(), method=m, cv=5) for m in ("sigmoid", "isotonic", "temperature")]
        every = [*rivals, CrossCalibrated(GaussianNB(), random_state=seed)]
        losses.append([nll(clf.fit(X, y).predict_proba(fresh).clip(1e-6), labels) for clf in every])
    means = np.mean(losses, axis=0)
    assert means[-1] < means[:-1].min()


def test_a_new_fit_keeps_nothing_of_an_earlier_one():
    clf = CrossCalibrated(LogisticRegression(), random_state=0).fit(pd.DataFrame(X).add_prefix("x"), y)
    clf.fit(X[::2], y[::2])
    fresh = CrossCalibrated(LogisticRegression(), random_state=0).fit(X[::2], y[::2])
    assert vars(clf).keys() == vars(fresh).keys()
    assert not hasattr(clf, "feature_names_in_")
    assert clf.rejection_rule(risk=0.2) == fresh.rejection_rule(risk=0.2)


def test_a_failed_fit_leaves_the_classifier_unchanged():
    clf = CrossCalibrated(LogisticRegression(), random_state=0).fit(X, y)
    before = vars(clf).copy()
    with pytest.raises(TypeError, match="no_such_parameter"):
        clf.fit(X, np.array(["a", "b", "c"])[y], no_such_parameter=1)
    assert vars(clf) == before
    assert clf.predict(X).dtype == y.dtype


@pytest.mark.parametrize(
    ("base", "options", "warned"),
    [
        (KNeighborsClassifier(), {}, True),
        (make_pipeline(StandardScaler(), GaussianNB()), {}, True),
        (make_pipeline(StandardScaler(), GaussianNB()), {"gaussiannb__sample_weight": np.arange(1.0, 241)}, False),
        (GaussianNB(), {}, False),
    ],
)
def test_weights_that_the_estimator_ignores_get_a_warning(base, options, warned):
    X, y = three_classes(240)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CrossCalibrated(base, random_state=0).fit(X, y, sample_weight=np.arange(1.0, 241), **options)
        CrossCalibrated(base, random_state=0).fit(X, y, sample_weight=np.ones(240))
    messages = [w for w in caught if "does not accept sample_weight" in str(w.message)]
    assert len(messages) == warned
    assert all(w.filename == __file__ for w in messages)


def test_only_the_proportions_of_weights_count():
    X, y = three_classes(240)
    rng = np.random.default_rng(0)
    y, weights = np.where(rng.random(len(y)) < 0.3, rng.permutation(y), y), rng.uniform(0.2, 2, len(y))
    small, large = (
        CrossCalibrated(GaussianNB(), calibrator="vector", random_state=0)
        .fit(X, y, sample_weight=factor * weights)
        .predict_proba(X)
        for factor in (0.01, 100)
    )
    np.testing.assert_allclose(small, large, rtol=0, atol=1e-3)


def test_pickle_keeps_it(tmp_path):
    clf = CrossCalibrated(GaussianNB(), random_state=0).fit(X, y)
    joblib.dump(clf, tmp_path / "model")
    again = joblib.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert again.rejection_rule(risk=0.2) == clf.rejection_rule(risk=0.2)
