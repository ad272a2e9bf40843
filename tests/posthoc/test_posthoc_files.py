"""Tests of saving and loading: equal predictions, no pickle, and one-sentence errors for other files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from posthoc_cases import NAMES, fitted, overconfident
from safetensors import safe_open
from sklearn.exceptions import NotFittedError

from calibrant.base.files import read_arrays, read_content, write_container
from calibrant.posthoc import CalibratedModel, Temperature, Vector, load_calibrator, save_calibrator


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_round_trip_is_exact(name, n_classes, tmp_path):
    calibrator = fitted(name, "overconfident", n_classes)
    path = tmp_path / "map.calibrant"
    save_calibrator(calibrator, path)
    again = load_calibrator(path)
    assert type(again) is type(calibrator)
    assert again.get_params() == calibrator.get_params()
    logits = overconfident(100, n_classes, seed=7)[0]
    np.testing.assert_array_equal(again.predict_proba(logits), calibrator.predict_proba(logits))
    np.testing.assert_array_equal(again.classes_, calibrator.classes_)


def test_the_file_is_safetensors_with_a_json_header(tmp_path):
    path = tmp_path / "map.calibrant"
    save_calibrator(Vector(l2=0.5).fit(*overconfident(50, 3)), path)
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()["calibrant"])
        assert len(file.metadata()["sha256"]) == 64
    assert header["format"] == "calibrant"
    assert (header["holds"], header["class"]) == ("calibrator", "vector")
    assert header["params"] == {"from_probs": False, "l2": 0.5}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 99}, r"has version 99 .*Install calibrant .*, which wrote it"),
        ({"holds": "classifier"}, r"its kind is 'classifier'\. Read it with calibrant\.estimators\.load"),
        ({"class": "magic"}, "unknown to calibrant"),
        ({"params": {"no_such": 1}}, "damaged"),
        ({"state": {"array": "missing"}}, "damaged"),
    ],
)
def test_headers_of_other_files_are_refused_in_a_sentence(tmp_path, changes, words):
    path = tmp_path / "file"
    save_calibrator(Temperature().fit(*overconfident(50, 3)), path)
    raw = path.read_bytes()
    write_container(path, json.dumps(read_content(raw) | changes), read_arrays(raw))
    with pytest.raises(ValueError, match=words):
        load_calibrator(path)


def test_what_cannot_be_saved_says_why(tmp_path):
    with pytest.raises(NotFittedError):
        save_calibrator(Temperature(), tmp_path / "a")
    with pytest.raises(TypeError, match="calibrator_"):
        save_calibrator(CalibratedModel(None), tmp_path / "a")
    odd = Vector(l2=1.0).fit(*overconfident(50, 3)).set_params(l2=np.array([1.0]))
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        save_calibrator(odd, tmp_path / "a")
