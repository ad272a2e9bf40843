"""Tests of sparse matrices with many columns: linear models see them, networks and trees see a projection."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.svm import LinearSVC

from calibrant import CrossCalibrated, SelfCalibratedClassifier
from calibrant.estimators import load_classifier
from calibrant.export import to_onnx
from tests.estimators.cases import QUICK


def rare_words(n: int = 240, columns: int = 1500, seed: int = 0) -> tuple[sparse.csr_array, np.ndarray]:
    """Many columns of noise, and two that tell the class of most rows."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, n)
    X = sparse.random_array((n, columns), density=0.01, format="lil", rng=random)
    X[:, 3], X[:, columns - 1] = y * (random.random(n) < 0.9), (1 - y) * (random.random(n) < 0.9)
    return sparse.csr_array(X), y


@pytest.fixture(scope="module")
def wide():
    X, y = rare_words()
    return clone(QUICK["self-calibrated"]).fit(X, y), X, y


def test_wide_sparse_rows_are_learned_without_a_dense_copy(wide, monkeypatch):
    clf, X, y = wide
    monkeypatch.setattr(type(X), "toarray", lambda self, *_, **__: pytest.fail("a dense copy was made"))
    fresh = clone(clf).fit(X, y)
    new, labels = rare_words(seed=1)
    np.testing.assert_array_equal(fresh.predict_proba(new), clf.predict_proba(new))
    assert fresh.score(new, labels) > 0.9
    assert fresh.projection_.columns == X.shape[1] > fresh.projection_.width
    assert fresh.suspicion_.shape == y.shape


@pytest.mark.parametrize("name", QUICK)
def test_saved_and_read(tmp_path, name):
    X, y = rare_words(120)
    clf = clone(QUICK[name]).fit(X, y)
    clf.save(tmp_path / "model")
    read = load_classifier(tmp_path / "model")
    np.testing.assert_array_equal(read.predict_proba(X), clf.predict_proba(X))
    assert len(read.suspects(X, y)) == len(clf.suspects())


def test_a_damaged_projection_is_refused(tmp_path, wide):
    clf, _, _ = wide
    other = clone(clf)
    other.__dict__ = clf.__dict__ | {"projection_": clf.projection_._replace(mean=np.zeros(3, np.float32))}
    other.save(tmp_path / "model")
    with pytest.raises(ValueError, match="axes"):
        load_classifier(tmp_path / "model")


def test_linear_models_see_the_sparse_columns(wide):
    clf, X, _ = wide
    line = clf.model_.others["linear"]
    assert line.weight.shape == (2, X.shape[1])
    informative = np.abs(line.weight[1])[[3, X.shape[1] - 1]]
    assert informative.min() > np.sort(np.abs(line.weight[1]))[-3] - 1e-9


def test_rows_are_taken_as_they_come_from_any_sparse_format(wide):
    clf, X, _ = wide
    for form in (sparse.csc_array, sparse.coo_matrix):
        np.testing.assert_array_equal(clf.predict_proba(form(X)), clf.predict_proba(X))


def test_dense_and_sparse_forms_of_the_same_rows(wide):
    clf, X, y = wide
    np.testing.assert_allclose(clf.predict_proba(X.toarray()), clf.predict_proba(X), rtol=1e-9)
    np.testing.assert_array_equal(clf.suspects(X.toarray(), y), clf.suspects())
    dense = clone(clf).fit(X.toarray(), y, X_val=X, y_val=y)
    assert dense.projection_ is None
    np.testing.assert_allclose(dense.predict_proba(X), dense.predict_proba(X.toarray()), atol=1e-5)


def test_copies_are_held_out_together():
    X, y = rare_words(80)
    both = sparse.csr_array(sparse.vstack([X, X]))
    clf = clone(QUICK["self-calibrated"]).fit(both, np.concatenate([y, y]))
    np.testing.assert_array_equal(clf.oof_proba_[:80], clf.oof_proba_[80:])


def test_validation_rows_use_the_axes_of_training_rows():
    X, y = rare_words(200)
    clf = clone(QUICK["self-calibrated"]).fit(X[:120], y[:120], X_val=X[120:], y_val=y[120:])
    alone = clone(QUICK["self-calibrated"]).fit(X[:120], y[:120])
    np.testing.assert_array_equal(clf.projection_.axes, alone.projection_.axes)


@pytest.mark.parametrize("settings", [{"refit": False}, {"members": ("network",)}, {"members": ("network", "trees")}])
def test_settings_other_than_the_default_take_sparse_rows(settings):
    X, y = rare_words(150)
    clf = clone(QUICK["self-calibrated"]).set_params(**settings).fit(X, y)
    assert np.isfinite(clf.predict_proba(X)).all()


def test_missing_entries_count_as_zero(wide):
    clf, X, _ = wide
    holes, zeros = X.copy(), X.copy()
    holes.data[:50], zeros.data[:50] = np.nan, 0.0
    np.testing.assert_array_equal(clf.predict_proba(holes), clf.predict_proba(zeros))


def test_a_matrix_without_entries_gives_class_shares():
    X, y = sparse.csr_array((60, 1000)), np.arange(60) % 2
    probs = clone(QUICK["self-calibrated"]).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(probs, 0.5, atol=0.05)


def test_onnx_says_that_inputs_are_dense(tmp_path, wide):
    with pytest.raises(ValueError, match="ONNX files have dense inputs"):
        to_onnx(wide[0], tmp_path / "model.onnx")


def topics(n: int, seed: int) -> tuple[sparse.csr_array, np.ndarray]:
    """Documents of six classes, with weights as in TF-IDF; pairs of classes share most of their words."""
    random = np.random.default_rng(seed)
    words = np.random.default_rng(9).dirichlet(np.full(800, 0.05), size=9)
    mixed = 0.35 * words[:6] + 0.65 * words[6:].repeat(2, axis=0)
    y = random.integers(0, 6, n)
    counts = np.stack([random.multinomial(40, mixed[k]) for k in y])
    weights = np.log1p(counts) * np.log(1 + n / (1 + (counts > 0).sum(0)))
    return sparse.csr_array(weights / np.linalg.norm(weights, axis=1, keepdims=True)), y


def test_the_pool_is_as_good_as_calibrated_margins():
    (X, y), (new, labels) = topics(600, 0), topics(2000, 1)
    rival = CrossCalibrated(LinearSVC(random_state=0), random_state=0).fit(X, y)
    clf = SelfCalibratedClassifier((8,), repeats=1, members=("network", "linear"), epochs=20, random_state=0).fit(X, y)
    assert "linear" in clf.members_
    assert log_loss(labels, clf.predict_proba(new)) < log_loss(labels, rival.predict_proba(new)) + 0.02


def test_a_damaged_link_is_refused(tmp_path, wide):
    clf, _, _ = wide
    line = clf.model_.others["linear"]
    assert line.link is not None
    other = clone(clf)
    others = dict(clf.model_.others) | {"linear": replace(line, link=np.ones((2, 2)))}
    other.__dict__ = clf.__dict__ | {"model_": replace(clf.model_, others=others)}
    other.save(tmp_path / "model")
    with pytest.raises(ValueError, match="the link of a line"):
        load_classifier(tmp_path / "model")
