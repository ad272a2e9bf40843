"""Tests of calibrators for a confidence alone, where the other classes are unknown."""

from __future__ import annotations

import numpy as np
import pytest
from posthoc_cases import NAMES

from calibrant.metrics import ece
from calibrant.posthoc import Auto, confidence_calibrator, load_calibrator, save_calibrator

REFUSED = ("temperature", "ensemble-temperature", "attended-temperature", "order-preserving-isotonic")


def overconfident_pairs(n=2000):
    """Confidences from 0.25 to 0.99 that are right less often, also below 1/2; the share is exact in every range."""
    confidence = np.linspace(0.25, 0.99, n)
    expected = np.cumsum(0.15 + 0.9 * (confidence - 0.25))
    return confidence, np.diff(np.floor(expected), prepend=0).astype(bool)


@pytest.mark.parametrize("name", [*(name for name in NAMES if name not in REFUSED), "auto"])
def test_a_confidence_is_calibrated_without_a_floor(name, tmp_path):
    confidence, correct = overconfident_pairs()
    params = {"candidates": ["platt", "isotonic-confidence"]} if name == "auto" else {}
    calibrator = confidence_calibrator(name, **params).fit(confidence, correct)
    after = calibrator.predict_proba(confidence)[:, 1]
    before_error, after_error = (ece(confidence=c, correct=correct) for c in (confidence, after))
    assert after_error < before_error / 2
    assert np.diff(after).min() >= -1e-12, "the map is monotone"
    fifth = len(confidence) // 5
    assert abs(after[:fifth].mean() - correct[:fifth].mean()) < 0.1
    assert after[:fifth].max() < 0.45
    save_calibrator(calibrator, tmp_path / "c")
    np.testing.assert_array_equal(load_calibrator(tmp_path / "c").predict_proba(confidence)[:, 1], after)


@pytest.mark.parametrize("name", REFUSED)
def test_calibrators_that_keep_the_side_of_one_half_are_refused(name):
    with pytest.raises(ValueError, match=f"^{name} cannot calibrate a confidence.*isotonic-confidence, platt"):
        confidence_calibrator(name)
    with pytest.raises(ValueError, match=f"^{name} cannot"):
        confidence_calibrator("auto", candidates=[name])


def test_auto_compares_the_others_without_a_second_stage():
    auto = confidence_calibrator("auto")
    assert isinstance(auto, Auto)
    assert not {*REFUSED, "isotonic-confidence"} & set(auto.candidates)
    with pytest.raises(ValueError, match="name must be one of 'auto'"):
        confidence_calibrator("magic")
