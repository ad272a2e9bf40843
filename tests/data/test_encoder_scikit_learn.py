"""Tests of the table encoder as a scikit-learn transformer: scikit-learn's checks, pipelines and output settings."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant.data import TableEncoder
from calibrant.data.columns.forms import as_columns

FRAME = pd.DataFrame({"age": [20.0, 40.0, np.nan, 60.0] * 10, "town": ["Bern", "Rom", "Rom", None] * 10})
LABELS = np.array([0, 1, 1, 0] * 10)


# scikit-learn's check of column names is not among these: it asks for an error where columns come in another order, and
# the encoder, like a ColumnTransformer, matches them by name.
@parametrize_with_checks([TableEncoder(), TableEncoder(output="ordinal")])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_it_sits_in_a_pipeline_whatever_the_targets_are():
    pipe = make_pipeline(TableEncoder(), LogisticRegression(C=100))
    assert pipe.fit(FRAME, LABELS).score(FRAME, LABELS) == 1.0
    names = ["age", "age missing", "town=Bern", "town=Rom", "town=(missing)"]
    assert pipe[:-1].get_feature_names_out().tolist() == names
    search = GridSearchCV(pipe, {"tableencoder__categorical": [(), ["age"]]}, cv=2).fit(FRAME, LABELS)
    assert search.best_score_ == 1.0
    make_pipeline(TableEncoder(), LinearRegression()).fit(FRAME, LABELS + 0.5)


def test_ordinal_output_is_what_trees_with_native_categories_take():
    encoder = TableEncoder(output="ordinal").fit(FRAME)
    assert encoder.categorical_features_.tolist() == [False, True]
    assert encoder.get_feature_names_out().tolist() == ["age", "town"]
    found = encoder.transform({"age": [40, None, 7], "town": ["Rom", None, "Wien"]})
    np.testing.assert_array_equal(found, [[40, 1], [np.nan, np.nan], [7, -1]])
    trees = HistGradientBoostingClassifier(
        categorical_features=encoder.categorical_features_, min_samples_leaf=1, max_iter=20
    ).fit(encoder.transform(FRAME), LABELS)
    assert trees.score(encoder.transform(FRAME), LABELS) == 1.0
    assert np.isfinite(trees.predict_proba(found)).all()


def test_ordinal_and_one_hot_outputs_tell_the_same():
    one_hot, ordinal = TableEncoder().fit(FRAME), TableEncoder(output="ordinal").fit(FRAME)
    np.testing.assert_array_equal(one_hot.scaling_.transform(ordinal.transform(FRAME)), one_hot.transform(FRAME))
    assert one_hot.categorical_features_.tolist() == [False, False, True, True, True]


def test_arrays_are_matched_by_position_and_frames_by_name():
    encoder, values = TableEncoder().fit(FRAME), FRAME.to_numpy(dtype=object)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(encoder.transform(values), encoder.transform(FRAME))
    plain = TableEncoder().fit(values)
    with pytest.warns(UserWarning, match="fitted without feature names"):
        np.testing.assert_array_equal(plain.transform(FRAME), encoder.transform(FRAME))
    assert plain.get_feature_names_out(["a", "b"]).tolist() == ["a", "a missing", "b=Bern", "b=Rom", "b=(missing)"]
    with pytest.raises(ValueError, match="X has 1 features, but TableEncoder is expecting 2"):
        plain.transform(values[:, :1])


def test_a_second_fit_forgets_the_first():
    encoder = TableEncoder().fit(FRAME).fit(np.arange(6.0).reshape(3, 2))
    assert encoder.n_features_in_ == 2
    assert not hasattr(encoder, "feature_names_in_")


def test_polars_frames_are_read_as_pandas_frames_are():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"age": [20, 40, None, 60], "town": ["Bern", "Rom", "Rom", None], "in": [True, None] * 2})
    frame = frame.with_columns(kind=polars.Series(["1", "2", "1", "2"], dtype=polars.Categorical))
    encoder = TableEncoder().fit(frame)
    names = ["age", "age missing", "town=Rom", "town=(rare)", "town=(missing)", "in missing", "kind=1", "kind=2"]
    assert encoder.get_feature_names_out().tolist() == names
    assert encoder.transform(frame).shape == (4, 8)


def test_masked_entries_of_a_dictionary_are_missing():
    numbers = np.ma.array([1, 2, 3, 999], mask=[0, 0, 0, 1])
    days = np.ma.array(
        ["2020-01-01", "2020-01-03", "2020-01-05", "1900-01-01"], dtype="datetime64[D]", mask=[0, 0, 0, 1]
    )
    words = np.ma.array(["a", "b", "a", "?"], mask=[0, 0, 0, 1])
    with pytest.warns(UserWarning, match="'d' holds dates"):
        encoder = TableEncoder(output="ordinal").fit({"n": numbers, "d": days, "w": words})
    found = encoder.transform({"n": numbers, "d": days, "w": words})
    assert np.isnan(found[3]).all()
    assert not np.isnan(found[:3]).any()


def test_periods_are_dates():
    frame = pd.DataFrame({"month": pd.period_range("2020-01", periods=4, freq="M")})
    with pytest.warns(UserWarning, match="'month' holds dates"):
        found = TableEncoder(output="ordinal").fit_transform(frame)
    assert np.diff(found[:, 0]).tolist() == [31, 29, 31]


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_dates_of_an_index_are_those_of_a_series(zone):
    days, months = pd.date_range("2020", periods=4, tz=zone), pd.period_range("2020", periods=4, freq="M")
    found = as_columns({"day": days, "month": months})
    expected = as_columns(pd.DataFrame({"day": days, "month": months}))
    for name, first in (("day", "2019-12-31T15" if zone else "2020-01-01"), ("month", "2020-01-01")):
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name][0] == np.datetime64(first)


def test_complex_columns_are_refused():
    with pytest.raises(ValueError, match="give real and imaginary parts as separate columns"):
        TableEncoder().fit(pd.DataFrame({"z": [1j, 2.0]}))


@pytest.mark.parametrize(
    "setting",
    [{"rare": 2}, {"rare": "few"}, {"max_categories": 1}, {"max_categories": "many"}, {"categorical": None}]
    + [{"rare": 1.0}, {"unseen": "skip"}, {"output": "dense"}],
    ids=str,
)
def test_bad_settings_are_named(setting):
    with pytest.raises(ValueError, match=rf"^{next(iter(setting))} must be .*; got "):
        TableEncoder(**setting).fit(FRAME)
