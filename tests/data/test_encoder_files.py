"""Tests of stored encoders: JSON round trips, files, other texts, and files of the first version."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.base.files import read_content
from calibrant.data import TableEncoder

TRAIN = {"age": [20.0, 40.0, np.nan, 60.0, 40.0], "sex": ["f", "m", "m", "f", None], "same": [1, 1, 1, 1, 1]}


NUMBERS = st.lists(st.none() | st.floats(-1e100, 1e100), min_size=1, max_size=30)


WORDS = st.lists(st.none() | st.sampled_from(["a", "b", "ä", " c", "1", "2.0", ""]), min_size=1, max_size=30)


@given(NUMBERS, WORDS, st.permutations(["num", "word", "steps"]))
def test_the_encoder_survives_json_and_any_order_of_columns(numbers, words, order):
    rows = max(len(numbers), len(words), 2)
    data = {
        "num": [numbers[k % len(numbers)] for k in range(rows)],
        "word": [words[k % len(words)] for k in range(rows)],
        "steps": list(range(rows)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        encoder = TableEncoder().fit(data)
    encoded = encoder.transform(data)
    assert encoded.shape == (rows, len(encoder.get_feature_names_out()))
    assert np.all(np.isfinite(encoded))
    steps = encoded[:, encoder.get_feature_names_out().tolist().index("steps")]
    assert (steps.mean(), steps.std()) == pytest.approx((0, 1), abs=1e-5)
    again = TableEncoder.from_json(encoder.to_json())
    assert np.array_equal(again.transform({name: data[name] for name in order}), encoded)
    one_by_one = [again.transform({name: column[k : k + 1] for name, column in data.items()}) for k in range(rows)]
    assert np.array_equal(np.concatenate(one_by_one), encoded)


def test_files_hold_the_json_of_an_encoder(tmp_path):
    encoder = TableEncoder(rare=0.01).fit(TRAIN)
    encoder.save(tmp_path / "encoder.calibrant")
    content = read_content((tmp_path / "encoder.calibrant").read_bytes())["encoder"]
    assert content == json.loads(encoder.to_json())
    assert (content["format"], content["version"]) == ("calibrant.encoder", 3)
    again = TableEncoder.load(tmp_path / "encoder.calibrant")
    assert (again.rare, again.dropped_) == (0.01, encoder.dropped_)
    assert again.get_feature_names_out().tolist() == encoder.get_feature_names_out().tolist()
    assert again.to_json() == encoder.to_json()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other", "version": 1}', "null"])
def test_other_texts_are_not_encoders(text):
    with pytest.raises(ValueError, match="not an encoder"):
        TableEncoder.from_json(text)


def test_a_file_that_is_no_encoder_is_named(tmp_path):
    (tmp_path / "e.json").write_text("{}")
    with pytest.raises(ValueError, match=r"e\.json is not an encoder"):
        TableEncoder.load(tmp_path / "e.json")
    (tmp_path / "e.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"e\.json is not an encoder: it is not a safetensors file"):
        TableEncoder.load(tmp_path / "e.json")
