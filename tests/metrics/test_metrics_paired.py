"""Tests of statistics over seeds: means, paired differences and ratios, against scipy and exact cases."""

import math

import numpy as np
import pytest
from scipy import stats

from calibrant.metrics import excludes_zero, mean_interval, paired_difference, ratio_of_means


def test_the_interval_is_students():
    values = np.random.default_rng(0).normal(size=7)
    expected = stats.t.interval(0.9, 6, loc=values.mean(), scale=stats.sem(values))
    found = mean_interval(values, level=0.9)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-12)
    assert found.value == pytest.approx(values.mean(), rel=1e-12)


def test_an_exact_case():
    """Two values a unit apart: s/√2 = 1/2 and t₁ = tan(0.475 π)."""
    found = mean_interval([0.0, 1.0])
    assert found.high - found.value == pytest.approx(0.5 * math.tan(0.475 * math.pi), rel=1e-9)


def test_overlap_gives_the_interval_of_nadeau_and_bengio():
    """Five splits of 80 % and 20 %, by hand: s² = 2.5, and t₄ at 97.5 % is 2.776445."""
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0], overlap=0.2 / 0.8)
    assert found.high - found.value == pytest.approx(2.776445 * math.sqrt(2.5 * (1 / 5 + 1 / 4)), rel=1e-6)
    assert found.value == 3
    assert found.method.endswith("corrected for overlap")
    twice = paired_difference([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0], overlap=0.25)
    assert (twice.low, twice.high) == pytest.approx((found.low, found.high), rel=1e-12)
    assert math.isnan(mean_interval([1.0], overlap=0.25).low)
    with pytest.raises(ValueError, match="n_test/n_train"):
        mean_interval([1.0, 2.0], overlap=-0.1)


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]]])
def test_values_must_be_a_list_of_numbers(values):
    with pytest.raises(ValueError, match="one number for each seed"):
        mean_interval(values)


def test_pairs_are_made_by_seed_not_by_order():
    a, b = {0: 1.0, 1: 5.0, 2: 9.0}, {2: 8.0, 0: 0.0, 1: 4.0}
    found = paired_difference(a, b)
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
    assert excludes_zero(found) == 1
    assert excludes_zero(paired_difference(b, a)) == -1


def test_pairing_removes_what_seeds_share():
    rng = np.random.default_rng(1)
    seed_effect, own = rng.normal(size=(2, 20))
    a, b = seed_effect, seed_effect + 0.1 + 0.01 * own
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    found = paired_difference(list(a), list(b))
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-9)
    assert excludes_zero(found) == -1


def test_different_seeds_are_refused():
    with pytest.raises(ValueError, match=r"same seeds; got 1, 2 in only one"):
        paired_difference({0: 1.0, 1: 1.0}, {0: 1.0, 2: 1.0})
    with pytest.raises(ValueError, match="got 2 and 1 values"):
        paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="both sequences"):
        paired_difference({0: 1.0}, [1.0])


def test_ratio_of_means_matches_the_bootstrap():
    generator = np.random.default_rng(0)
    common = generator.normal(size=400)
    a, b = 3 + 0.5 * common + 0.3 * generator.normal(size=400), 2 + 0.4 * common
    found = ratio_of_means(list(a), list(b))
    assert found.value == pytest.approx(a.mean() / b.mean())
    rows = generator.integers(0, 400, (4000, 400))
    low, high = np.quantile(a[rows].mean(1) / b[rows].mean(1), [0.025, 0.975])
    assert (found.low, found.high) == (pytest.approx(low, abs=0.004), pytest.approx(high, abs=0.004))
    assert ratio_of_means([1.0, 2.0], [0.5, 1.0]).high == pytest.approx(2.0)  # in fixed proportion: no spread
    with pytest.raises(ValueError, match="one value for each seed"):
        ratio_of_means([1.0], [1.0, 2.0])
    assert np.isnan(ratio_of_means([1.0, None], [1.0, 2.0]).value)


def test_overlap_widens_the_interval_of_a_ratio():
    a, b = [1.0, 2.0, 4.0], [1.0, 1.5, 2.5]
    fresh, overlapping = (ratio_of_means(a, b, overlap=overlap) for overlap in (0.0, 0.25))
    assert overlapping.value == fresh.value
    factor = math.sqrt((1 / 3 + 0.25) / (1 / 3))
    assert overlapping.high - overlapping.value == pytest.approx(factor * (fresh.high - fresh.value))
