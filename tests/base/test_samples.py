"""Tests of stored files: they load with the same predictions, and a changed byte is an error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import calibrant
from calibrant import estimators, posthoc
from calibrant.base.files import VERSION
from calibrant.data import TableEncoder

HERE = Path(__file__).parent
SAMPLES = sorted(HERE.glob("*.calibrant"))
CLASSIFIERS = ("bo4sc", "self", "frame", "text")


def kind_of(path):
    return path.stem.rpartition("-")[2]


def load(path):
    kind = kind_of(path)
    if kind == "encoder":
        return TableEncoder.load(path)
    if kind == "network":
        return calibrant.Trained.load(path, nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)))
    return estimators.load_classifier(path) if kind in CLASSIFIERS else posthoc.load_calibrator(path)


def answers(path, loaded=None):
    """The predictions of a loaded object, and those stored when it was saved."""
    loaded, kind = loaded or load(path), kind_of(path)
    told = json.loads((HERE / f"{path.stem.rpartition('-')[0]}.json").read_text())
    table = told.get("text" if kind == "text" else "frame", {}).get("table")
    frame = pd.DataFrame(table["data"], columns=table["columns"]) if table else None
    if kind == "encoder":
        return loaded.transform(frame), told[kind]["numbers"]
    if kind == "network":
        return loaded.probs(torch.tensor(told[kind]["rows"])), told[kind]["probs"]
    if kind in CLASSIFIERS:
        assert loaded.classes_.tolist() == told[kind]["classes"]
    rows = frame if kind in ("frame", "text") else told["rows"] if kind in CLASSIFIERS else told["scores"]
    return loaded.predict_proba(rows), told[kind]["probs"]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_stored_file_answers_as_it_did(path):
    found, expected = answers(path)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_there_are_samples_of_this_version():
    assert {int(path.stem.split("-")[1]) for path in SAMPLES} == {VERSION}


def attempt(path):
    """What a file holds, or the sentence of the error."""
    try:
        return load(path), ""
    except ValueError as error:
        return None, str(error)


@pytest.mark.parametrize("kind", ["self", "bo4sc", "auto", "temperature", "encoder", "network", "text"])
def test_a_changed_byte_is_noticed(kind, tmp_path):
    """In the length, the header, the JSON and the arrays; white space of the header may change without harm."""
    sample = HERE / f"version-{VERSION}-{kind}.calibrant"
    raw = sample.read_bytes()
    random = np.random.default_rng(0)
    begin = 8 + int.from_bytes(raw[:8], "little")
    places = [*range(8), *random.integers(8, begin, 60), *random.integers(min(begin, len(raw) - 1), len(raw), 60)]
    path = tmp_path / sample.name
    unnoticed = 0
    for place in places:
        changed = bytearray(raw)
        changed[place] ^= int(random.integers(1, 256))
        path.write_bytes(changed)
        loaded, error = attempt(path)
        if loaded is None:
            assert str(path) in error
            assert "\n" not in error
            continue
        unnoticed += 1
        assert json.loads(changed[8:begin]) == json.loads(raw[8:begin])
        np.testing.assert_array_equal(answers(sample, loaded)[0], answers(sample)[0])
    assert unnoticed < 10


@pytest.mark.parametrize("kind", ["self", "auto", "encoder"])
def test_a_file_that_was_cut_off_is_noticed(kind, tmp_path):
    sample = HERE / f"version-{VERSION}-{kind}.calibrant"
    raw = sample.read_bytes()
    path = tmp_path / sample.name
    for length in {0, 1, 7, 8, 9, len(raw) - 1, *np.random.default_rng(0).integers(10, len(raw), 20).tolist()}:
        path.write_bytes(raw[:length])
        with pytest.raises(ValueError, match="cut off"):
            load(path)


def test_a_missing_checksum_is_noticed(tmp_path):
    sample = HERE / f"version-{VERSION}-temperature.calibrant"
    path = tmp_path / sample.name
    for former, new in ((b"sha256", b"sha25x"), (b'\\"version\\": %d' % VERSION, b'\\"version\\": 1')):
        raw = sample.read_bytes()
        assert former in raw
        path.write_bytes(raw.replace(former, new))
        with pytest.raises(ValueError, match=r"damaged|version 1 of the format"):
            load(path)


def test_a_kind_that_belongs_elsewhere_says_where():
    with pytest.raises(ValueError, match=r"its kind is 'encoder'\. Read it with calibrant\.data\.TableEncoder\.load"):
        posthoc.load_calibrator(HERE / f"version-{VERSION}-encoder.calibrant")
    with pytest.raises(ValueError, match=r"is not an encoder: its kind is 'classifier'"):
        TableEncoder.load(HERE / f"version-{VERSION}-self.calibrant")
