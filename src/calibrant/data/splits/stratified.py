"""Splits and folds of sample indices, disjoint and optionally stratified.

Each sample is assigned at most once, so that no sample can be in two parts. ``stratify`` keeps the shares of the
classes equal in all parts, as far as whole numbers allow. It accepts classes of any size, even of one sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.base.settings import shown


def split_indices(samples: int, sizes: Sequence[float], *, seed: int, stratify: Any = None) -> tuple[np.ndarray, ...]:
    """Disjoint index arrays, one per size, each in random order.

    Parameters
    ----------
    samples : int
        Number of samples.
    sizes : sequence of int or float
        Whole numbers of samples (700, 300, 1000), or fractions (0.6, 0.2, 0.2); remaining samples are in no part.
    seed : int
        The same seed gives the same split.
    stratify : array of shape (samples,), optional
        One label per sample. Each part then holds every class in proportion, up to one sample for the first part. A
        class that is too rare goes to the first part, because a classifier cannot learn a class that it never sees.
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
    """The fold of each sample, 0 to ``number − 1``; sizes, and counts of each class, differ by at most one.

    ``stratify`` holds one label per sample. The same ``seed`` gives the same folds.
    """
    if not 2 <= number <= samples:
        raise ValueError(f"number must be from 2 to the number of samples ({samples}); got {number}.")
    generator = np.random.default_rng(seed)
    # Samples are sorted by class and dealt out like cards, so that every class is spread evenly.
    order = np.concatenate(_shuffled_groups(samples, np.zeros(samples) if stratify is None else stratify, generator))
    fold = np.empty(samples, dtype=int)
    fold[order] = generator.permutation(number)[np.arange(samples) % number]
    return fold


def group_folds(groups: Any, number: int, *, seed: int, stratify: Any = None) -> np.ndarray:
    """The fold of each sample, 0 to ``number − 1``, with all samples of a group in one fold.

    Groups are assigned from the largest to the smallest, each to the fold in which the classes of its samples are
    rarest. Samples that are alone in their group come last and balance the folds. Sizes differ as little as the groups
    allow.

    Parameters
    ----------
    groups : array of shape (n,)
        One value per sample; samples with equal values stay together.
    number : int
        Number of folds, at most the number of groups.
    seed : int
        The same seed gives the same folds.
    stratify : array of shape (n,), optional
        One label per sample.
    """
    groups = np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(groups)
    if not 2 <= number <= len(sizes):
        raise ValueError(f"number must be from 2 to the number of groups ({len(sizes)}); got {number}.")
    labels = np.zeros(len(groups)) if stratify is None else np.asarray(stratify)
    codes = np.unique(labels, return_inverse=True)[1]
    generator = np.random.default_rng(seed)
    fold_of = _deal_large(groups, codes, sizes, number, generator)
    single = sizes[groups] == 1
    fold = fold_of[groups]
    held = np.zeros((number, codes.max() + 1), dtype=int)
    np.add.at(held, (fold[~single], codes[~single]), 1)
    order = generator.permutation(np.flatnonzero(single))
    for label in generator.permutation(held.shape[1]):
        class_rows = order[codes[order] == label]
        shares = _filled(held[:, label], len(class_rows), held.sum(1), generator)
        fold[class_rows] = np.repeat(np.arange(number), shares)
        held[:, label] += shares
    return fold


_ONE_BY_ONE = 5_000
"""This many groups of several samples are placed one by one, the smaller ones in turns."""


def _deal_large(
    groups: np.ndarray, codes: np.ndarray, sizes: np.ndarray, number: int, generator: np.random.Generator
) -> np.ndarray:
    """The fold of each group with several samples; 0 for the others."""
    fold_of = np.zeros(len(sizes), dtype=int)
    several = generator.permutation(np.flatnonzero(sizes > 1))
    several = several[np.argsort(-sizes[several], kind="stable")]
    classes = codes.max() + 1
    place = np.full(len(sizes), -1)
    place[several] = np.arange(len(several))
    in_several = place[groups] >= 0
    first, rest = several[:_ONE_BY_ONE], several[_ONE_BY_ONE:]
    rows = np.flatnonzero(in_several)
    rows = rows[np.argsort(place[groups[rows]], kind="stable")]
    pieces = np.split(codes[rows], np.cumsum(sizes[several])[:-1])
    totals = np.bincount(codes, minlength=classes).astype(float)
    filled = np.zeros((number, classes))
    for group, group_classes in zip(first, pieces, strict=False):
        labels, counts = np.unique(group_classes, return_counts=True)
        # How full a fold is of the group's classes, relative to their share of all samples; ties by size, then random.
        crowding = (filled[:, labels] / totals[labels]) @ counts
        chosen = np.lexsort((generator.random(number), filled.sum(1), crowding))[0]
        filled[chosen, labels] += counts
        fold_of[group] = chosen
    if len(rest):
        common = np.array([np.bincount(group_classes).argmax() for group_classes in pieces[_ONE_BY_ONE:]])
        rest = rest[np.argsort(common, kind="stable")]
        fold_of[rest] = np.arange(len(rest)) % number
    return fold_of


def _filled(levels: np.ndarray, samples: int, sizes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """How many of ``samples`` each fold gets so that the largest fold is as small as possible.

    A remainder goes to the smallest folds.
    """
    order = np.sort(levels)
    room = np.arange(1, len(order)) * np.diff(order)  # to raise the k smallest folds to the next one's size
    below = int(np.searchsorted(np.cumsum(room), samples, side="right")) + 1
    level = (samples + int(order[:below].sum())) // below
    shares = np.maximum(level - levels, 0)
    lowest = np.flatnonzero(levels <= level)
    lowest = lowest[np.lexsort((generator.random(len(lowest)), (sizes + shares)[lowest]))]
    shares[lowest[: samples - shares.sum()]] += 1
    return shares


def _part_sizes(samples: int, sizes: Sequence[float]) -> np.ndarray:
    """Whole part sizes; fractions are rounded so that their sum is that of the whole."""
    if samples < 1:
        raise ValueError(f"samples must be at least 1; got {samples}.")
    values = np.asarray(sizes)
    if values.ndim != 1 or not values.size or values.dtype.kind not in "iuf" or not np.all(values >= 0):
        raise ValueError(f"sizes must be non-negative numbers; got {shown(sizes)}.")
    if values.dtype.kind in "iu":
        if values.sum() > samples:
            raise ValueError(f"sizes must sum to at most the number of samples ({samples}); got {values.sum()}.")
        return values
    if values.sum() > 1 + 1e-9:
        raise ValueError(
            f"sizes must sum to at most 1 if they are fractions; got {tuple(sizes)}, which sum to {values.sum():g}. "
            "Give whole numbers for numbers of samples."
        )
    edges = np.rint(np.cumsum(values) * samples).astype(int)
    counts = np.diff(edges, prepend=0)
    if np.any((counts == 0) & (values > 0)):
        raise ValueError(
            f"{samples} samples are too few for parts of {tuple(sizes)}: one would be empty. Give more samples."
        )
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
    """Divide ``size`` samples over classes of ``counts`` samples by the largest remainder, ties at random."""
    quota = counts * size / max(counts.sum(), 1)
    share = np.floor(quota).astype(int)
    ranks = np.lexsort((generator.random(len(counts)), share - quota))
    share[ranks[: size - share.sum()]] += 1
    return share


def _one_of_each(share: np.ndarray) -> np.ndarray:
    """Give classes without a sample one from the largest class, as long as that has more than one."""
    share = share.copy()
    for k in np.flatnonzero(share == 0):
        largest = share.argmax()
        if share[largest] > 1:
            share[[largest, k]] += -1, 1
    return share
