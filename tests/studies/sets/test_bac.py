"""Tests of the simulated blood-alcohol data: its formula and its shape."""

import numpy as np
import pytest

from studies.sets import bac, bac_level

# sex (1 man), kg, units, minutes, meal
MAN, WOMAN = [1, 80.0, 6, 90.0, 1], [0, 60.0, 2, 120.0, 0]


def test_the_formula_by_hand():
    man = 0.806 * 6 * 1.2 / (0.58 * 80) - 0.015 * (90 - 30) / 60  # 5.8032 / 46.4 − 0.015
    woman = 0.806 * 2 * 1.2 / (0.49 * 60) - 0.017 * 120 / 60  # 1.9344 / 29.4 − 0.034
    assert bac_level(np.array([MAN, WOMAN])) == pytest.approx([man, woman])
    assert [man, woman] == pytest.approx([0.1100690, 0.0317959], abs=1e-7)


def test_a_level_is_never_negative():
    assert bac_level([[1, 80.0, 1, 600.0, 0]]) == pytest.approx([0.0])


def test_the_marginals_are_those_of_the_public_set():
    data = bac(40_000, seed=0)
    sex, weight, units, minutes, meal = data.inputs.T
    assert data.feature_names == ("sex", "weight", "units", "minutes", "meal")
    assert data.labels.mean() == pytest.approx(0.66, abs=0.02)
    assert sex.mean() == pytest.approx(0.5, abs=0.01)
    assert meal.mean() == pytest.approx(0.5, abs=0.01)
    assert (minutes.mean(), minutes.std()) == pytest.approx((91.2, 20.2), abs=0.4)
    assert minutes.min() >= 30
    assert minutes.max() <= 163
    published = {1: (6.57, 1.93, 12, 78.3, 10.1), 0: (3.48, 1.01, 6, 66.5, 8.0)}
    for who, (unit_mean, unit_std, most, kg_mean, kg_std) in published.items():
        drunk, kg = units[sex == who], weight[sex == who]
        assert set(drunk) <= set(range(1, most + 1))
        assert (drunk.mean(), drunk.std()) == pytest.approx((unit_mean, unit_std), abs=0.05)
        assert (kg.mean(), kg.std()) == pytest.approx((kg_mean, kg_std), abs=0.25)


def test_the_labels_are_a_function_of_the_features():
    data = bac(2000, seed=1)
    assert np.array_equal(data.labels, bac_level(data.inputs) > 0.08)
    assert np.array_equal(data.posterior(data.inputs), np.eye(2)[data.labels])
    assert data.n_classes == 2
    assert [len(y) for _, y in data.split(700, 300, 1000)] == [700, 300, 1000]


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        bac(0, seed=0)
    with pytest.raises(ValueError, match="rows of sex, weight"):
        bac_level(np.zeros((3, 4)))
