"""Tests of the inputs of ``fit``: labels and weights of every kind, held-out parts, tiny data, outliers and seeds."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from calibrant import BO4SCClassifier
from calibrant.bilevel import Callback, NonFiniteError
from calibrant.data.scaling import fit_scaling
from calibrant.estimators.reading import hold_out
from calibrant.methods import BO4SC
from tests.estimators.cases import QUICK, three_classes

X, y = three_classes()

each = pytest.mark.parametrize("quick", QUICK.values(), ids=QUICK)


@each
@pytest.mark.parametrize(
    "names",
    [
        ["low", "mid", "high"],
        np.array(["low", "mid", "high"], dtype=object),
        [10, -3, 7],
        [0.0, 1.0, 2.0],
        [True, False, False],
    ],
    ids=["text", "objects", "whole numbers", "floats", "truth values"],
)
def test_labels_of_every_kind(quick, names):
    fitted = clone(quick).fit(X, np.asarray(names)[y])
    assert list(fitted.classes_) == sorted(set(names))
    assert (fitted.predict(X) == np.asarray(names)[y]).mean() > 0.8
    assert fitted.predict(X).dtype == np.asarray(names).dtype


@each
def test_frames_series_and_lists_are_read_alike(quick):
    expected = clone(quick).fit(X, y).predict_proba(X)
    frame = pd.DataFrame(X, columns=["a", "b"])
    np.testing.assert_array_equal(clone(quick).fit(frame, pd.Series(y)).predict_proba(frame), expected)
    np.testing.assert_array_equal(clone(quick).fit(X.tolist(), y.tolist()).predict_proba(X.tolist()), expected)
    categories = pd.Series(pd.Categorical.from_codes(y, ["a", "b", "c"]))
    assert list(clone(quick).fit(frame, categories).classes_) == ["a", "b", "c"]


@each
def test_what_is_refused(quick):
    with pytest.raises(ValueError, match="one class only"):
        clone(quick).fit(X, np.zeros(90))
    with pytest.raises(ValueError, match="zero"):
        clone(quick).fit(X, y, sample_weight=np.zeros(90))
    with pytest.raises(ValueError, match="egative"):
        clone(quick).fit(X, y, sample_weight=-np.ones(90))
    with pytest.raises(ValueError, match="X_val and y_val"):
        clone(quick).fit(X, y, X_val=X)
    with pytest.raises(ValueError, match="got 7, which"):
        clone(quick).fit(X, y, X_val=X[:3], y_val=[0, 1, 7])
    with pytest.raises(ValueError, match="device must be"):
        clone(quick).set_params(device="tpu").fit(X, y)


@each
def test_equal_weights_are_no_weights_and_weight_zero_is_absence(quick):
    expected = clone(quick).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(clone(quick).fit(X, y, np.full(90, 2.5)).predict_proba(X), expected)
    weights = np.r_[np.linspace(1, 2, 60), np.zeros(30)]
    with_zeros = clone(quick).fit(X, y, weights)
    without = clone(quick).fit(X[:60], y[:60], weights[:60])
    np.testing.assert_array_equal(with_zeros.predict_proba(X), without.predict_proba(X))
    assert with_zeros.suspicion_.shape == (90,)


@each
def test_weights_change_what_is_learned(quick):
    random = np.random.default_rng(0)
    X, y = random.normal(size=(200, 1)), np.arange(200) % 2
    for favoured in (0, 1):
        fitted = clone(quick).fit(X, y, np.where(y == favoured, 20.0, 1.0))
        assert fitted.predict_proba(X)[:, favoured].mean() > 0.7  # 20/21 if weights count, 1/2 if they do not


@each
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_a_handful_of_rows(quick, n):
    X, y = three_classes(n)
    probs = (
        clone(quick).set_params(**({"folds": 5} if "folds" in quick.get_params() else {})).fit(X, y).predict_proba(X)
    )
    assert probs.shape == (n, min(n, 3))
    assert np.isfinite(probs).all()


@pytest.mark.parametrize("weights", ["prior", "neighbours"])
def test_every_kind_of_weights_on_a_handful_of_rows(weights):
    X, y = three_classes(8)
    method = BO4SC(weights=weights, also=("l2", "label-smoothing"))
    fitted = BO4SCClassifier(4, epochs=5, method=method, random_state=0).fit(X, y)
    trained = fitted.train_indices_
    assert np.all((fitted.sample_weights_[trained] >= 0) & (fitted.sample_weights_[trained] <= 1))
    assert fitted.l2_.shape == (2,)
    assert fitted.label_smoothing_.shape == (3,)


def test_what_was_learned():
    fitted = clone(QUICK["bo4sc"]).set_params(method=BO4SC(also=("label-noise",), keep_history=True)).fit(X, y)
    assert isinstance(fitted.label_noise_, float)
    assert 0 < fitted.label_noise_ < 0.5
    shapes = {name: values.shape for name, values in fitted.history_.items()}
    assert shapes == dict.fromkeys(["inner_loss", "outer_loss", "gradient_norm"], (4,))
    assert fitted.sample_weights_history_.shape == (5, 90)
    np.testing.assert_array_equal(fitted.sample_weights_history_[-1], fitted.sample_weights_)
    crossfitted = clone(QUICK["self-calibrated"]).fit(X, y)
    assert crossfitted.candidate_ == "pooled"
    assert crossfitted.history_.keys() == fitted.history_.keys()
    assert crossfitted.l2_.shape == (3,)  # two layers, and the embedding's own
    assert crossfitted.label_noise_ is None


@each
def test_a_class_of_one_sample(quick):
    X, y = three_classes(30)
    y = np.where(np.arange(30) == 4, 9, np.where(y == 1, 0, y))
    fitted = clone(quick).fit(X, y)
    assert list(fitted.classes_) == [0, 2, 9]
    if isinstance(fitted, BO4SCClassifier):
        assert 4 in fitted.train_indices_


def test_held_out_rows_keep_the_classes_in_proportion():
    codes = np.repeat([0, 1, 2], [40, 20, 8])
    train, val = hold_out(codes, 0.25, seed=0)
    np.testing.assert_array_equal(np.sort(np.r_[train, val]), np.arange(68))
    np.testing.assert_array_equal(np.bincount(codes[val]), [10, 5, 2])


def test_bo4sc_holds_out_a_part_or_takes_the_one_given():
    own = clone(QUICK["bo4sc"]).fit(X, y)
    assert len(own.validation_indices_) == 22
    assert np.isnan(own.sample_weights_[own.validation_indices_]).all()
    assert np.isfinite(own.sample_weights_[own.train_indices_]).all()
    given = clone(QUICK["bo4sc"]).fit(X[:60], y[:60], X_val=X[60:], y_val=y[60:])
    assert len(given.validation_indices_) == 0
    assert np.isfinite(given.sample_weights_).all()
    weighted = clone(QUICK["bo4sc"]).fit(
        X[:60], y[:60], X_val=X[60:], y_val=y[60:], sample_weight_val=[1.0, 0.0, 2.0] * 10
    )
    assert not np.array_equal(weighted.predict_proba(X), given.predict_proba(X))


@each
def test_callbacks_are_called_and_failures_are_said(quick):

    class Count(Callback):
        steps = 0

        def on_step(self, run):
            self.steps += 1

    count = Count()
    fitted = clone(quick).fit(X, y, callbacks=[count])
    kinds = 2 if getattr(quick, "embedding", None) else 1  # networks that embed columns are a separate run
    assert count.steps == 4 * kinds
    with pytest.raises(NonFiniteError, match="not finite"):
        fitted.set_params(learning_rate=1e30).fit(X, y)
    fresh = clone(fitted)
    with pytest.raises(NonFiniteError):
        fresh.fit(X, y)
    for call in (fresh.predict, fresh.confidence, lambda X: fresh.suspects(), lambda X: fresh.save("unwritten")):
        with pytest.raises(NotFittedError):
            call(X)


def test_nothing_of_a_former_fit_remains(tmp_path):
    rich = clone(QUICK["bo4sc"]).set_params(method=BO4SC(also=("l2", "label-noise"), keep_history=True))
    rich.fit(pd.DataFrame(X, columns=["a", "b"]), y)
    assert {"l2_", "label_noise_", "sample_weights_history_", "feature_names_in_"} <= set(vars(rich))
    plain = clone(QUICK["bo4sc"]).fit(X, y)
    again = rich.set_params(method=None).fit(X, y)
    assert set(vars(again)) == set(vars(plain))
    again.save(tmp_path / "model")
    assert set(vars(BO4SCClassifier.load(tmp_path / "model"))) == set(vars(plain))


@each
@pytest.mark.parametrize("where", ["training", "keeping"])
def test_a_fit_that_fails_leaves_the_former_one_whole(quick, where, monkeypatch):
    wide = pd.DataFrame(np.c_[X, X], columns=list("abcd"))
    fitted = clone(quick).fit(wide, y)
    before, probs = dict(vars(fitted)), fitted.predict_proba(wide)
    if where == "training":
        fitted.set_params(learning_rate=1e30)
        before["learning_rate"] = 1e30
    else:
        monkeypatch.setattr("calibrant.estimators.base.freeze", lambda fitted: 1 / 0)
    with pytest.raises(NonFiniteError if where == "training" else ZeroDivisionError):
        fitted.fit(X, y == 0)
    assert set(vars(fitted)) == set(before)
    assert all(vars(fitted)[name] is value for name, value in before.items())
    assert fitted.n_features_in_ == 4
    np.testing.assert_array_equal(fitted.predict_proba(wide), probs)


def test_weighted_scaling_is_that_of_repeated_rows():
    random = np.random.default_rng(0)
    X, times = random.normal(size=(20, 3)), random.integers(1, 4, 20)
    weighted, repeated = fit_scaling(X, times.astype(float)), fit_scaling(np.repeat(X, times, axis=0))
    np.testing.assert_allclose(weighted.mean, repeated.mean)
    np.testing.assert_allclose(weighted.scale, repeated.scale)


@each
def test_units_and_constant_columns_do_not_matter(quick):
    expected = clone(quick).fit(X, y)
    moved = clone(quick).fit(X * 1024.0 - 4096.0, y)  # powers of two: no rounding
    np.testing.assert_allclose(moved.predict_proba(X * 1024.0 - 4096.0), expected.predict_proba(X), atol=1e-3)
    padded = np.c_[X, np.full(90, 0.1)]
    wide = clone(quick).fit(padded, y)
    other = padded.copy()
    other[:, 2] = 1e6
    np.testing.assert_array_equal(wide.predict_proba(other), wide.predict_proba(padded))


@each
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("n", "val"), [(60, 30), (3, 1), (4, 60), (60, 1)])
@pytest.mark.parametrize("weighted", ["neither", "training", "validation"])
def test_given_validation_parts_of_any_size_and_weight(quick, n, val, weighted):
    X, y = three_classes(n)
    X_val, y_val = three_classes(val, seed=1)
    weights = np.linspace(1, 2, n) if weighted == "training" else None
    val_weights = np.linspace(1, 2, val) if weighted == "validation" else None
    fitted = clone(quick).set_params(epochs=5)
    fitted.fit(X, y, weights, X_val=X_val, y_val=y_val, sample_weight_val=val_weights)
    assert np.isfinite(fitted.predict_proba(X)).all()
    assert fitted.suspicion_.shape == (n,)


def test_without_weights_none_are_shown_and_labels_count_fully(tmp_path):
    method = BO4SC(weights=None, also=("l2",), keep_history=True)
    fitted = BO4SCClassifier(8, epochs=20, method=method, random_state=0).fit(X, y)
    assert fitted.sample_weights_ is None
    assert not hasattr(fitted, "sample_weights_history_")
    np.testing.assert_allclose(fitted.suspicion_, 1 - fitted.predict_proba(X)[np.arange(90), y], rtol=1e-12)
    fitted.save(tmp_path / "model.calibrant")
    assert BO4SCClassifier.load(tmp_path / "model.calibrant").sample_weights_ is None
