"""Which samples go where: index splits and folds, disjoint by construction, stratified if wanted.

Both deal each sample out at most once, so that no sample can be in two parts. ``stratify`` keeps the classes' shares
the same in every part, as far as whole numbers allow, and takes classes of any size, those of one sample too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def train_val_test(
    samples: int,
    sizes: Sequence[float] = (0.6, 0.2, 0.2),
    *,
    seed: int,
    stratify: Any = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three disjoint index arrays, in random order; see :func:`split_indices`."""
    if len(sizes) != 3:
        raise ValueError(f"train_val_test needs three sizes; got {len(sizes)}. split_indices takes any number.")
    train, val, test = split_indices(samples, sizes, seed=seed, stratify=stratify)
    return train, val, test


def split_indices(samples: int, sizes: Sequence[float], *, seed: int, stratify: Any = None) -> tuple[np.ndarray, ...]:
    """Disjoint index arrays, one per size, each in random order.

    Parameters
    ----------
    samples : how many samples there are
    sizes : whole numbers of samples (700, 300, 1000), or fractions (0.6, 0.2, 0.2); what they leave over is in no part
    seed : the same seed gives the same split
    stratify : one label per sample. Each part then holds every class in proportion, within one sample for the first
        part. A class too rare for that goes to the first part first: a classifier cannot learn a class that it never
        sees.
    """
    counts = _part_sizes(samples, sizes)
    generator = np.random.default_rng(seed)
    if stratify is None:
        return tuple(np.split(generator.permutation(samples), np.cumsum(counts))[:-1])
    groups = _shuffled_groups(samples, stratify, generator)
    left = np.array([len(g) for g in groups])
    parts, taken = [], np.zeros(len(groups), dtype=int)
    for k, size in enumerate(counts):
        share = _proportional(left, size, generator)
        if k == 0:
            share = _one_of_each(share)
        chosen = [g[a : a + b] for g, a, b in zip(groups, taken, share, strict=True)]
        parts.append(generator.permutation(np.concatenate(chosen)))
        taken, left = taken + share, left - share
    return tuple(parts)


def folds(samples: int, number: int, *, seed: int, stratify: Any = None) -> np.ndarray:
    """The fold of each sample, 0 to ``number − 1``: sizes differ by at most one, and so do each class's counts."""
    if not 2 <= number <= samples:
        raise ValueError(f"The number of folds must be between 2 and the number of samples ({samples}); got {number}.")
    generator = np.random.default_rng(seed)
    # Samples of one class in a row, dealt out like cards: any stretch of the row is spread evenly.
    order = np.concatenate(_shuffled_groups(samples, np.zeros(samples) if stratify is None else stratify, generator))
    fold = np.empty(samples, dtype=int)
    fold[order] = generator.permutation(number)[np.arange(samples) % number]
    return fold


def _part_sizes(samples: int, sizes: Sequence[float]) -> np.ndarray:
    """Whole part sizes; fractions are rounded so that their sum is that of the whole."""
    if samples < 1:
        raise ValueError(f"There must be at least one sample to split; got {samples}.")
    values = np.asarray(sizes)
    if values.ndim != 1 or not values.size or values.dtype.kind not in "iuf" or not np.all(values >= 0):
        raise ValueError(f"sizes must be numbers, none of them negative; got {sizes!r}.")
    if values.dtype.kind in "iu":
        if values.sum() > samples:
            raise ValueError(f"The parts need {values.sum()} samples, and there are {samples}.")
        return values
    if values.sum() > 1 + 1e-9:
        raise ValueError(
            f"Fractions of the samples must not sum to more than 1; {tuple(sizes)} sum to {values.sum():g}. "
            "For numbers of samples give whole numbers."
        )
    edges = np.rint(np.cumsum(values) * samples).astype(int)
    counts = np.diff(edges, prepend=0)
    if np.any((counts == 0) & (values > 0)):
        raise ValueError(f"{samples} samples are too few for parts of {tuple(sizes)}: one would be empty.")
    return counts


def _shuffled_groups(samples: int, labels: Any, generator: np.random.Generator) -> list[np.ndarray]:
    """The indices of each class, in random order, and the classes in random order as well."""
    labels = np.asarray(labels)
    if labels.shape != (samples,):
        raise ValueError(f"stratify must hold one label per sample ({samples}); got shape {labels.shape}.")
    classes, codes = np.unique(labels, return_inverse=True)
    order = generator.permutation(samples)
    order = order[np.argsort(generator.permutation(len(classes))[codes[order]], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _proportional(counts: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """``size`` samples shared out over classes of ``counts`` samples: the largest remainder, ties by lot."""
    quota = counts * size / max(counts.sum(), 1)
    share = np.floor(quota).astype(int)
    ranks = np.lexsort((generator.random(len(counts)), share - quota))
    share[ranks[: size - share.sum()]] += 1
    return share


def _one_of_each(share: np.ndarray) -> np.ndarray:
    """One sample for each class that got none, taken from the class with most, while that has more than one."""
    share = share.copy()
    for k in np.flatnonzero(share == 0):
        largest = share.argmax()
        if share[largest] > 1:
            share[[largest, k]] += -1, 1
    return share
