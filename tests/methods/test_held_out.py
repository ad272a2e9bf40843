"""Tests of the last step of cross-fitting: it recovers the truth, and stays cautious with little data."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import softmax

from calibrant.methods.crossfit import crossfit as held_out
from calibrant.methods.crossfit.crossfit import fit_last_step
from calibrant.metrics import ece, nll
from calibrant.pool.pool import least_lapse


def sample(n: int, *, temperature: float = 1.0, bias: np.ndarray | float = 0.0, lapse: float = 0.0, seed: int = 0):
    """Logits, and labels drawn from ``q`` of them."""
    generator = np.random.default_rng(seed)
    logits = 3 * generator.normal(size=(n, 4))
    probs = (1 - lapse) * softmax(logits / temperature + bias, axis=1) + lapse / 4
    return logits, (probs.cumsum(1) > generator.random((n, 1))).argmax(1)


def test_what_made_the_labels_is_found():
    bias = np.array([0.3, -0.3, 0.1, -0.1])
    found = fit_last_step(*sample(50_000, temperature=2.0, bias=bias, lapse=0.1))
    assert found.temperature == pytest.approx(2, rel=0.05)
    assert found.bias == pytest.approx(bias, abs=0.05)
    assert found.lapse == pytest.approx(0.1, abs=0.01)


def test_no_lapse_is_seen_where_there_is_none():
    assert fit_last_step(*sample(50_000)).lapse < 0.002


def test_a_ceiling_of_confidence_needs_the_lapse():
    """A temperature can only trade the clear samples' over-confidence for the others' under-confidence."""
    logits, labels = sample(20_000, lapse=0.2)
    found = fit_last_step(logits, labels)
    without = fit_last_step(logits, labels, lapse_spread=1e-6)
    fresh, outcomes = sample(20_000, lapse=0.2, seed=1)
    values = []
    for step in (found, without):
        probs = (1 - step.lapse) * softmax(fresh / step.temperature + step.bias, axis=1) + step.lapse / 4
        values.append((ece(probs, outcomes), nll(probs, outcomes)))
    assert values[0][0] < values[1][0] / 2
    assert values[0][1] < values[1][1]


def test_the_gradient_is_that_of_the_cost(monkeypatch):
    seen = {}

    def keep(cost, start, **options):
        seen.update(cost=cost, start=start)
        return original(cost, start, **options)

    original = held_out.minimize
    monkeypatch.setattr(held_out, "minimize", keep)
    fit_last_step(*sample(200, lapse=0.1), np.linspace(0.5, 2, 200))
    at = seen["start"] + np.linspace(-0.7, 0.9, 6)
    numeric = approx_fprime(at, lambda v: seen["cost"](v)[0], 1e-7)
    assert seen["cost"](at)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-3)


def test_weights_of_the_samples_count_and_their_scale_does_not():
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(200, 3)), generator.integers(0, 3, 200)
    weights = generator.integers(1, 4, 200)
    expected = fit_last_step(logits, labels, weights.astype(float))
    scaled = fit_last_step(logits, labels, 7.0 * weights)
    assert scaled.temperature == pytest.approx(expected.temperature, rel=1e-6)
    assert scaled.bias == pytest.approx(expected.bias, abs=1e-6)
    assert scaled.lapse == pytest.approx(expected.lapse, rel=1e-4)
    assert abs(expected.temperature - fit_last_step(logits, labels).temperature) > 1e-3


def test_little_data_is_not_believed_too_much():
    logits = 4 * np.eye(3)[np.arange(30) % 3]
    found = fit_last_step(logits, np.arange(30) % 3)
    assert 0.3 < found.temperature < 1
    assert found.bias == pytest.approx(np.zeros(3), abs=1e-3)
    assert found.lapse == pytest.approx(least_lapse(30, 3))
    # After 30 right answers of 30, the next one is right with probability 31/32.
    assert 1 - found.lapse * 2 / 3 == pytest.approx(31 / 32)
