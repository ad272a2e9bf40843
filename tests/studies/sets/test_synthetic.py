"""Tests of the synthetic problems: the posterior is exact, and the accuracy is that of the paper."""

from functools import partial

import numpy as np
import pytest

from calibrant.metrics import ece, true_ece
from studies.sets import blobs, spirals

WIDE = partial(spirals, slope=3, offset=0, turns=13 / 6)
CASES = [
    (blobs, 1.3, 0.939),
    (blobs, 1.7, 0.875),
    (spirals, 2.5, 0.896),
    (spirals, 3.5, 0.823),
    (WIDE, 2.5, 0.952),
    (WIDE, 3.5, 0.858),
]


@pytest.mark.parametrize(("make", "std", "accuracy"), CASES)
def test_bayes_accuracy_is_the_stated_one(make, std, accuracy):
    data = make(20_000, std, seed=0)
    posterior = data.posterior(data.inputs)
    assert posterior.max(1).mean() == pytest.approx(accuracy, abs=0.005)
    assert (posterior.argmax(1) == data.labels).mean() == pytest.approx(accuracy, abs=0.008)


@pytest.mark.parametrize(("make", "std", "accuracy"), CASES)
def test_the_posterior_is_calibrated(make, std, accuracy):
    """Its ECE falls to the sampling floor, and against itself it is exactly zero."""
    data = make(40_000, std, seed=1)
    posterior = data.posterior(data.inputs)
    assert posterior.sum(1) == pytest.approx(1.0)
    assert ece(posterior, data.labels) < 0.008
    assert true_ece(posterior, posterior) < 1e-12


def test_spiral_posterior_against_direct_integration():
    data = spirals(5, 2.5, seed=3)
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    angle = 2 * np.pi * np.sqrt(u)
    curve = (2 * angle + np.pi)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    density = [
        [np.exp(-np.square(x - sign * curve).sum(1) / (2 * 2.5**2)).mean() for sign in (1, -1)] for x in data.inputs
    ]
    expected = np.array(density) / np.sum(density, axis=1, keepdims=True)
    assert data.posterior(data.inputs) == pytest.approx(expected, abs=1e-6)


def test_splits_are_disjoint_and_seeds_differ():
    data = blobs(2000, seed=0)
    train, val, test = data.split(700, 300, 1000)
    rows = np.concatenate([train[0], val[0], test[0]])
    assert len(np.unique(rows, axis=0)) == 2000
    assert not np.array_equal(data.inputs, blobs(2000, seed=1).inputs)
    assert np.array_equal(data.inputs, blobs(2000, seed=0).inputs)
    with pytest.raises(ValueError, match="got 2001"):
        data.split(2001)


@pytest.mark.parametrize("bad", [{"samples": 0}, {"samples": 5, "std": 0.0}])
def test_impossible_sizes_are_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        spirals(**bad, seed=0)


def test_true_ece_by_hand():
    """Confidence 0.8 that is right with probability 0.6, and 0.6 that is right with 0.9, each in its own bin."""
    probs = np.array([[0.8, 0.2], [0.4, 0.6]])
    posterior = np.array([[0.6, 0.4], [0.1, 0.9]])
    assert true_ece(probs, posterior, bins=10) == pytest.approx((0.2 + 0.3) / 2)
    with pytest.raises(ValueError, match="same shape"):
        true_ece(probs, posterior[:1])


def test_true_ece_of_a_class_other_than_the_largest():
    """Pairs give the same value as the matrix, also for a confidence below one half."""
    probs, posterior = np.random.default_rng(0).dirichlet(np.ones(3), (2, 400))
    right = posterior[np.arange(400), probs.argmax(1)]
    assert true_ece(confidence=probs.max(1), right=right) == pytest.approx(true_ece(probs, posterior), abs=1e-12)
    assert true_ece(confidence=[0.1, 0.1], right=[0.2, 0.1]) == pytest.approx(0.05)
    for given in ({}, {"probs": probs}, {"confidence": [0.5]}, {"probs": probs, "posterior": posterior, "right": [1]}):
        with pytest.raises(ValueError, match="posterior"):
            true_ece(**given)
    with pytest.raises(ValueError, match="same shape"):
        true_ece(confidence=[0.5], right=[0.5, 0.5])
