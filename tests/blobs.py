"""Five Gaussian clusters in the plane, whose posterior is known, and labels of them that are wrong."""

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

CENTRES = np.random.RandomState(133).uniform(-10, 10, (5, 2))


class Blobs(NamedTuple):
    inputs: np.ndarray
    labels: np.ndarray
    posterior: partial


def blobs(samples, std=1.7, *, seed):
    """One class per cluster, classes equally likely. The best accuracy is 0.939 at std 1.3 and 0.875 at 1.7."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 5, samples)
    return Blobs(CENTRES[labels] + std * generator.normal(size=(samples, 2)), labels, partial(posterior, std))


def posterior(std, inputs):
    return softmax(-np.square(inputs[:, None] - CENTRES).sum(2) / (2 * std**2), axis=1)


def flip_labels(labels, rate, *, seed):
    """A copy with a share of the labels changed to another of the five classes, and the mask of these."""
    generator = np.random.default_rng(seed)
    flipped = generator.permutation(len(labels)) < round(rate * len(labels))
    return np.where(flipped, (labels + generator.integers(1, 5, len(labels))) % 5, labels), flipped
