"""Tests of the forms of inputs and labels: masked arrays, PyArrow tables, dictionaries, names, kinds of labels."""

import warnings
from datetime import date

import numpy as np
import pandas as pd
import pyarrow
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from calibrant import BO4SCClassifier, CrossCalibrated, SelfCalibratedClassifier
from calibrant.data import TableEncoder
from tests.estimators.cases import QUICK, three_classes

ROWS = 48
Y = np.arange(ROWS) % 2
_RANDOM = np.random.default_rng(0)
VALUES = _RANDOM.normal(size=(ROWS, 2)) + Y[:, None]
FRAME = pd.DataFrame(VALUES, columns=["a", "b"])
TEXT = FRAME.assign(c=np.where(_RANDOM.random(ROWS) < 0.5, "u", "v"))
NETWORK = clone(QUICK["self-calibrated"]).set_params(members=("network",), epochs=2)
PIPELINE = CrossCalibrated(make_pipeline(TableEncoder(), LogisticRegression()), cv=2, random_state=0)
both = pytest.mark.parametrize("classifier", [NETWORK, PIPELINE], ids=["self-calibrated", "cross-calibrated"])


@both
def test_masked_entries_are_missing(classifier):
    mask = VALUES > 1.5
    masked = np.ma.array(np.where(mask, 1e9, VALUES), mask=mask)
    gaps = np.where(mask, np.nan, VALUES)
    found, expected = (clone(classifier).fit(table, Y) for table in (masked, gaps))
    np.testing.assert_array_equal(found.predict_proba(masked), expected.predict_proba(gaps))


@both
@pytest.mark.parametrize("frame", [FRAME, TEXT], ids=["numbers", "text"])
def test_pyarrow_tables_are_data_frames(classifier, frame):
    table = pyarrow.Table.from_pandas(frame)
    found = clone(classifier).fit(table, Y)
    expected = clone(classifier).fit(frame, Y)
    np.testing.assert_array_equal(found.predict_proba(table), expected.predict_proba(frame))
    assert list(found.feature_names_in_) == list(frame)


@both
def test_columns_may_be_called_like_attributes_of_tables(classifier):
    frame = pd.DataFrame(VALUES, columns=["column_names", "to_pandas"])
    found = clone(classifier).fit(frame, Y)
    assert list(found.feature_names_in_) == list(frame)
    np.testing.assert_array_equal(found.predict_proba(frame), clone(classifier).fit(FRAME, Y).predict_proba(FRAME))


@pytest.mark.filterwarnings("ignore:Column 'd' holds dates")
@both
def test_polars_frames_may_mix_numbers_and_dates(classifier):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": VALUES[:, 0], "d": [date(2020, 1, 1 + k % 28) for k in range(ROWS)]})
    assert np.isfinite(clone(classifier).fit(frame, Y).predict_proba(frame)).all()


@both
@pytest.mark.parametrize("frame", [FRAME, TEXT], ids=["numbers", "text"])
def test_columns_of_one_name_are_refused(classifier, frame):
    twice = pd.concat([frame, frame[["b"]]], axis=1)
    with pytest.raises(ValueError, match=r"Column names must differ.*got b twice"):
        clone(classifier).fit(twice, Y)


@both
def test_a_dictionary_is_refused_in_a_sentence(classifier):
    with pytest.raises(ValueError, match=r"got a dictionary. Give pandas.DataFrame\(X\)"):
        clone(classifier).fit(dict(FRAME), Y)


def test_a_series_is_refused_as_a_table_of_one_dimension():
    with pytest.raises(ValueError, match="2-dimensional"):
        clone(NETWORK).fit(FRAME["a"], Y)


@pytest.mark.parametrize("value", [np.inf, 1e200])
def test_advice_does_not_hide_errors_of_the_encoder(value):
    table = TEXT.assign(a=[value, *VALUES[1:, 0]])
    with pytest.raises(ValueError, match=r"^Column 'a' holds an infinite number"):
        clone(PIPELINE).fit(table, Y)


def test_advice_does_not_hide_errors_about_parameters():
    with pytest.raises(ValueError, match=r"^The 'C' parameter"):
        CrossCalibrated(LogisticRegression(C=-1.0), cv=2).fit(TEXT, Y)


NAMES = np.array(["no", "yes"])[Y]
MISSING = {
    "object": np.array([None, *NAMES[1:]], dtype=object),
    "pandas string": pd.Series([pd.NA, *NAMES[1:]], dtype="string"),
    "masked": np.ma.array(Y, mask=np.arange(ROWS) == 0),
}


@both
@pytest.mark.parametrize("kind", MISSING)
def test_missing_labels_are_counted(classifier, kind):
    with pytest.raises(ValueError, match=r"y must not have missing labels; 1 of its 48 entries are missing"):
        clone(classifier).fit(VALUES, MISSING[kind])


@both
def test_labels_of_several_kinds_are_refused(classifier):
    with pytest.raises(ValueError, match=r"y must hold labels of one kind; got int, str"):
        clone(classifier).fit(VALUES, np.array(["no", 1] * (ROWS // 2), dtype=object))


@both
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (Y.astype(bool).astype(object), [False, True]),
        (Y.astype(object), [0, 1]),
        (pd.Series(Y, dtype="Int64"), [0, 1]),
        (pd.Series(Y, dtype=bool).astype("boolean"), [False, True]),
    ],
    ids=["objects of truth values", "objects of integers", "Int64", "boolean"],
)
def test_classes_have_the_type_of_the_labels(classifier, labels, expected):
    fitted = clone(classifier).fit(VALUES, labels)
    assert fitted.classes_.dtype.kind == ("b" if expected[1] is True else "i")
    assert fitted.classes_.tolist() == expected


@both
def test_text_of_numpy_and_of_python_are_of_one_kind(classifier):
    labels = np.array([NAMES[k] if k % 3 else str(NAMES[k]) for k in range(ROWS)], dtype=object)
    assert {type(label) for label in labels} == {str, np.str_}
    assert clone(classifier).fit(VALUES, labels).classes_.tolist() == ["no", "yes"]


@both
@pytest.mark.parametrize("gap", [None, np.nan], ids=["None", "NaN"])
def test_missing_groups_are_counted(classifier, gap):
    groups = np.array([gap, *(Y[1:] + 2.0)], dtype=object)
    with pytest.raises(ValueError, match=r"groups must not have missing values; 1 of its 48 entries are missing"):
        clone(classifier).fit(VALUES, Y, groups=groups)


@both
def test_very_large_weights_count_by_their_proportions(classifier):
    weights = 1.0 + np.arange(ROWS) % 3
    found = clone(classifier).fit(VALUES, Y, sample_weight=1e300 * weights)
    expected = clone(classifier).fit(VALUES, Y, sample_weight=weights / 3)
    np.testing.assert_allclose(found.predict_proba(VALUES), expected.predict_proba(VALUES), rtol=1e-3)


HALF = np.arange(ROWS) < ROWS // 2


@both
def test_folds_may_be_masks(classifier):
    masks, rows = [(HALF, ~HALF), (~HALF, HALF)], [np.flatnonzero(HALF), np.flatnonzero(~HALF)]
    found = clone(classifier).set_params(cv=masks).fit(VALUES, Y)
    expected = clone(classifier).set_params(cv=[rows, rows[::-1]]).fit(VALUES, Y)
    np.testing.assert_array_equal(found.oof_proba_, expected.oof_proba_)


@both
def test_folds_without_rows_of_positive_weight_are_left_out(classifier):
    third = np.arange(ROWS) % 3
    folds = [(np.flatnonzero(third != k), np.flatnonzero(third == k)) for k in range(3)]
    weights = (third != 2).astype(float)
    fitted = clone(classifier).set_params(cv=folds).fit(VALUES, Y, sample_weight=weights)
    np.testing.assert_array_equal(np.isnan(fitted.oof_proba_).any(axis=1), third == 2)
    with pytest.raises(ValueError, match="at least two folds with rows to train on and rows to hold out; got 1"):
        clone(classifier).set_params(cv=[folds[0], (np.arange(ROWS), [])]).fit(VALUES, Y)


@both
@pytest.mark.parametrize("held", [[0, ROWS], [-1, 0], [0.5, 1.5], ["a"]])
def test_folds_of_other_rows_are_refused(classifier, held):
    with pytest.raises(ValueError, match=r"cv must give folds as row numbers from 0 to 47, or as masks; got"):
        clone(classifier).set_params(cv=[(np.arange(2, 40), held), (np.arange(40), np.arange(40, ROWS))]).fit(VALUES, Y)


def test_the_base_of_calibration_needs_scores():
    with pytest.raises(ValueError, match="predict_proba or decision_function; got StandardScaler, which has neither"):
        CrossCalibrated(StandardScaler(), cv=2).fit(VALUES, Y)


@pytest.mark.parametrize(
    "clf", [SelfCalibratedClassifier(epochs=2, folds=2), BO4SCClassifier(epochs=2), CrossCalibrated(cv=2)], ids=repr
)
def test_a_nameless_column_of_row_numbers_raises_a_warning(clf):
    values, y = three_classes(60)
    frame = pd.DataFrame(values, columns=["a", "b"])
    frame.insert(0, "Unnamed: 0", np.arange(len(y)))
    with pytest.warns(UserWarning, match=r"drop\(columns='Unnamed: 0'\)") as found:
        clf.fit(frame, y)
    assert {w.filename for w in found if "row numbers" in str(w.message)} == {__file__}
    assert clf.n_features_in_ == 3  # the column is used
    for other in (frame.rename(columns={"Unnamed: 0": "visit"}), frame.assign(**{"Unnamed: 0": y / 2})):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*row numbers")
            clf.fit(other, y)


@pytest.mark.parametrize("form", [sparse.dok_array, sparse.dok_matrix, sparse.lil_array, sparse.coo_array])
@pytest.mark.parametrize("clf", [NETWORK, CrossCalibrated(LogisticRegression(), cv=2, random_state=0)], ids=repr)
def test_every_sparse_form_is_an_array_without_names(clf, form):
    """SciPy's matrices in dictionary-of-keys form are mappings, but not from names to columns."""
    dense, found = (clone(clf).fit(table, Y).predict_proba(table) for table in (VALUES, form(VALUES)))
    np.testing.assert_allclose(found, dense, atol=1e-4)
