"""Tests of the five data sets by name: sizes, new samples for each seed, independent streams, and flipped labels."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_blobs

from studies.sets import FITTED_SETS, SETS, flip_labels, fresh, load_problem, suite


@pytest.mark.parametrize("name", [*SETS, *FITTED_SETS])
def test_a_set_is_whole(name):
    problem = load_problem(name, 3)
    assert [len(y) for _, y in (problem.train, problem.val, problem.test)] == [700, 300, 1000]
    inputs, labels = problem.test
    posterior = problem.posterior(inputs)
    assert inputs.shape == (1000, len(problem.feature_names))
    assert posterior.shape == (1000, problem.n_classes)
    assert set(labels) == set(range(problem.n_classes))
    assert np.all(posterior.max(1) == 1) == problem.noise_free


@pytest.mark.parametrize("name", [*SETS, *FITTED_SETS])
def test_no_sample_is_drawn_twice(name):
    """Not within a seed, not between seeds, and not between the splits and the fresh samples."""
    parts = [p[0] for seed in (0, 1) for p in (lambda s: (s.train, s.val, s.test))(load_problem(name, seed))]
    parts += [fresh(name, 2000, seed).inputs for seed in (0, 1)]
    rows = np.concatenate(parts)
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert np.array_equal(load_problem(name, 0).val[0], parts[1])


def test_sets_of_one_family_are_not_the_same_draws():
    assert not np.array_equal(load_problem("blobs-1.3", 0).train[1], load_problem("blobs-1.7", 0).train[1])


def test_the_published_difficulty():
    accuracies = {"blobs-1.3": 0.939, "blobs-1.7": 0.875, "spirals-2.5": 0.896, "spirals-3.5": 0.823, "bac": 1.0}
    for name, accuracy in accuracies.items():
        data = fresh(name, 4000, 0)
        assert data.posterior(data.inputs).max(1).mean() == pytest.approx(accuracy, abs=0.01)


def test_fitted_blobs_have_the_centres_of_make_blobs():
    inputs, labels, centres = make_blobs(50, centers=5, cluster_std=1e-9, random_state=42, return_centers=True)
    problem = load_problem("fitted-blobs-1.3", 0)
    assert inputs == pytest.approx(centres[labels])
    posterior = problem.posterior(centres)
    assert np.array_equal(posterior.argmax(1), np.arange(5))
    train, classes = problem.train
    means = np.stack([train[classes == c].mean(0) for c in range(5)])
    assert means == pytest.approx(centres, abs=5 * 1.3 / np.sqrt(100))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"blobs-1\.3.*got 'moons'"):
        load_problem("moons", 0)


@given(st.integers(1, 200), st.floats(0, 1), st.integers(2, 6), st.integers(0, 2**32))
def test_flips_are_of_the_number_and_to_another_class(samples, rate, classes, seed):
    labels = np.arange(samples) % classes
    changed, flipped = flip_labels(labels, rate, classes, seed=seed)
    assert flipped.sum() == round(rate * samples)
    assert np.array_equal(changed != labels, flipped)
    assert np.all((changed >= 0) & (changed < classes))


def test_flips_choose_the_other_classes_evenly():
    labels = np.zeros(30_000, dtype=int)
    changed, _ = flip_labels(labels, 1.0, 4, seed=0)
    assert np.bincount(changed, minlength=4) / 30_000 == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.01)
    assert np.all(labels == 0)


@pytest.mark.parametrize(
    ("labels", "rate", "classes", "sentence"),
    [([0, 1], 1.5, 2, "between 0 and 1"), ([0, 0], 0.5, 1, "at least 2"), ([0, 2], 0.5, 2, "from 0 to 1")],
)
def test_impossible_flips_are_refused(labels, rate, classes, sentence):
    with pytest.raises(ValueError, match=sentence):
        flip_labels(np.array(labels), rate, classes, seed=0)


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(suite) == (0, 4)
