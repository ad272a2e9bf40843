"""Tests of thresholds for risk, coverage and cost: exact small cases and errors (simulations: test_guarantees)."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from calibrant.selective import (
    chow_threshold,
    threshold_for_cost,
    threshold_for_coverage,
    threshold_for_risk,
    uniform_risk_bound,
)
from calibrant.selective.target_risk import fixed_counts


def test_all_correct_needs_the_textbook_number_of_samples():
    # Without errors P(Bin(n, r) = 0) = (1 − r)^n ≤ δ from n = 59 on for r = δ = 0.05 (one start, J = 1).
    confidence = np.linspace(0.5, 1, 59)
    right = np.ones(59, bool)
    rule = threshold_for_risk(confidence, right, 0.05, method="fixed-sequence")
    assert rule.found
    assert rule.coverage == 1
    assert not threshold_for_risk(confidence[:58], right[:58], 0.05, method="fixed-sequence").found
    assert threshold_for_risk(confidence, right, 0.05).window.high == -math.inf
    assert not threshold_for_risk(confidence[:58], right[:58], 0.05).found


def test_ranks_accept_strictly_above_the_next_sample():
    # 130 right answers, then only wrong ones: of the fixed counts 300/1.1^i the largest below 130 is kept.
    confidence = np.linspace(1, 0, 300)
    counts = fixed_counts(300, 0.1, 0.05, 1.1)
    rule = threshold_for_risk(confidence, np.arange(300) < 130, 0.1)
    accepted = int(rule.accepts(confidence).sum())
    assert accepted in counts
    assert confidence[accepted] < rule.window.high <= confidence[accepted - 1]
    assert binom.cdf(max(0, accepted - 130), accepted, 0.1) <= 0.05 / len(counts)
    larger = counts[counts.index(accepted) - 1]
    assert binom.cdf(larger - 130, larger, 0.1) > 0.05 / len(counts)


@pytest.mark.parametrize("ratio", [1.1, 1.5])
@pytest.mark.parametrize("n", [1, 10, 59, 300, 5000])
def test_fixed_counts_fall_and_can_all_pass(n, ratio):
    counts = fixed_counts(n, 0.05, 0.05, ratio)
    assert (np.diff(counts) < 0).all()
    assert all(0.95**count <= 0.05 / len(counts) for count in counts)
    assert counts[:1] == ([n] if n >= 59 else [])


def test_equal_confidences_are_never_split():
    confidence = np.r_[np.full(300, 0.9), np.full(300, 0.6)]
    correct = np.r_[np.ones(300, bool), np.arange(300) % 2 == 0]
    for method in ("ranks", "uniform", "fixed-sequence"):
        rule = threshold_for_risk(confidence, correct, 0.1, method=method)
        assert 0.6 < rule.window.high <= 0.9
        assert rule.coverage == 0.5


def test_uniform_bound_exceeds_the_pointwise_limit_and_the_risk():
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.5, 1, 1000)
    correct = generator.random(1000) < confidence
    thresholds = np.unique(confidence)
    accepted = np.array([(confidence >= t).sum() for t in thresholds])
    errors = np.array([(~correct[confidence >= t]).sum() for t in thresholds])
    pointwise = beta.ppf(0.95, errors + 1, np.maximum(accepted - errors, 1e-9))
    narrow = uniform_risk_bound(confidence, correct, two_sided=False).risk(high=thresholds)
    wide = uniform_risk_bound(confidence, correct).risk(high=thresholds)
    assert (narrow > pointwise).all()
    assert (wide > narrow).all()
    # The price for looking at all thresholds: modest where half of the sample is accepted.
    half = len(thresholds) // 2
    assert narrow[half] < 1.5 * pointwise[half]


def test_the_bound_of_a_window_is_that_of_its_sides():
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0, 1, 200)
    bound = uniform_risk_bound(confidence, generator.random(200) < confidence)
    wrong_above, wrong_below, right_above, right_below = bound.sides([0.2, 0.8])
    assert bound.risk(high=0.8) == wrong_above[1] / (wrong_above[1] + right_above[1])
    assert bound.risk(low=0.2) == wrong_below[0] / (wrong_below[0] + right_below[0])
    wrong, right = wrong_below[0] + wrong_above[1], right_below[0] + right_above[1]
    assert bound.risk(0.2, 0.8) == wrong / (wrong + right)


def test_uniform_bound_at_the_edges():
    bound = uniform_risk_bound([0.6, 0.7, 0.8], [True, True, False])
    assert bound.risk() == 1  # nothing accepted, nothing known
    assert bound.risk(high=0.9) == 1
    assert bound.risk(-math.inf, -math.inf) == bound.risk(high=0.0)
    assert 0 < bound.risk(0.7, 0.7) <= 1
    with pytest.raises(ValueError, match="low must be at most high"):
        bound.risk(0.8, 0.7)
    with pytest.raises(ValueError, match="two_sided=True"):
        uniform_risk_bound([0.6], [True], two_sided=False).risk(0.1, 0.2)


def test_best_window_is_two_sided_where_that_covers_more():
    # The score is the probability of class 1; predictions near 0 and near 1 are right, the middle is a guess.
    generator = np.random.default_rng(1)
    score = generator.uniform(0, 1, 4000)
    correct = (np.abs(score - 0.5) > 0.2) | (generator.random(4000) < 0.5)
    two = uniform_risk_bound(score, correct).best_window(0.03)
    one = uniform_risk_bound(score, correct, two_sided=False).best_window(0.03)
    assert 0.25 < two.window.low < 0.4 < 0.6 < two.window.high < 0.75
    assert two.coverage > one.coverage + 0.2
    assert two.risk_bound <= 0.03


def test_coverage_of_the_sample_and_of_new_data():
    confidence = np.arange(1, 101) / 100
    correct = np.ones(100, bool)
    assert threshold_for_coverage(confidence, correct, 0.7).window.high == 0.31
    # Wilks: with n = 100 and 95 % confidence, the 96th largest (P(Bin(100, 0.9) < 96) = 0.976, < 95: 0.942).
    rule = threshold_for_coverage(confidence, correct, 0.9, level=0.95)
    assert rule.coverage == pytest.approx(0.96)
    assert "at least 90.0% of new data" in rule.summary()
    assert threshold_for_coverage(confidence, correct, 0.995).window.high == 0.01  # the last of the sample
    everything = threshold_for_coverage(confidence, correct, 0.99, level=0.95)
    assert everything.coverage == 1
    assert everything.window.high == -math.inf


def test_chow():
    assert chow_threshold(10, 1) == pytest.approx(0.9)
    assert chow_threshold(1, 0) == 1
    for costs in [(0, 0), (1, 2), (1, -0.1), (math.inf, 1), (math.nan, 1)]:
        with pytest.raises(ValueError, match="costs must satisfy"):
            chow_threshold(*costs)


def test_cheapest_threshold_by_brute_force():
    generator = np.random.default_rng(2)
    for _ in range(20):
        confidence = generator.choice([0.1, 0.4, 0.6, 0.8, 0.9], 15)
        correct = generator.random(15) < confidence
        rule = threshold_for_cost(confidence, correct, error_cost=3, rejection_cost=1)
        costs = [np.where(confidence >= t, 3 * ~correct, 1).mean() for t in [*np.unique(confidence), math.inf]]
        assert rule.target == pytest.approx(min(costs))
        assert rule.level is None


def test_chows_rule_is_near_the_cheapest_where_confidence_is_calibrated():
    generator = np.random.default_rng(3)
    confidence = generator.uniform(0.5, 1, 20_000)
    correct = generator.random(20_000) < confidence
    costs = {"error_cost": 10, "rejection_cost": 2}
    best = threshold_for_cost(confidence, correct, **costs)
    chow = threshold_for_cost(confidence, correct, **costs, calibrated=True)
    assert chow.window.high == pytest.approx(0.8)
    assert best.target <= chow.target < best.target + 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"risk": 5}, "must be a fraction"),
        ({"risk": 0.1, "level": 95}, "must be a fraction"),
        ({"risk": 0.1, "method": "sgr"}, "method must be 'ranks', 'fixed-sequence' or 'uniform'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        threshold_for_risk([0.5, 0.6], [True, False], **arguments)


def test_coverage_needs_no_labels():
    rule = threshold_for_coverage(np.linspace(0, 1, 101), None, 0.5, level=0.9)
    assert rule.found
    assert math.isnan(rule.risk)
    assert "wrong" not in rule.summary()
