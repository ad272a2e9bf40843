"""The synthetic sets: exact posteriors, the first paper's difficulty, independent samples, wrong labels."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_blobs

from calibrant.metrics import ece, true_ece
from studies.sets import FITTED_SETS, SETS, bac, bac_level, blobs, flip_labels, fresh, load_problem, spirals, suite

ACCURACIES = {
    "blobs-1.3": 0.939,
    "blobs-1.7": 0.875,
    "spirals-2.5": 0.896,
    "spirals-3.5": 0.823,
    "bac": 1.0,
    "fitted-spirals-2.5": 0.952,
    "fitted-spirals-3.5": 0.858,
}


@pytest.mark.parametrize(("name", "accuracy"), ACCURACIES.items())
def test_the_posterior_is_calibrated_and_its_accuracy_is_the_stated_one(name, accuracy):
    """Its ECE falls to the sampling floor, and against itself it is exactly zero."""
    data = fresh(name, 20_000, 0)
    posterior = data.posterior(data.inputs)
    assert posterior.sum(1) == pytest.approx(1.0)
    assert posterior.max(1).mean() == pytest.approx(accuracy, abs=0.005)
    assert (posterior.argmax(1) == data.labels).mean() == pytest.approx(accuracy, abs=0.008)
    assert ece(posterior, data.labels) < 0.011
    assert true_ece(posterior, posterior) < 1e-12


def test_spiral_posterior_against_direct_integration():
    data = spirals(5, 2.5, seed=3)
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    angle = 2 * np.pi * np.sqrt(u)
    curve = (2 * angle + np.pi)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    density = [
        [np.exp(-np.square(x - sign * curve).sum(1) / (2 * 2.5**2)).mean() for sign in (1, -1)] for x in data.inputs
    ]
    expected = np.array(density) / np.sum(density, axis=1, keepdims=True)
    assert data.posterior(data.inputs) == pytest.approx(expected, abs=1e-6)


def test_fitted_blobs_have_the_centres_of_make_blobs():
    inputs, labels, centres = make_blobs(50, centers=5, cluster_std=1e-9, random_state=42, return_centers=True)
    problem = load_problem("fitted-blobs-1.3", 0)
    assert inputs == pytest.approx(centres[labels])
    assert np.array_equal(problem.posterior(centres).argmax(1), np.arange(5))
    train, classes = problem.train
    means = np.stack([train[classes == c].mean(0) for c in range(5)])
    assert means == pytest.approx(centres, abs=5 * 1.3 / np.sqrt(100))


@pytest.mark.parametrize("name", [*SETS, *FITTED_SETS])
def test_a_set_is_whole_and_no_sample_is_drawn_twice(name):
    """Not within a seed, not between seeds, and not between the splits and the fresh samples."""
    problems = [load_problem(name, seed) for seed in (0, 1)]
    parts = [part for problem in problems for part in (problem.train, problem.val, problem.test)]
    assert [len(labels) for _, labels in parts] == [700, 300, 1000] * 2
    rows = np.concatenate([*(inputs for inputs, _ in parts), *(fresh(name, 2000, seed).inputs for seed in (0, 1))])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert np.array_equal(load_problem(name, 0).val[0], parts[1][0])
    inputs, labels = parts[2]
    posterior = problems[0].posterior(inputs)
    assert inputs.shape == (1000, len(problems[0].feature_names))
    assert posterior.shape == (1000, problems[0].n_classes)
    assert set(labels) == set(range(problems[0].n_classes))
    assert np.all(posterior.max(1) == 1) == problems[0].noise_free


def test_sets_of_one_family_are_not_the_same_draws():
    assert not np.array_equal(load_problem("blobs-1.3", 0).train[1], load_problem("blobs-1.7", 0).train[1])
    with pytest.raises(ValueError, match=r"blobs-1\.3.*got 'moons'"):
        load_problem("moons", 0)
    assert doctest.testmod(suite) == (0, 4)


@given(st.integers(1, 200), st.floats(0, 1), st.integers(2, 6), st.integers(0, 2**32))
def test_flips_are_of_the_number_and_to_another_class(samples, rate, classes, seed):
    labels = np.arange(samples) % classes
    changed, flipped = flip_labels(labels, rate, classes, seed=seed)
    assert flipped.sum() == round(rate * samples)
    assert np.array_equal(changed != labels, flipped)
    assert np.all((changed >= 0) & (changed < classes))


def test_flips_choose_the_other_classes_evenly():
    changed, _ = flip_labels(np.zeros(30_000, dtype=int), 1.0, 4, seed=0)
    assert np.bincount(changed, minlength=4) / 30_000 == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.01)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: flip_labels(np.array([0, 1]), 1.5, 2, seed=0), "between 0 and 1"),
        (lambda: flip_labels(np.array([0, 0]), 0.5, 1, seed=0), "at least 2"),
        (lambda: flip_labels(np.array([0, 2]), 0.5, 2, seed=0), "from 0 to 1"),
        (lambda: spirals(0, seed=0), "must be"),
        (lambda: spirals(5, 0.0, seed=0), "must be"),
        (lambda: blobs(2000, seed=0).split(2001), "got 2001"),
        (lambda: bac(0, seed=0), "at least 1"),
        (lambda: bac_level(np.zeros((3, 4))), "rows of sex, weight"),
    ],
)
def test_impossible_arguments_are_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_the_alcohol_formula_by_hand():
    """Sex (1 man), kg, units, minutes, meal."""
    man = 0.806 * 6 * 1.2 / (0.58 * 80) - 0.015 * (90 - 30) / 60  # 5.8032 / 46.4 − 0.015
    woman = 0.806 * 2 * 1.2 / (0.49 * 60) - 0.017 * 120 / 60  # 1.9344 / 29.4 − 0.034
    people = np.array([[1, 80.0, 6, 90.0, 1], [0, 60.0, 2, 120.0, 0], [1, 80.0, 1, 600.0, 0]])
    assert bac_level(people) == pytest.approx([man, woman, 0.0])
    assert [man, woman] == pytest.approx([0.1100690, 0.0317959], abs=1e-7)


def test_the_marginals_are_those_of_the_public_alcohol_set():
    data = bac(40_000, seed=0)
    sex, weight, units, minutes, meal = data.inputs.T
    assert np.array_equal(data.labels, bac_level(data.inputs) > 0.08)
    assert data.labels.mean() == pytest.approx(0.66, abs=0.02)
    assert (sex.mean(), meal.mean()) == pytest.approx((0.5, 0.5), abs=0.01)
    assert (minutes.mean(), minutes.std()) == pytest.approx((91.2, 20.2), abs=0.4)
    assert 30 <= minutes.min() < minutes.max() <= 163
    published = {1: (6.57, 1.93, 12, 78.3, 10.1), 0: (3.48, 1.01, 6, 66.5, 8.0)}
    for who, (unit_mean, unit_std, most, kg_mean, kg_std) in published.items():
        drunk, kg = units[sex == who], weight[sex == who]
        assert set(drunk) <= set(range(1, most + 1))
        assert (drunk.mean(), drunk.std()) == pytest.approx((unit_mean, unit_std), abs=0.05)
        assert (kg.mean(), kg.std()) == pytest.approx((kg_mean, kg_std), abs=0.25)


def test_true_ece_by_hand():
    """Confidence 0.8 that is right with probability 0.6, and 0.6 that is right with 0.9, each in its own bin."""
    probs = np.array([[0.8, 0.2], [0.4, 0.6]])
    posterior = np.array([[0.6, 0.4], [0.1, 0.9]])
    assert true_ece(probs, posterior, bins=10) == pytest.approx((0.2 + 0.3) / 2)
    assert true_ece(confidence=[0.1, 0.1], right=[0.2, 0.1]) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="same shape"):
        true_ece(probs, posterior[:1])


def test_true_ece_of_pairs_is_that_of_the_matrix():
    probs, posterior = np.random.default_rng(0).dirichlet(np.ones(3), (2, 400))
    right = posterior[np.arange(400), probs.argmax(1)]
    assert true_ece(confidence=probs.max(1), right=right) == pytest.approx(true_ece(probs, posterior), abs=1e-12)
    for values in ({}, {"probs": probs}, {"confidence": [0.5]}, {"probs": probs, "posterior": posterior, "right": [1]}):
        with pytest.raises(ValueError, match="posterior"):
            true_ece(**values)
