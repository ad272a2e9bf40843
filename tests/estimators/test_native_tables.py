"""Tests of tables without preparation: text, categories, dates, missing values, sparse matrices, class weights."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.utils.class_weight import compute_sample_weight

from calibrant import SelfCalibratedClassifier
from calibrant.estimators import load_classifier, reading
from tests.estimators.cases import QUICK, three_classes

LIGHT = {**QUICK, "self-calibrated": clone(QUICK["self-calibrated"]).set_params(members=("network",))}
each = pytest.mark.parametrize("quick", QUICK.values(), ids=QUICK)
light = pytest.mark.parametrize("quick", LIGHT.values(), ids=LIGHT)
ROWS = 120
QUICK_ONE = LIGHT["self-calibrated"]


def messy(rows=ROWS):
    """A frame with the kinds of values that real tables have; every column is informative about the label."""
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 2
    town = np.where(rng.random(rows) < 0.8, np.where(y, "Bern", "Rom"), "Wien").astype(object)
    town[::17] = None
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, 40 + 10 * y + rng.normal(0, 5, rows)),
            "town": town,
            "size": pd.Categorical(np.where(rng.random(rows) < 0.7, np.where(y, "1", "2"), "3")),
            "member": rng.random(rows) < 0.2 + 0.6 * y,
            "since": pd.Timestamp("2024-01-01") + pd.to_timedelta(100 * y + rng.integers(0, 100, rows), unit="D"),
            "visits": pd.array(rng.integers(0, 9, rows), dtype="Int64"),
            "empty": [None] * rows,
            "same": 1,
        }
    )
    frame.loc[3, "visits"] = pd.NA
    return frame, np.array(["no", "yes"])[y]


def fitted_on(frame, y, quick=QUICK_ONE, **settings):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Column 'since' holds dates")
        return clone(quick).set_params(**settings).fit(frame, y)


@each
def test_a_frame_of_everything(quick, tmp_path):
    frame, y = messy()
    fitted = fitted_on(frame, y, quick)
    assert fitted.score(frame, y) > 0.85
    assert list(fitted.feature_names_in_) == list(frame)
    assert fitted.encoder_.categorical_features_.tolist() == [False, True, True, False, False, False]
    assert fitted.encoder_.dropped_ == {"empty": "empty", "same": "constant"}
    np.testing.assert_array_equal(fitted.suspects(frame, y, n=5), fitted.suspects(n=5))
    fitted.save(tmp_path / "model.calibrant")
    again = load_classifier(tmp_path / "model.calibrant")
    np.testing.assert_array_equal(again.predict_proba(frame), fitted.predict_proba(frame))
    assert again.encoder_.to_json() == fitted.encoder_.to_json()


def test_the_user_learns_what_became_of_columns():
    frame, y = messy()
    frame["name"] = [f"customer {k}" for k in range(ROWS)]
    with pytest.warns(UserWarning, match="'name' is left out") as told:
        clone(QUICK_ONE).fit(frame, y)
    assert any("'since' holds dates" in str(w.message) for w in told)


def test_new_categories_and_missing_values_at_prediction():
    frame, y = messy()
    fitted = fitted_on(frame, y)
    new = frame.head(4).copy()
    new["town"], new["size"] = ["Paris", None, "Rom", "Oslo"], [None, "7", "1", "2"]
    new["member"], new["since"] = [None, True, None, False], pd.NaT
    new["age"], new["same"] = np.nan, 5
    probs = fitted.predict_proba(new)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(1), 1)
    text = fitted.predict_proba(frame.astype({"size": str}))
    np.testing.assert_array_equal(text, fitted.predict_proba(frame))


def test_columns_must_be_those_of_the_training_table():
    frame, y = messy()
    fitted = fitted_on(frame, y)
    with pytest.raises(ValueError, match=r"seen at fit time, yet now missing:\s+- town"):
        fitted.predict(frame.drop(columns="town"))
    with pytest.raises(ValueError, match=r"unseen at fit time:\s+- more"):
        fitted.predict(frame.assign(more=1))
    with pytest.raises(ValueError, match="'age' must hold numbers; got 'old'"):
        fitted.predict(frame.assign(age="old"))
    twice = frame.set_axis(["town", *frame.columns[1:]], axis=1)
    with pytest.raises(ValueError, match=r"(?s)names.*town"):
        fitted_on(twice, y)


def test_text_where_training_had_numbers_is_explained():
    X, y = three_classes()
    fitted = clone(QUICK_ONE).fit(X, y)
    with pytest.raises(ValueError, match="but X holds text"):
        fitted.predict([["red", 1.0]])


@pytest.mark.parametrize("kind", [list, pd.Series])
def test_text_that_is_no_table_is_explained(kind):
    with pytest.raises(ValueError, match=r"X must be a table, but it is text .*column of a data frame\."):
        clone(QUICK_ONE).fit(kind(["a sentence", "another one"] * 20), [0, 1] * 20)


@light
def test_rows_of_text_need_no_frame(quick):
    rows = [["red", 1], ["blue", 2], ["red", 3], ["blue", None]] * 10
    labels = [0, 1, 0, 1] * 10
    fitted = clone(quick).fit(rows, labels)
    assert fitted.score(rows, labels) == 1.0
    assert fitted.n_features_in_ == 2


@light
def test_sparse_matrices_are_read_as_dense_ones(quick):
    X, y = three_classes()
    X = X.astype(np.float32)
    X[np.abs(X) < 0.5] = 0
    expected = clone(quick).fit(X, y).predict_proba(X)
    for form in (sparse.csr_matrix, sparse.csc_matrix, sparse.coo_array):
        found = clone(quick).fit(form(X), y)
        np.testing.assert_array_equal(found.predict_proba(form(X)), expected)
        np.testing.assert_array_equal(found.predict_proba(X), expected)


def test_a_sparse_matrix_too_large_for_memory_is_refused(monkeypatch):
    monkeypatch.setattr(reading, "LARGEST_DENSE", 2**20)
    X = sparse.random_array((1000, 500), density=0.01, format="csr", rng=0)
    with pytest.raises(ValueError, match=r"would take 0\.0 GB as a dense array.*TruncatedSVD"):
        SelfCalibratedClassifier().fit(X, np.arange(1000) % 2)


@light
def test_missing_numbers_need_no_frame(quick, tmp_path):
    X, y = three_classes()
    X = np.c_[X, np.full(90, np.nan)]  # a column without any value
    X[::5, 0] = np.nan
    fitted = clone(quick).fit(X, y)
    assert fitted.encoder_ is None
    assert fitted.scaling_.width == 4  # one indicator
    assert fitted.score(X, y) > 0.7
    fitted.save(tmp_path / "model.calibrant")
    np.testing.assert_array_equal(
        load_classifier(tmp_path / "model.calibrant").predict_proba(X), fitted.predict_proba(X)
    )
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    np.testing.assert_array_equal(clone(quick).fit(frame, y).predict_proba(frame), fitted.predict_proba(X))
    with pytest.raises(ValueError, match="infinity"):
        clone(quick).fit(np.where(np.isnan(X), np.inf, X), y)


def test_validation_parts_go_through_the_same_encoder():
    frame, y = messy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Column 'since' holds dates")
        fitted = clone(QUICK_ONE).fit(frame[:80], y[:80], X_val=frame[80:], y_val=y[80:])
    assert fitted.score(frame, y) > 0.8


@pytest.mark.parametrize("weights", [{0: 1.0, 1: 2.0, 2: 0.5}, {"a": 1.0, "b": 2.0, "c": 0.5}, "balanced"])
def test_class_weights_are_kept_in_files(weights, tmp_path):
    X, y = three_classes()
    labels = np.array(["a", "b", "c"])[y] if "a" in weights and weights != "balanced" else y
    clone(QUICK_ONE).set_params(class_weight=weights, epochs=5).fit(X, labels).save(tmp_path / "model.calibrant")
    assert load_classifier(tmp_path / "model.calibrant").class_weight == weights


def test_class_weights_that_change_shares_get_a_warning():
    X, y = three_classes()
    rows = np.flatnonzero((y > 0) | (np.arange(len(y)) % 10 == 0))
    balanced = clone(QUICK_ONE).set_params(class_weight="balanced", epochs=1)
    with pytest.warns(UserWarning, match=r"class 0 has a share of 33\.3% instead of") as caught:
        balanced.fit(X[rows], y[rows])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        balanced.fit(X, y)  # the classes are equally frequent


@light
def test_class_weights_are_sample_weights_by_class(quick):
    X, y = three_classes()
    X, y = X[:80], y[:80]  # 27, 27 and 26 rows
    by_class = {0: 1.0, 1: 2.0, 2: 3.0}
    weights = np.array([1.0, 2.0, 3.0])[y]
    expected = clone(quick).fit(X, y, weights).predict_proba(X)
    np.testing.assert_array_equal(clone(quick).set_params(class_weight=by_class).fit(X, y).predict_proba(X), expected)
    both = clone(quick).set_params(class_weight=by_class).fit(X, y, np.linspace(1, 2, 80)).predict_proba(X)
    np.testing.assert_array_equal(both, clone(quick).fit(X, y, weights * np.linspace(1, 2, 80)).predict_proba(X))
    balanced = clone(quick).set_params(class_weight="balanced").fit(X, y).predict_proba(X)
    own = clone(quick).fit(X, y, compute_sample_weight("balanced", y)).predict_proba(X)
    np.testing.assert_array_equal(balanced, own)
    with pytest.raises(ValueError, match="class_weight"):
        clone(quick).set_params(class_weight="even").fit(X, y)
    with pytest.raises(ValueError, match="class_weight must not be negative"):
        clone(quick).set_params(class_weight={0: -1.0, 1: 1.0, 2: 1.0}).fit(X, y)


@pytest.mark.parametrize("y", [np.zeros(20), np.zeros(20, int), ["a"] * 20, np.array(["a"] * 20, object), [True] * 20])
def test_one_class_is_named_plainly(y):
    with pytest.raises(ValueError, match=rf"got one class only, {np.asarray(y).tolist()[0]!r} \(n_samples=20\)"):
        SelfCalibratedClassifier().fit(np.arange(40.0).reshape(20, 2), y)


def test_a_sentinel_for_missing_values_does_not_ruin_the_classifier():
    """If the sentinel set the scale, all other values would be nearly equal, and the classifier would guess (0.5)."""
    x, y = make_classification(900, 5, n_informative=4, n_redundant=0, class_sep=2.0, random_state=0)
    x[np.random.default_rng(0).random(x.shape) < 0.01] = 1e6
    fitted = SelfCalibratedClassifier(folds=2, epochs=200, members=("network",), random_state=0)
    fitted.fit(x[:600], y[:600])
    assert fitted.score(x[600:], y[600:]) > 0.8


def test_polars_frames():
    polars = pytest.importorskip("polars")
    frame, y = messy()
    frame = frame[["age", "town", "since"]]
    expected = fitted_on(frame, y).predict_proba(frame)
    other = polars.DataFrame({name: [None if pd.isna(v) else v for v in frame[name]] for name in frame})
    np.testing.assert_array_equal(fitted_on(other, y).predict_proba(other), expected)


@pytest.mark.slow
def test_a_thousand_classes():
    random = np.random.default_rng(0)
    y = np.arange(4000) % 1000
    X = random.normal(size=(1000, 10))[y] * 3 + random.normal(size=(4000, 10))
    fitted = SelfCalibratedClassifier((16,), folds=2, epochs=2, random_state=0).fit(X, y)
    probs = fitted.predict_proba(X)
    assert probs.shape == (4000, 1000)
    np.testing.assert_allclose(probs.sum(1), 1)
    assert fitted.score(X, y) > 0.1  # by chance: 0.001
