"""Tests of saving and loading: equal predictions, no pickle, and one-sentence errors for other files."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from posthoc_cases import NAMES, fitted, overconfident
from safetensors import safe_open
from safetensors.numpy import save_file
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


def _with_header(path, **changes):
    save_calibrator(Temperature().fit(*overconfident(50, 3)), path)
    raw = path.read_bytes()
    write_container(path, json.dumps(read_content(raw) | changes), read_arrays(raw))


def test_foreign_files_are_refused_in_a_sentence(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match="There is no file"):
        load_calibrator(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_calibrator(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_calibrator(path)
    save_file({"weight": np.zeros(3)}, str(path))
    with pytest.raises(ValueError, match="does not name the format"):
        load_calibrator(path)
    save_file({"weight": np.zeros(3)}, str(path), metadata={"calibrant": "{"})
    with pytest.raises(ValueError, match="does not name the format"):
        load_calibrator(path)
    _with_header(path, version=99)
    with pytest.raises(ValueError, match=r"has version 99 .*Install a newer calibrant"):
        load_calibrator(path)
    _with_header(path, holds="classifier")
    with pytest.raises(ValueError, match=r"its kind is 'classifier'\. Read it with calibrant\.estimators\.load"):
        load_calibrator(path)
    _with_header(path, **{"class": "magic"})
    with pytest.raises(ValueError, match="unknown to calibrant"):
        load_calibrator(path)
    _with_header(path, params={"no_such": 1})
    with pytest.raises(ValueError, match="damaged"):
        load_calibrator(path)
    _with_header(path, state={"array": "missing"})
    with pytest.raises(ValueError, match="damaged"):
        load_calibrator(path)


def test_what_cannot_be_saved_says_why(tmp_path):
    with pytest.raises(NotFittedError):
        save_calibrator(Temperature(), tmp_path / "a")
    with pytest.raises(TypeError, match="calibrator_"):
        save_calibrator(CalibratedModel(None), tmp_path / "a")
    odd = Vector(l2=1.0).fit(*overconfident(50, 3)).set_params(l2=np.array([1.0]))
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        save_calibrator(odd, tmp_path / "a")
