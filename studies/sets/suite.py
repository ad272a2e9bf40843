"""The five sets of the first paper (Sanguin et al. 2024, Table 1) by name, with their splits by seed.

A seed gives fresh samples, not another split of the same ones. Training, validation and test parts come from one draw;
:func:`fresh` draws from another stream of random numbers, which no :func:`load_problem` of any seed or set uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from studies.sets.bac import bac
from studies.sets.synthetic import MAKE_BLOBS_CENTRES, Seed, Synthetic, blobs, spirals

SETS: dict[str, Callable[..., Synthetic]] = {
    "blobs-1.3": partial(blobs, std=1.3),
    "blobs-1.7": partial(blobs, std=1.7),
    "spirals-2.5": partial(spirals, std=2.5),
    "spirals-3.5": partial(spirals, std=3.5),
    "bac": bac,
}
_fitted_spirals = partial(spirals, slope=3.0, offset=0.0, turns=780 / 360)
FITTED_SETS: dict[str, Callable[..., Synthetic]] = {
    "fitted-blobs-1.3": partial(blobs, std=1.3, centres=MAKE_BLOBS_CENTRES),
    "fitted-blobs-1.7": partial(blobs, std=1.7, centres=MAKE_BLOBS_CENTRES),
    "fitted-spirals-2.5": partial(_fitted_spirals, std=2.5),
    "fitted-spirals-3.5": partial(_fitted_spirals, std=3.5),
}
"""Further sets, whose generators give the cells that the paper prints for standard training (docs/first-paper.md).

Commands use them only where they are named: all stored results without their names are of ``SETS``.
"""
NOISE_FREE = frozenset({"bac"})

_SPLITS, _FRESH = 0, 1
Part = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class SyntheticProblem:
    """Raw inputs and labels of the three parts, and P(y | x) for any x.

    If ``noise_free`` is true, the labels are a function of the inputs. The posterior is then 0 or 1 and its calibration
    error zero on any sample, so a noise floor must come from the model's probabilities instead.
    """

    name: str
    seed: int
    train: Part
    val: Part
    test: Part
    posterior: Callable[[np.ndarray], np.ndarray]
    n_classes: int
    feature_names: tuple[str, ...]
    noise_free: bool


def load_problem(name: str, seed: int, *, sizes: tuple[int, int, int] = (700, 300, 1000)) -> SyntheticProblem:
    """Draw the set of this name, with new samples for each seed.

    Parameters
    ----------
    name : str
        One of ``SETS``: "blobs-1.3", "blobs-1.7", "spirals-2.5", "spirals-3.5" or "bac"; or of ``FITTED_SETS``.
    seed : int
        Seed of the samples.
    sizes : tuple of int
        Number of training, validation and test samples; by default the paper's.

    Examples
    --------
    >>> from studies.sets import load_problem
    >>> problem = load_problem("spirals-2.5", seed=0)
    >>> X, y = problem.train
    >>> X.shape, problem.n_classes, problem.posterior(X).shape
    ((700, 2), 2, (700, 2))
    """
    data = _draw(name, sum(sizes), seed, _SPLITS)
    train, val, test = data.split(*sizes)
    return SyntheticProblem(
        name, seed, train, val, test, data.posterior, data.n_classes, data.feature_names, noise_free=name in NOISE_FREE
    )


def fresh(name: str, samples: int, seed: int) -> Synthetic:
    """Draw any number of further samples of a set, independent of all samples of :func:`load_problem`."""
    return _draw(name, samples, seed, _FRESH)


def flip_labels(labels: np.ndarray, rate: float, n_classes: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a copy with ``round(rate · n)`` labels changed to a random other class, and the mask of the changed ones.

    The number is exact, not binomial, so that all seeds have the same share of wrong labels.
    """
    labels = np.asarray(labels)
    if not 0 <= rate <= 1:
        raise ValueError(f"rate, the share of labels to change, must be between 0 and 1; got {rate}.")
    if n_classes < 2:
        raise ValueError(f"n_classes must be at least 2, to change a label to another class; got {n_classes}.")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or np.any((labels < 0) | (labels >= n_classes)):
        raise ValueError(
            f"labels must be one row of whole numbers from 0 to {n_classes - 1}; got {labels.dtype} of shape "
            f"{labels.shape}, first {labels.ravel()[:3].tolist()}."
        )
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(labels))[: round(rate * len(labels))]
    flipped = np.zeros(len(labels), dtype=bool)
    flipped[chosen] = True
    changed = labels.copy()
    changed[chosen] = (labels[chosen] + generator.integers(1, n_classes, len(chosen))) % n_classes
    return changed, flipped


def _draw(name: str, samples: int, seed: int, stream: int) -> Synthetic:
    makers = SETS | FITTED_SETS
    if name not in makers:
        raise ValueError(f"name must be one of {', '.join(makers)}; got {name!r}.")
    # The name is part of the key, so that blobs of two widths with one seed are different draws.
    key: Seed = np.random.SeedSequence(seed, spawn_key=(*name.encode(), stream))
    return makers[name](samples, seed=key)
