"""Tests of the risk–coverage curve and its areas, against hand-computed cases and independent formulas."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from calibrant.selective import (
    augrc,
    aurc,
    coverage_at_risk,
    excess_aurc,
    risk_at_coverage,
    risk_coverage_curve,
)

CONFIDENCE = np.array([0.9, 0.8, 0.8, 0.6])
CORRECT = np.array([True, False, True, False])

samples = st.lists(st.tuples(st.sampled_from([0.1, 0.25, 0.5, 0.7, 0.9, 1.0]), st.booleans()), min_size=1, max_size=30)


def unzip(sample):
    confidence, correct = zip(*sample, strict=True)
    return np.array(confidence), np.array(correct)


def test_curve_by_hand_with_a_tie():
    curve = risk_coverage_curve(CONFIDENCE, CORRECT)
    np.testing.assert_array_equal(curve.threshold, [0.9, 0.8, 0.6])
    np.testing.assert_allclose(curve.coverage, [0.25, 0.75, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 1 / 3, 1 / 2])
    np.testing.assert_allclose(curve.generalised_risk, [0, 0.25, 0.5])


def test_areas_by_hand_with_a_tie():
    # Expected errors among the 1, 2, 3, 4 most confident: 0, 1/2, 1, 2.
    assert aurc(CONFIDENCE, CORRECT) == pytest.approx((0 + 1 / 4 + 1 / 3 + 1 / 2) / 4)
    # The best order has both errors last: risks 0, 0, 1/3, 1/2.
    assert excess_aurc(CONFIDENCE, CORRECT) == pytest.approx(1 / 16)
    # Trapezoids of width 1/4 under 0, 0, 1/8, 1/4, 1/2.
    assert augrc(CONFIDENCE, CORRECT) == pytest.approx((0 + 1 / 8 + 1 / 4 + 1 / 4) / 4)


def test_ties_are_the_mean_over_all_their_orders():
    confidence, correct = np.full(5, 0.7), np.array([True, True, False, True, False])
    distinct = np.linspace(0.9, 0.5, 5)
    for area in (aurc, augrc):
        values = [area(distinct, np.array(order)) for order in itertools.permutations(correct)]
        assert area(confidence, correct) == pytest.approx(np.mean(values))


@given(samples)
def test_augrc_is_the_auroc_formula(sample):
    confidence, correct = unzip(sample)
    accuracy = correct.mean()
    auroc = roc_auc_score(correct, confidence) if 0 < accuracy < 1 else 0.5
    expected = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert augrc(confidence, correct) == pytest.approx(expected, abs=1e-12)


@given(samples)
def test_excess_is_zero_for_the_best_order_and_never_negative(sample):
    confidence, correct = unzip(sample)
    assert excess_aurc(confidence, correct) >= -1e-12
    assert excess_aurc(0.25 + 0.5 * correct, correct) == pytest.approx(
        0 if len(set(correct)) > 1 else excess_aurc(np.full(len(correct), 0.5), correct), abs=1e-12
    )


@settings(max_examples=50)
@given(samples, st.floats(0, 1))
def test_points_agree_with_the_curve(sample, level):
    confidence, correct = unzip(sample)
    point = risk_at_coverage(confidence, correct, level)
    kept = confidence >= point.threshold
    assert kept.mean() == pytest.approx(point.coverage)
    assert point.coverage >= level - 1e-9
    assert (~correct[kept]).mean() == pytest.approx(point.risk)

    point = coverage_at_risk(confidence, correct, level)
    risks = [(~correct[confidence >= t]).mean() for t in confidence]
    coverages = [(confidence >= t).mean() for t in confidence]
    best = max((c for c, r in zip(coverages, risks, strict=True) if r <= level + 1e-12), default=0)
    assert point.coverage == pytest.approx(best)


def test_coverage_at_risk_says_plainly_that_there_is_none():
    point = coverage_at_risk([0.9, 0.8], [False, True], 0.1)
    assert point.threshold == math.inf
    assert point.coverage == 0
    assert math.isnan(point.risk)


def test_coverage_is_counted_not_rounded():
    confidence = np.linspace(0.95, 0.05, 10)
    for k in range(1, 11):
        assert risk_at_coverage(confidence, np.ones(10, bool), k / 10).coverage == pytest.approx(k / 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_give_what_arrays_give(dtype):
    confidence = torch.tensor([0.875, 0.75, 0.75, 0.5], dtype=dtype, requires_grad=True)
    correct = torch.tensor([1, 0, 1, 0])
    assert aurc(confidence, correct) == aurc([0.875, 0.75, 0.75, 0.5], [True, False, True, False])


def test_single_sample():
    assert aurc([0.7], [False]) == 1
    assert aurc([0.7], [True]) == 0
    assert excess_aurc([0.7], [False]) == 0
    assert augrc([0.7], [False]) == 0.5


def test_percentages_and_bad_confidences_are_refused():
    with pytest.raises(ValueError, match="must be a fraction"):
        risk_at_coverage(CONFIDENCE, CORRECT, 90)
    for confidence, sentence in (([], "at least one row"), ([0.5, np.nan], "NaN"), ([0.5, 1.5], r"\[0, 1\]")):
        with pytest.raises(ValueError, match=sentence):
            aurc(np.array(confidence), np.ones(len(confidence), bool))


def test_a_risk_that_is_met_exactly_is_allowed():
    confidence, correct = np.linspace(1, 0.1, 10), np.arange(10) < 9
    assert 1 - 0.9 < 0.1  # by rounding
    assert coverage_at_risk(confidence, correct, 1 - 0.9).coverage == 1
    assert coverage_at_risk(confidence, correct, 0.1 - 1e-6).coverage == 0.9
