"""The section on the readings of the second paper says what was run, and what was not."""

from __future__ import annotations

import pytest

from docs.generate import readings
from studies.meta_reg.readings import READINGS


def record(method, error, ece, gamma=None):
    state = {"error": error, "nll": 0.2, "ece": ece, "floor": 0.004}
    curve = {"error": [0.5, error], **({"gamma_mean": [1.0, gamma]} if gamma else {})}
    return {"method": method, "epochs": 60, "selected": state, "last": state, "curve": curve}


@pytest.fixture
def made(monkeypatch):
    found = [
        record("flg-sece-code", 0.061, 0.02, 1.5),
        record("flg-sece-text", 0.61, 0.1, 72.0),
        record("flg-dece-code", 0.06, 0.01, 1.4),
        record("focal-code", 0.058, 0.03),
    ]
    monkeypatch.setattr(readings, "by_method", lambda: {r["method"]: r for r in found})


def test_every_reading_has_a_row(made):
    text = readings.table()
    assert all(f"`{name}`" in text for name in READINGS)
    assert text.count("not run") == len(READINGS) - 4
    assert "flg-sece, printed" in text


def test_sentences_name_the_nearest_and_the_diverged_reading(made):
    nearest, far, terms, *_ = readings.sentences()
    assert "`flg-sece-code` comes nearest" in nearest
    assert "`focal-code`" in nearest
    assert "ends at 1.5. It also has the lowest validation error" in nearest
    assert "`flg-sece-text` (61.0 %; mean γ up to 72)" in far
    assert "`flg-sece-code` does not have the lowest ECE" in terms


def test_a_reading_belongs_to_a_method_of_the_paper():
    assert readings.base_of("flg-sece-code-1e-4") == "flg-sece"
    assert readings.base_of("ce-held-out-sece") not in readings.PRINTED
