"""Matplotlib without windows, and closed figures after each test."""

import matplotlib
import numpy as np
import pytest
from scipy.special import softmax

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    from matplotlib import pyplot as plt

    plt.close("all")


@pytest.fixture
def predictions():
    """Over-confident predictions for 3 classes: (probs, labels)."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 1.5, (800, 3))
    posterior = softmax(logits, axis=1)
    labels = (posterior.cumsum(axis=1) > generator.random((800, 1))).argmax(axis=1)
    return softmax(2 * logits, axis=1), labels


@pytest.fixture
def pairs():
    """Calibrated (confidence, correct)."""
    generator = np.random.default_rng(1)
    confidence = generator.uniform(0.5, 1, 1500)
    return {"confidence": confidence, "correct": generator.random(1500) < confidence}
