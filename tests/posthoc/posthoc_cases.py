"""Shared data and calibrators of the tests of calibrant.posthoc."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning

from calibrant.posthoc import CALIBRATORS, Calibrator, make_calibrator

NAMES = tuple(CALIBRATORS)
# Parameters under which a fit does not depend on a random split of the samples.
WITHOUT_SPLIT = {"matrix": {"odir": 1.0}, "dirichlet": {"odir": 1.0}, "neural": {"max_steps": 0}}


def overconfident(n: int, n_classes: int, temperature: float = 3.0, seed: int = 0):
    """Logits whose true posterior is softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n, n_classes)) * 2
    cumulative = softmax(truth, axis=1).cumsum(axis=1)
    labels = (rng.random((n, 1)) > cumulative).sum(axis=1).clip(max=n_classes - 1)
    return temperature * truth, labels


def unrelated(n: int, n_classes: int):
    """Labels that mostly contradict the logits."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(n, n_classes)) * 3
    worst = logits.argmin(axis=1)
    return logits, np.where(rng.random(n) < 0.7, worst, rng.integers(0, n_classes, n))


def saturated(n: int, n_classes: int):
    """A network that is sure of everything, and mostly right."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, n_classes, n)
    logits = np.where(np.arange(n_classes) == labels[:, None], 60.0, 0.0) + rng.normal(size=(n, n_classes))
    flipped = rng.random(n) < 0.1
    return logits, np.where(flipped, (labels + 1) % n_classes, labels)


def few(n: int, n_classes: int):
    """A handful of samples with ties and with classes that never occur."""
    logits = np.zeros((4, n_classes))
    logits[1, 0], logits[2, 1], logits[3, 1] = 1.0, 2.0, 2.0
    return logits, np.array([0, 1, 1, 0])


SITUATIONS = {
    "overconfident": lambda n, c: overconfident(n, c),
    "unrelated": unrelated,
    "saturated": saturated,
    "few": few,
}


@cache
def fitted(name: str, situation: str, n_classes: int, n: int = 300) -> Calibrator:
    """A calibrator of the table fitted to a situation; fits without an optimum may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make_calibrator(name).fit(*SITUATIONS[situation](n, n_classes))


def log_loss(probs: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(probs[np.arange(len(labels)), labels]).mean())
