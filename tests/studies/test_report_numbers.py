"""Tests of records by seed, and of the formatting of numbers and intervals."""

import doctest
import math

import numpy as np
import pytest

from calibrant import report
from calibrant.metrics import Estimate, excludes_zero, mean_interval
from calibrant.report import format_number
from studies.report import builder as builder_module
from studies.report import by_seed


def test_one_seed_has_no_interval_and_settles_nothing():
    alone = mean_interval([0.25])
    assert format_number(alone) == "0.250"
    assert math.isnan(alone.low)
    assert excludes_zero(alone) == 0


def test_a_missing_seed_is_not_left_out_silently():
    assert format_number(mean_interval([0.1, None, 0.3])) == "–"


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
