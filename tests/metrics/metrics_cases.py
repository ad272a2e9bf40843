"""Shared samples and tables of the metric tests."""

import os
from pathlib import Path

import numpy as np
import pytest

from calibrant import metrics

# every metric that takes (probs, labels), and those that also take (confidence, correct)
MATRIX_METRICS = [
    metrics.ece,
    metrics.mce,
    metrics.ace,
    metrics.classwise_ece,
    metrics.smooth_ece,
    metrics.sece,
    metrics.kde_ece,
    metrics.mmce,
    metrics.nll,
    metrics.brier,
    metrics.accuracy,
    metrics.confidence_gap,
    metrics.overconfidence,
    metrics.underconfidence,
]
PAIR_METRICS = [metric for metric in MATRIX_METRICS if metric is not metrics.classwise_ece]


def name_of(metric):
    return metric.__name__


def random_probs(n=600, classes=4, seed=0, sharpness=0.6):
    """Probabilities strictly inside (0, 1) with labels from a flatter model: over-confident predictions."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes)) / sharpness
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    flat = np.exp(0.6 * logits) / np.exp(0.6 * logits).sum(axis=1, keepdims=True)
    labels = (rng.random((n, 1)) > flat.cumsum(axis=1)).sum(axis=1).clip(max=classes - 1)
    return probs, labels


def random_pairs(n=600, seed=0):
    """Confidences in [0.05, 0.95] whose frequency of being right is their square."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.05, 0.95, n)
    return confidence, rng.random(n) < confidence**2


def golden(name):
    """A file of stored predictions, where the data folder is present."""
    folder = os.environ.get("CALIBRANT_DATA") or Path(__file__).parents[3] / "shared" / "data"
    path = Path(folder) / "golden" / name
    if not path.exists():
        pytest.skip(f"{name} is not there; set CALIBRANT_DATA to the folder that holds golden/{name}")
    return np.load(path)
