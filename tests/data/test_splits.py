"""Tests of splits and folds: disjoint, complete, and stratified."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.data import folds, split_indices
from calibrant.data.splits.stratified import group_folds

SIZES = (0.6, 0.2, 0.2)
SEEDS = st.integers(0, 2**32)
LABELS = st.lists(st.integers(0, 6), min_size=5, max_size=120).map(np.array)


@given(LABELS, st.lists(st.integers(0, 20), min_size=1, max_size=5), SEEDS, st.booleans())
def test_parts_are_disjoint_and_of_the_sizes_asked_for(labels, sizes, seed, stratified):
    labels = np.resize(labels, max(len(labels), sum(sizes)))
    parts = split_indices(len(labels), sizes, seed=seed, stratify=labels if stratified else None)
    assert [len(p) for p in parts] == sizes
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert np.all((together >= 0) & (together < len(labels)))


@given(st.integers(5, 500), SEEDS, st.booleans())
def test_fractions_that_sum_to_one_cover_everything(samples, seed, stratified):
    labels = np.arange(samples) % 3
    parts = split_indices(samples, SIZES, seed=seed, stratify=labels if stratified else None)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    assert [len(p) for p in parts] == pytest.approx([0.6 * samples, 0.2 * samples, 0.2 * samples], abs=1)


@given(LABELS, SEEDS)
def test_every_class_is_in_the_first_part_in_proportion(labels, seed):
    """Each class gets its share up to one sample, and at least one sample; the largest class gives up those."""
    train, _, _ = split_indices(len(labels), SIZES, seed=seed, stratify=labels)
    classes, counts = np.unique(labels, return_counts=True)
    share = np.array([(labels[train] == c).sum() for c in classes])
    if len(train) >= len(classes):
        assert np.all(share >= 1)
    assert np.all(share <= np.maximum(counts * len(train) / len(labels), 1) + 1)


def test_stratified_shares_by_hand():
    """50 of class a, 30 of b, 20 of c at 60/20/20, all exact; and a class of one sample goes to training."""
    labels = np.repeat(["a", "b", "c"], [50, 30, 20])
    parts = split_indices(100, SIZES, seed=0, stratify=labels)
    counts = [[int((labels[p] == c).sum()) for c in "abc"] for p in parts]
    assert counts == [[30, 18, 12], [10, 6, 4], [10, 6, 4]]
    labels[-1] = "d"
    for seed in range(20):
        assert "d" in labels[split_indices(100, SIZES, seed=seed, stratify=labels)[0]]


def test_seeds_make_the_split():
    first, again, other = (split_indices(50, (20, 10, 20), seed=s)[0] for s in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@given(LABELS, st.integers(2, 5), SEEDS, st.booleans())
def test_folds_are_balanced(labels, number, seed, stratified):
    fold = folds(len(labels), number, seed=seed, stratify=labels if stratified else None)
    sizes = np.bincount(fold, minlength=number)
    assert len(sizes) == number
    assert sizes.sum() == len(labels)
    assert np.ptp(sizes) <= 1
    for c in np.unique(labels) if stratified else ():
        assert np.ptp(np.bincount(fold[labels == c], minlength=number)) <= 1


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((700, 300, 1), "got 1001"),
        ((0.7, 0.3, 0.2), "sum to 1.2"),
        ((0.999, 0.0005, 0.0005), "one would be empty"),
        ((0.5, -0.1, 0.1), "non-negative"),
    ],
)
def test_impossible_splits_are_refused(sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        split_indices(1000, sizes, seed=0)


def test_labels_and_folds_must_fit_the_samples():
    with pytest.raises(ValueError, match="one label per sample"):
        split_indices(10, SIZES, seed=0, stratify=[0, 1])
    for number in (1, 11):
        with pytest.raises(ValueError, match="must be from 2 to"):
            folds(10, number, seed=0)


@given(st.integers(2, 6), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=12, max_size=80))
def test_groups_stay_together(number, rows):
    groups, labels = np.array(rows).T
    number = min(number, len(np.unique(groups)))
    if number < 2:
        return
    fold = group_folds(groups, number, seed=0, stratify=labels)
    assert np.array_equal(np.unique(fold), np.arange(number))
    assert all(len(np.unique(fold[groups == g])) == 1 for g in np.unique(groups))


@given(st.integers(2, 7), st.lists(st.integers(0, 4), min_size=7, max_size=60))
def test_groups_of_one_are_dealt_like_rows(number, labels):
    fold = group_folds(np.arange(len(labels)), number, seed=3, stratify=labels)
    for counts in (
        np.bincount(fold, minlength=number),
        *(np.bincount(fold[np.array(labels) == c], minlength=number) for c in set(labels)),
    ):
        assert counts.max() - counts.min() <= 1


def test_small_groups_even_out_what_a_large_one_leaves():
    groups = np.concatenate([np.zeros(30), np.arange(1, 71)])
    sizes = np.bincount(group_folds(groups, 3, seed=0))
    assert sorted(sizes) == [33, 33, 34]


def test_classes_are_spread_over_the_folds_of_groups():
    generator = np.random.default_rng(0)
    labels = np.repeat(generator.integers(0, 3, 300), 4)
    fold = group_folds(np.repeat(np.arange(300), 4), 5, seed=0, stratify=labels)
    shares = np.array([[np.mean(labels[fold == k] == c) for c in range(3)] for k in range(5)])
    assert np.ptp(shares, axis=0).max() < 0.03


def test_more_folds_than_groups_are_an_error():
    with pytest.raises(ValueError, match=r"number of groups \(2\); got 3"):
        group_folds([0, 0, 1, 1], 3, seed=0)
