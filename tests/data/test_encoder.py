"""Tests of the table encoder: small exact cases, columns by name, JSON round trips, and messages about odd columns."""

import warnings
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from calibrant.data import TableEncoder

TRAIN = {"age": [20.0, 40.0, np.nan, 60.0, 40.0], "sex": ["f", "m", "m", "f", None], "same": [1, 1, 1, 1, 1]}


def test_a_small_table_by_hand():
    encoder = TableEncoder().fit(TRAIN)
    assert encoder.get_feature_names_out().tolist() == ["age", "age missing", "sex=f", "sex=m", "sex=(missing)"]
    assert encoder.dropped_ == {"same": "constant"}
    root = np.sqrt(2)  # mean 40, deviation √200
    expected = [[-root, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 1, 0, 1, 0], [root, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    encoded = encoder.transform(TRAIN)
    assert encoded.dtype == np.float32
    assert encoded == pytest.approx(np.array(expected), abs=1e-6)
    assert encoder.categorical_features_.tolist() == [False, False, True, True, True]


def test_columns_are_matched_by_name():
    encoder = TableEncoder().fit(TRAIN)
    swapped = {"more": [0], "sex": ["m"], "age": [40]}
    assert encoder.transform(swapped).tolist() == [[0, 0, 0, 1, 0]]
    assert encoder.transform(pd.DataFrame(swapped)).tolist() == [[0, 0, 0, 1, 0]]
    with pytest.raises(ValueError, match=r"lacks a column of the training table: sex. Add it; the table has age"):
        encoder.transform({"age": [40]})


def test_frames_dictionaries_and_arrays_agree():
    frame = pd.DataFrame(TRAIN)
    frame["sex"] = frame["sex"].astype("category")
    nullable = frame.assign(age=frame["age"].astype("Int64"))
    expected = TableEncoder().fit_transform(TRAIN)
    assert np.array_equal(TableEncoder().fit_transform(frame), expected)
    assert np.array_equal(TableEncoder().fit_transform(nullable), expected)
    assert np.array_equal(TableEncoder().fit_transform(np.array(list(TRAIN.values()), dtype=object).T), expected)


def test_few_whole_numbers_stay_numbers_unless_declared_codes():
    data = {"code": [1, 2, 3, 1, 2, 3]}
    assert TableEncoder().fit(data).get_feature_names_out().tolist() == ["code"]
    encoder = TableEncoder(categorical=["code"]).fit(data)
    assert encoder.get_feature_names_out().tolist() == ["code=1", "code=2", "code=3"]
    assert encoder.transform({"code": [2.0, "3", "1.0"]}).tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    with pytest.raises(ValueError, match="categorical must name columns of the table; got kode"):
        TableEncoder(categorical=["kode"]).fit(data)


def test_rare_and_unseen_categories_share_an_input():
    data = {"town": ["a"] * 5 + ["b"] * 4 + ["c", "d"]}
    encoder = TableEncoder().fit(data)
    assert encoder.get_feature_names_out().tolist() == ["town=a", "town=b", "town=(rare)"]
    assert encoder.transform({"town": ["c", "new", "a", None]}).tolist() == [[0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]]
    without_rare = TableEncoder().fit({"town": ["a", "a", "b", "b"]})
    assert without_rare.transform({"town": ["new", "b"]}).tolist() == [[0, 0], [0, 1]]
    strict = TableEncoder(unseen="error").fit(data)
    assert strict.transform({"town": ["c"]}).tolist() == [[0, 0, 1]]
    with pytest.raises(ValueError, match=r"'town' holds categories not seen in training: new\."):
        strict.transform({"town": ["new"]})


def test_rows_per_category_and_category_counts_bound_the_inputs():
    towns = ["a"] * 50 + ["b"] * 30 + ["c"] * 15 + ["d"] * 5
    names = TableEncoder(rare=0.1).fit({"t": towns}).get_feature_names_out().tolist()
    assert names == ["t=a", "t=b", "t=c", "t=(rare)"]
    with pytest.warns(UserWarning, match="has 4 categories: the 2 most frequent"):
        names = TableEncoder(max_categories=3).fit({"t": towns}).get_feature_names_out().tolist()
    assert names == ["t=a", "t=b", "t=(rare)"]


def test_names_and_free_text_are_left_out_with_a_sentence():
    data = {"name": [f"patient {k}" for k in range(100)], "x": np.arange(100)}
    with pytest.warns(UserWarning, match="'name' is left out: 100 different texts in 100 rows"):
        encoder = TableEncoder().fit(data)
    assert encoder.get_feature_names_out().tolist() == ["x"]
    assert encoder.dropped_ == {"name": "too many categories"}
    assert encoder.transform({"x": [49.5]}).tolist() == [[0]]


DAYS = ["2024-01-01", "2024-01-03", "2024-01-05"]


@pytest.mark.parametrize(
    "dates",
    [
        DAYS,
        [f"{d} 00:00:00" for d in DAYS],
        np.array(DAYS, dtype="datetime64[D]"),
        np.array([np.datetime64(d, "ns") for d in DAYS], dtype=object),
        pd.to_datetime(pd.Series(DAYS)),
        pd.to_datetime(pd.Series(DAYS)).dt.tz_localize("UTC"),
        [date.fromisoformat(d) for d in DAYS],
    ],
)
def test_dates_become_days(dates):
    with pytest.warns(UserWarning, match="'when' holds dates"):
        encoder = TableEncoder().fit({"when": dates})
    step = np.sqrt(3 / 2)
    assert encoder.transform({"when": dates})[:, 0] == pytest.approx([-step, 0, step])
    assert encoder.transform({"when": ["2024-01-04"]})[0, 0] == pytest.approx(step / 2)
    with pytest.raises(
        ValueError, match=r"must hold dates such as 2024-12-31; got 'soon' in row 0\. Correct it, or leave it empty"
    ):
        encoder.transform({"when": ["soon"]})


def test_truth_values_are_numbers_however_they_come():
    encoder = TableEncoder().fit({"member": [True, False, True, False]})
    assert encoder.get_feature_names_out().tolist() == ["member"]
    for values in ([True, False], [1, 0], ["True", "false"]):
        assert encoder.transform({"member": values}).tolist() == [[1], [-1]]


def test_a_constant_that_is_sometimes_missing_keeps_its_indicator():
    encoder = TableEncoder().fit({"x": [0.1, np.nan, 0.1, 0.1], "none": [None] * 4})
    assert encoder.transform({"x": [0.1, None, 7]}).tolist() == [[0], [1], [0]]
    assert encoder.dropped_ == {"none": "empty"}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"x": [1.0, np.inf]}, "'x' holds an infinite number"),
        ({"x": [1, 1], "t": ["a", "a"]}, "No column of the table can be used"),
        ({"x": [1, 2], "z": [1]}, "the same length"),
        ({"x": []}, "at least one column and one row; got 0 rows and 1 columns"),
        (np.zeros(3), "Expected 2D array"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "must differ.*; got a twice"),
    ],
)
def test_tables_that_cannot_be_encoded(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        TableEncoder().fit(data)


def test_declared_categories_stay_so_however_many_numbers_they_hold():
    codes = ["1", "2", "3"] * 20 + ["x", "x"]
    names = ["c=1", "c=2", "c=3", "c=x"]
    assert TableEncoder(categorical=["c"]).fit({"c": codes}).get_feature_names_out().tolist() == names
    assert TableEncoder().fit(pd.DataFrame({"c": codes}, dtype="category")).get_feature_names_out().tolist() == names
    assert TableEncoder().fit({"c": codes}).get_feature_names_out().tolist() == names
    with pytest.warns(UserWarning, match="'c' is read as text, because 'x' is not a number. Leave it empty"):
        TableEncoder().fit({"c": [*map(str, range(20)), "x"] * 2})
    with pytest.warns(UserWarning, match="'c' is text and is taken as numbers. Name it in categorical"):
        assert TableEncoder().fit({"c": codes[:60]}).get_feature_names_out().tolist() == ["c"]
    padded = ["12", "13", "14"] * 20 + ["01", "01"]
    assert TableEncoder().fit({"c": padded}).get_feature_names_out().tolist() == ["c=01", "c=12", "c=13", "c=14"]


def test_names_that_are_numbers_are_matched_as_text():
    frame = pd.DataFrame({0: [1, 2, 1, 2], 1: [0.5, 1.5, 2.5, 3.5]})
    encoder = TableEncoder(categorical=[0]).fit(frame)
    assert encoder.get_feature_names_out().tolist() == ["0=1", "0=2", "1"]
    for same in ("0", np.array([0])):
        assert TableEncoder(categorical=same).fit(frame).to_json() == encoder.to_json()
    with pytest.raises(ValueError, match=r"must differ.*; got 0 twice"):
        TableEncoder().fit({0: [1, 2], "0": [1, 2]})


def test_a_value_in_another_format_is_refused_with_its_row():
    with pytest.warns(UserWarning, match="taken as numbers"):
        encoder = TableEncoder().fit({"x": [str(k / 2) for k in range(100)]})
    for value in ("0,5", "12 kg", "unknown"):
        with pytest.raises(ValueError, match=rf"'x' must hold numbers; got '{value}' in row 2\."):
            encoder.transform({"x": ["0.5", None, value, "other"]})


def test_decimals_and_truth_words_are_numbers_wherever_numbers_are_read():
    data = {"x": [Decimal("0.5"), Decimal("1.5"), None, Decimal("NaN")] * 5}
    encoder = TableEncoder().fit(data)
    assert encoder.get_feature_names_out().tolist() == ["x", "x missing"]
    expected = [[-1, 0], [1, 0], [0, 1]]
    assert encoder.transform({"x": [Decimal("0.5"), "1.5", "nan"]}).tolist() == expected
    with pytest.warns(UserWarning, match="taken as numbers"):
        text = TableEncoder().fit({"x": ["0", "1"] * 20})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert text.transform({"x": ["false", True, Decimal(1), "TRUE"]}).tolist() == [[-1], [1], [1], [1]]
    assert TableEncoder().fit({"x": ["true", "false"] * 20}).get_feature_names_out().tolist() == ["x=false", "x=true"]


@pytest.mark.parametrize(
    "codes",
    [
        [f"{k:05d}" for k in range(200)],
        np.array([f"{k:05d}" for k in range(200)]),
        pd.Series(range(200), dtype="category"),
        pd.Series([f"2024-01-{k:02d}" for k in range(1, 31)], dtype="category"),
    ],
)
def test_codes_are_never_numbers_however_many_there_are(codes):
    with pytest.warns(UserWarning, match="'zip' is left out"):
        encoder = TableEncoder().fit({"zip": codes, "x": np.arange(len(codes))})
    assert encoder.dropped_ == {"zip": "too many categories"}
    with pytest.warns(UserWarning, match="'zip' has 100 categories: the 63 most frequent"):
        pooled = TableEncoder().fit({"zip": [f"{k % 100:05d}" for k in range(300)]})
    assert len(pooled.get_feature_names_out()) == 64


def test_truth_words_of_categories_are_compared_without_case():
    encoder = TableEncoder(unseen="error").fit({"m": ["true", "false"] * 3})
    for values in ([True, False], ["True", "FALSE"], ["true", "false"], np.array([True, False])):
        assert encoder.transform({"m": values}).tolist() == [[0, 1], [1, 0]]
    both = TableEncoder().fit({"m": ["true", "True", "x"] * 3})
    assert both.get_feature_names_out().tolist() == ["m=True", "m=true", "m=x"]
    assert both.transform({"m": ["true", "True", "X"]}).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_outliers_do_not_move_the_scale_and_are_compressed():
    data = {"x": [*range(1000), 1e9]}
    plain, found = TableEncoder().fit({"x": range(1000)}), TableEncoder().fit(data)
    inside = {"x": [0, 250, 999]}
    assert found.transform(inside)[:, 0] == pytest.approx(plain.transform(inside)[:, 0], abs=0.2)
    assert 10 < found.transform(data)[-1, 0] <= 20


def test_a_hundred_thousand_categories():
    names = np.array([f"town {k}" for k in range(100_000)], dtype=object)
    many = np.concatenate([names, names, ["Rom"] * 1000])
    with pytest.warns(UserWarning, match="100001 categories: the 1 most frequent have their own input"):
        encoder = TableEncoder().fit({"town": many})
    assert encoder.get_feature_names_out().tolist() == ["town=Rom", "town=(rare)"]
    again = TableEncoder.from_json(encoder.to_json())
    assert again.transform({"town": ["Rom", "town 7", "new", None]}).tolist() == [[1, 0], [0, 1], [0, 1], [0, 0]]


def test_mixed_types_in_one_column_are_categories():
    data = {"x": [1, "a", True, 2.0, None, "a", 1, 2]}
    encoder = TableEncoder().fit(data)
    assert encoder.get_feature_names_out().tolist() == ["x=1", "x=2", "x=a", "x=(rare)", "x=(missing)"]
    assert encoder.transform({"x": ["1", 2, "a", "True", float("nan")]}).tolist() == np.eye(5).tolist()
