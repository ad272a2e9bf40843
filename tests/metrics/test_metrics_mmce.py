"""Tests of MMCE against its double sum and against netcal."""

import numpy as np
import pytest
import torch
from metrics_cases import random_pairs, random_probs

from calibrant.metrics import mmce


def double_sum(confidence, correct, width, weight=None):
    weight = np.ones_like(confidence) if weight is None else weight
    gap = (correct - confidence) * weight / weight.sum()
    kernel = np.exp(-np.abs(confidence[:, None] - confidence[None, :]) / width)
    return np.sqrt(gap @ kernel @ gap)


@pytest.mark.parametrize("width", [0.4, 0.05, 0.002, 10.0])
def test_equals_the_double_sum(width):
    confidence, correct = random_pairs(400)
    found = mmce(confidence=confidence, correct=correct, width=width)
    assert found == pytest.approx(double_sum(confidence, correct, width), rel=1e-10)


def test_weights_and_ties():
    rng = np.random.default_rng(0)
    confidence = rng.choice([0.0, 0.5, 0.8, 1.0], 200)
    correct, weight = rng.random(200) < 0.6, rng.random(200)
    found = mmce(confidence=confidence, correct=correct, sample_weight=weight)
    assert found == pytest.approx(double_sum(confidence, correct, 0.4, weight), rel=1e-10)


def test_a_saturated_model_that_is_always_right_scores_zero():
    assert mmce(confidence=np.ones(5), correct=np.ones(5, dtype=bool)) == 0.0


def test_netcal_agrees():
    """On probabilities: netcal reads one column as the probability of class 1 and its kernel has width 0.4."""
    module = pytest.importorskip("netcal.metrics")
    probs, labels = random_probs(300)
    assert mmce(probs, labels) == pytest.approx(float(module.MMCE().measure(probs, labels)), rel=1e-6)


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan"), 1e-4])
def test_impossible_widths_are_refused(width):
    with pytest.raises(ValueError, match="width must be"):
        mmce(confidence=torch.tensor([0.5]), correct=torch.tensor([True]), width=width)
