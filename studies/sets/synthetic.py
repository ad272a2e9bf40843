"""Synthetic classification problems with a known posterior, to measure the true calibration error.

Both families are those of the first paper (Sanguin et al. 2024, Section 4). The details of its generators are not
published; the choices here reproduce its accuracies: see each function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax, softmax

BLOB_CENTRES = np.random.RandomState(133).uniform(-10, 10, (5, 2))
MAKE_BLOBS_CENTRES = np.random.RandomState(42).uniform(-10, 10, (5, 2))
"""The centres of ``sklearn.datasets.make_blobs(centers=5, random_state=42)``."""
Seed = int | np.random.SeedSequence
_CURVE_NODES = 2000
_ROWS_AT_ONCE = 250


@dataclass(frozen=True)
class Synthetic:
    """Samples, and the function that gives P(y | x) for any x."""

    inputs: np.ndarray
    labels: np.ndarray
    posterior: Callable[[np.ndarray], np.ndarray]
    feature_names: tuple[str, ...] = ("x1", "x2")

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.posterior(self.inputs[:1]).shape[1]

    def split(self, *sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Disjoint parts of the given sizes, in order (the samples are independent, so order does not matter)."""
        if sum(sizes) > len(self.labels):
            raise ValueError(f"sizes must sum to at most {len(self.labels)}, the number of samples; got {sum(sizes)}.")
        edges = np.cumsum((0, *sizes))
        return [(self.inputs[a:b], self.labels[a:b]) for a, b in itertools.pairwise(edges)]


def blobs(samples: int, std: float = 1.7, *, seed: Seed, centres: np.ndarray = BLOB_CENTRES) -> Synthetic:
    """Draw Gaussian clusters of one width around fixed centres, one class each, classes equally likely.

    ``p(c | x) ∝ exp(−‖x − μ_c‖² / 2σ²)``. With the default centres the Bayes accuracy is 0.939 at σ = 1.3 and 0.875 at
    1.7, the paper's level (its own seed is unknown).

    Parameters
    ----------
    samples : int
        Number of samples.
    std : float
        σ, the width of the clusters.
    seed : int
        Seed of the samples.
    centres : array of shape (C, 2)
        μ, one centre for each class.
    """
    _check(samples, std)
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, len(centres), samples)
    inputs = centres[labels] + std * generator.normal(size=(samples, 2))

    def posterior(x: np.ndarray) -> np.ndarray:
        distances = np.square(np.asarray(x, dtype=float)[:, None] - centres).sum(2)
        return softmax(-distances / (2 * std**2), axis=1)

    return Synthetic(inputs, labels, posterior)


def spirals(
    samples: int, std: float = 3.5, *, seed: Seed, slope: float = 2.0, offset: float = np.pi, turns: float = 1.0
) -> Synthetic:
    """Draw two interlocking spirals with Gaussian noise on each axis, one class each, classes equally likely.

    Angle ``t = 2π·turns·√u`` with u uniform, radius ``±(slope·t + offset)``. The posterior integrates each class's
    density along its curve. With the default form, the Bayes accuracy is 0.896 at σ = 2.5 and 0.822 at 3.5 (the paper's
    networks: 0.91 and 0.815).

    Parameters
    ----------
    samples : int
        Number of samples.
    std : float
        σ, the standard deviation of the noise.
    seed : int
        Seed of the samples.
    slope, offset : float
        The radius is ``±(slope·t + offset)``.
    turns : float
        Turns of each spiral.
    """
    _check(samples, std)

    def curve(progress: np.ndarray) -> np.ndarray:
        angle = 2 * np.pi * turns * progress
        radius = slope * angle + offset
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)

    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, samples)
    points = curve(np.sqrt(generator.random(samples))) * np.where(labels == 0, 1, -1)[:, None]
    inputs = points + std * generator.normal(size=(samples, 2))
    # Midpoint rule in the angle t, whose density is ∝ t, so that there is no singular slope at the centre.
    nodes = (np.arange(_CURVE_NODES) + 0.5) / _CURVE_NODES
    path, log_weights = curve(nodes), np.log(nodes)

    def posterior(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, dtype=float)
        pieces = [x[k : k + _ROWS_AT_ONCE] for k in range(0, len(x), _ROWS_AT_ONCE)]
        logs = [np.stack([_log_density(p, sign * path, log_weights, std) for sign in (1, -1)], 1) for p in pieces]
        return np.exp(log_softmax(np.concatenate(logs), axis=1))

    return Synthetic(inputs, labels, posterior)


def _log_density(x: np.ndarray, curve: np.ndarray, log_weights: np.ndarray, std: float) -> np.ndarray:
    """The logarithm of a class's density, up to a term that both classes share: ``log Σ w·exp((x·c − ‖c‖²/2)/σ²)``."""
    terms = x @ (curve.T / std**2)
    terms += log_weights - np.square(curve).sum(1) / (2 * std**2)
    top = terms.max(1)
    terms -= top[:, None]
    return top + np.log(np.exp(terms, out=terms).sum(1))


def _check(samples: int, std: float) -> None:
    if samples < 1:
        raise ValueError(f"samples must be at least 1; got {samples}.")
    if not std > 0:
        raise ValueError(f"std must be positive; got {std}.")
