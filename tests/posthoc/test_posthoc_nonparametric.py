"""Tests of isotonic maps, bins and the neural calibrator, against exact cases and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from posthoc_cases import log_loss, overconfident
from sklearn.isotonic import IsotonicRegression

from calibrant.posthoc import (
    HistogramBinning,
    Isotonic,
    IsotonicConfidence,
    NeuralCalibrator,
    OrderPreservingIsotonic,
    Temperature,
)
from calibrant.posthoc.binning import equal_mass_edges
from calibrant.posthoc.isotonic import fit_isotonic


def binary(odds):
    return np.column_stack([np.zeros(len(odds)), odds])


def test_isotonic_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    x, weights = rng.integers(0, 30, 200) / 3.0, rng.uniform(0.5, 2, 200)
    y = (rng.random(200) < x / 10).astype(float)
    corners = fit_isotonic(x, y, weights)
    line = np.linspace(-1, 11, 500)
    reference = IsotonicRegression(out_of_bounds="clip").fit(x, y, weights).predict(line)
    np.testing.assert_allclose(np.interp(line, *corners), reference, atol=1e-12)


def test_isotonic_per_class_by_hand():
    # Pooled: (0 at -2), (1/2 at -1 and 1), (1 at 2).
    logits, labels = binary(np.array([-2.0, -1.0, 1.0, 2.0])), np.array([0, 1, 0, 1])
    plain = Isotonic(smoothing=False).fit(logits, labels).predict_proba(logits)[:, 1]
    np.testing.assert_allclose(plain, [0, 0.5, 0.5, 1])
    smooth = Isotonic().fit(logits, labels).predict_proba(logits)[:, 1]
    np.testing.assert_allclose(smooth, (4 * plain + 0.5) / 5)


def test_confidence_below_chance_shares_the_rest_in_proportion():
    logits = np.log([[0.6, 0.3, 0.1]] * 10)
    labels = np.array([0] + [1] * 9)
    calibrator = IsotonicConfidence(smoothing=False).fit(logits, labels)
    np.testing.assert_allclose(calibrator.predict_proba(logits[:1]), [[0.1, 0.9 * 0.75, 0.9 * 0.25]])
    assert calibrator.predict(logits[:1]) == [0]
    np.testing.assert_allclose(calibrator.confidence(logits[:1]), [0.1])


def test_order_preserving_isotonic_keeps_the_whole_ranking():
    logits, labels = overconfident(300, 6)
    calibrator = OrderPreservingIsotonic().fit(logits, labels)
    new = overconfident(500, 6, seed=9)[0]
    probs = calibrator.predict_proba(new)
    np.testing.assert_array_equal(probs.argsort(axis=1), new.argsort(axis=1))


def test_equal_mass_edges_by_hand():
    x = np.array([0.1, 0.2, 0.2, 0.4])
    np.testing.assert_allclose(equal_mass_edges(x, np.ones(4), 2), [0.3])
    np.testing.assert_allclose(equal_mass_edges(x, np.array([3.0, 1, 1, 1]), 2), [0.15])
    assert len(equal_mass_edges(np.full(5, 0.3), np.ones(5), 4)) == 0


def test_histogram_by_hand():
    q = np.array([0.05, 0.1, 0.6, 0.7])
    probs, labels = np.column_stack([1 - q, q]), np.array([0, 1, 1, 1])
    plain = HistogramBinning(bins=2, scheme="width", prior=0, from_probs=True).fit(probs, labels)
    np.testing.assert_allclose(plain.predict_proba(probs)[:, 1], [0.5, 0.5, 1, 1])
    # rate = (3 + 1) / (4 + 2); one prior sample.
    smooth = HistogramBinning(bins=2, scheme="width", from_probs=True).fit(probs, labels)
    np.testing.assert_allclose(smooth.predict_proba(probs)[:, 1], [(1 + 2 / 3) / 3] * 2 + [(2 + 2 / 3) / 3] * 2)
    edge = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(plain.predict_proba(edge)[:, 1], [0.5, 0.5, 1], err_msg="bins are (lo, hi]")


def test_the_neural_calibrator_starts_at_temperature_scaling_and_learns_more():
    logits, labels = overconfident(1500, 4)
    untrained = NeuralCalibrator(max_steps=0).fit(logits, labels)
    plain = Temperature().fit(logits, labels)
    np.testing.assert_allclose(untrained.predict_proba(logits), plain.predict_proba(logits), atol=1e-9)
    bent = np.where(logits > 0, logits, 3 * logits)  # a kink that no temperature straightens
    new, new_labels = overconfident(3000, 4, seed=8)
    new = np.where(new > 0, new, 3 * new)
    trained = NeuralCalibrator().fit(bent, labels)
    assert trained.steps_ > 0
    assert (trained.slopes_ > 0).all()
    before = log_loss(Temperature().fit(bent, labels).predict_proba(new), new_labels)
    assert log_loss(trained.predict_proba(new), new_labels) < before


@pytest.mark.parametrize(
    ("calibrator", "words"),
    [
        (HistogramBinning(bins=0), "whole number"),
        (HistogramBinning(bins=2.5), "whole number"),
        (HistogramBinning(scheme="log"), "mass"),
        (HistogramBinning(prior=-1), "0 or above"),
        (NeuralCalibrator(hidden=0), "at least 1"),
    ],
)
def test_wrong_parameters_are_refused(calibrator, words):
    with pytest.raises(ValueError, match=words):
        calibrator.fit(*overconfident(60, 3))
