"""Means, paired differences and how they are written."""

import doctest
import math

import numpy as np
import pytest
from scipy import stats

from calibrant import report
from calibrant.metrics import Estimate
from calibrant.report import builder as builder_module
from calibrant.report import by_seed, excludes_zero, format_number, mean_interval, paired_difference, ratio_of_means


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


def test_the_interval_of_overlapping_splits_is_nadeaus_and_bengios():
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


def test_one_seed_has_no_interval_and_settles_nothing():
    alone = mean_interval([0.25])
    assert format_number(alone) == "0.250"
    assert math.isnan(alone.low)
    assert excludes_zero(alone) == 0


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]]])
def test_what_is_no_list_of_numbers_is_refused(values):
    with pytest.raises(ValueError, match="one number for each seed"):
        mean_interval(values)


def test_a_missing_seed_is_not_left_out_silently():
    assert format_number(mean_interval([0.1, None, 0.3])) == "–"


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
    with pytest.raises(ValueError, match=r"same seeds; only one of them has 1, 2\."):
        paired_difference({0: 1.0, 1: 1.0}, {0: 1.0, 2: 1.0})
    with pytest.raises(ValueError, match="got 2 and 1 values"):
        paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="both sequences"):
        paired_difference({0: 1.0}, [1.0])


def test_records_are_selected_by_their_fields():
    records = [{"method": m, "seed": s, "nll": s + 10 * (m == "b")} for m in "ab" for s in range(3)]
    assert by_seed(records, "nll", method="b") == {0: 10, 1: 11, 2: 12}
    with pytest.raises(ValueError, match="several of seed 0"):
        by_seed(records, "nll")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0164, "0.016"),
        (-0.5, "−0.500"),
        (-0.0001, "0.000"),
        (7, "7"),
        (np.int64(7), "7"),
        (np.float32(0.25), "0.250"),
        (True, "yes"),
        (None, "–"),
        (math.nan, "–"),
        ("isotonic", "isotonic"),
        (Estimate(0.016, 0.014, 0.018, 0.95, ""), "0.016 ± 0.002"),
        (Estimate(0.016, 0.012, 0.024, 0.95, ""), "0.016 [0.012, 0.024]"),
        (Estimate(-0.016, -0.018, -0.014, 0.95, ""), "−0.016 ± 0.002"),
        (Estimate(0.5, 0.4999, 0.5001, 0.95, ""), "0.500 ± <0.001"),
        (Estimate(0.5, 0.5, 0.5, 0.95, ""), "0.500 ± 0.000"),
    ],
)
def test_how_numbers_are_written(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize("module", [report, builder_module])
def test_examples_run(module):
    assert doctest.testmod(module).failed == 0


def test_the_ratio_of_means_has_the_interval_that_the_bootstrap_gives():
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
