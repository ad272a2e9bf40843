"""Tests of temperature scaling and its extensions, against exact cases and brute force."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from posthoc_cases import log_loss, overconfident
from scipy.special import log_softmax, softmax
from sklearn.exceptions import ConvergenceWarning

from calibrant.posthoc import AttendedTemperature, EnsembleTemperature, Temperature
from calibrant.posthoc._base import log_complement, log_odds
from calibrant.posthoc.temperature import fit_temperature


@pytest.mark.parametrize("temperature", [1e-3, 0.05, 1.0, 3.0, 100.0, 1e5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_true_temperature_is_found_at_every_scale(temperature, dtype):
    logits, labels = overconfident(4000, 5, temperature)
    found = Temperature().fit(logits.astype(dtype), labels).temperature_
    assert found == pytest.approx(temperature, rel=0.05)


def test_it_is_the_minimum_and_follows_the_logits_scale():
    logits, labels = overconfident(500, 4)
    found = Temperature().fit(logits, labels).temperature_
    grid = found * np.exp(np.linspace(-0.01, 0.01, 21))
    losses = [log_loss(softmax(logits / t, axis=1), labels) for t in grid]
    assert np.argmin(losses) == 10
    assert Temperature().fit(1e6 * logits, labels).temperature_ == pytest.approx(1e6 * found, rel=1e-9)


def test_two_classes_by_hand():
    # Nine of ten right at a gap of 2: σ(2 / T) = 0.9, T = 2 / log 9.
    logits = np.tile([0.0, 2.0], (10, 1))
    labels = np.array([1] * 9 + [0])
    assert Temperature().fit(logits, labels).temperature_ == pytest.approx(2 / np.log(9), rel=1e-9)


def test_no_optimum_is_said_and_not_hidden():
    with pytest.warns(ConvergenceWarning, match="classified correctly.*T stays at the low end"):
        sharp = Temperature().fit(np.eye(3), [0, 1, 2])
    assert 0 < sharp.temperature_ < 1e-3
    with pytest.warns(ConvergenceWarning, match="no information.*T stays at the high end"):
        flat = Temperature().fit(np.eye(3), [1, 2, 0])
    assert flat.temperature_ > 1e3
    assert Temperature().fit(np.zeros((5, 3)), [0, 1, 2, 0, 1]).temperature_ == 1.0


def test_log_odds_do_not_cancel():
    scores = log_softmax(np.array([[50.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), axis=1)
    np.testing.assert_allclose(log_complement(scores)[0, 0], np.log(2) - 50, rtol=1e-12)
    np.testing.assert_allclose(log_odds(scores)[1], np.log(0.5), rtol=1e-12)


def test_ensemble_weights_satisfy_the_kkt_conditions_and_help():
    logits, labels = overconfident(2000, 5)
    labels[:300] = np.random.default_rng(0).integers(0, 5, 300)  # noise that only the uniform part explains
    calibrator = EnsembleTemperature().fit(logits, labels)
    assert (calibrator.weights_ >= 0).all()
    assert calibrator.weights_.sum() == pytest.approx(1)
    probs = calibrator.predict_proba(logits)
    rows = np.arange(len(labels))
    parts = [softmax(logits / calibrator.temperature_, axis=1), softmax(logits, axis=1), np.full_like(probs, 0.2)]
    for part in parts:
        assert (part[rows, labels] / probs[rows, labels]).mean() <= 1 + 1e-6
    assert log_loss(probs, labels) < log_loss(Temperature().fit(logits, labels).predict_proba(logits), labels)


def test_the_attended_loss_is_the_one_of_the_docstring():
    logits, labels = overconfident(300, 4)
    at_one = softmax(logits, axis=1)

    def loss(temperature):
        total = 0.0
        s = softmax(logits / temperature, axis=1)
        for i, y in enumerate(labels):
            total -= np.log(s[i, y])
            for k in range(4):
                if k != y and at_one[i, k] > 0.05:
                    total -= np.log(s[i, k] ** 2 / (1 - s[i, k]))
        return total

    found = AttendedTemperature(threshold=0.05).fit(logits, labels).temperature_
    grid = found * np.exp(np.linspace(-0.05, 0.05, 11))
    assert np.argmin([loss(t) for t in grid]) == 5


def test_attention_resists_wrong_labels():
    logits, labels = overconfident(4000, 10, 2.0, seed=4)
    logits = logits * 2  # a confident network, truth at T = 4
    wrong = np.random.default_rng(0).random(len(labels)) < 0.2
    noisy = np.where(wrong, np.random.default_rng(1).integers(0, 10, len(labels)), labels)
    plain = [Temperature().fit(logits, y).temperature_ for y in (labels, noisy)]
    attended = [AttendedTemperature().fit(logits, y).temperature_ for y in (labels, noisy)]
    assert abs(np.log(attended[1] / attended[0])) < abs(np.log(plain[1] / plain[0]))


def test_attended_temperature_keeps_the_probabilities_of_a_hundred_classes():
    rng = np.random.default_rng(5)
    truth = rng.normal(size=(1600, 100)) * 2.5
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    logits = 1.5 * truth
    attended = AttendedTemperature().fit(logits[:800], labels[:800])
    new, y = logits[800:], labels[800:]
    assert log_loss(attended.predict_proba(new), y) < log_loss(softmax(new, axis=1), y)
    assert attended.temperature_ == pytest.approx(1.5, rel=0.3)
    # The cause: a low threshold borrows so many classes that they outvote the labels.
    assert AttendedTemperature(threshold=0.001).fit(logits, labels).temperature_ > 1.3 * attended.temperature_


def test_an_attended_temperature_at_an_end_is_said():
    for threshold in (0, 1, 1.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            AttendedTemperature(threshold=threshold).fit(np.eye(2), [0, 1])
    for labels, end, log_ratio in (([0, 1, 2], "low", -6), ([1, 2, 0], "high", 7)):
        with pytest.warns(ConvergenceWarning, match=f"T stays at the {end} end"):
            found = AttendedTemperature(threshold=0.9).fit(np.eye(3), labels).temperature_
        assert found == pytest.approx(2 / 3 * np.exp(log_ratio))  # 2/3 is the mean gap
    assert AttendedTemperature().fit(np.zeros((5, 3)), [0, 1, 2, 0, 1]).temperature_ == 1.0


def test_weights_act_as_counts_to_the_last_digit():
    logits, labels = overconfident(50, 3)
    scores = log_softmax(logits, axis=1)
    weights = np.arange(1, 51)
    one = fit_temperature(scores, labels, weights.astype(float))
    other = fit_temperature(scores.repeat(weights, axis=0), labels.repeat(weights), np.ones(weights.sum()))
    assert one == pytest.approx(other, rel=1e-10)


def test_a_clean_fit_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cls in (Temperature, EnsembleTemperature, AttendedTemperature):
            cls().fit(*overconfident(500, 4))
