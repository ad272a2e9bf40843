"""Tests of noise floors, tests and intervals by simulation."""

import functools
import math

import numpy as np
import pytest
import torch
from metrics_cases import name_of, random_pairs, random_probs

from calibrant import metrics

LEVELS = np.array([0.05, 0.1, 0.2, 0.5])
GRID = (np.arange(10) + 0.5) / 10  # one confidence in each of 10 bins: the true binned error is known exactly


def sample(rng, n, gap):
    """Confidences on the grid, right with probability confidence − gap."""
    confidence = rng.choice(GRID[3:9], n)
    return {"confidence": confidence, "correct": rng.random(n) < confidence - gap}


def no_more_often_than(events, rate):
    """The events happen at most at this rate, up to three standard errors of the simulation."""
    return np.mean(events) <= rate + 3 * math.sqrt(rate * (1 - rate) / len(events))


def test_noise_floor_is_the_mean_over_calibrated_outcomes():
    probs, _ = random_probs(300)
    confidence = probs.max(axis=1)
    rng = np.random.default_rng(0)
    draws = [metrics.ece(confidence=confidence, correct=rng.random(300) < confidence) for _ in range(1000)]
    floor = metrics.noise_floor(probs)
    assert floor.mean == pytest.approx(np.mean(draws), abs=4 * np.std(draws) / math.sqrt(500))
    assert floor.low == pytest.approx(np.quantile(draws, 0.025), abs=0.003)
    assert floor.high == pytest.approx(np.quantile(draws, 0.975), abs=0.003)
    assert "calibrated models" in repr(floor)


def test_noise_floor_draws_labels_for_matrix_metrics():
    probs, _ = random_probs(500, 3)
    entropy = -(probs * np.log(probs)).sum(axis=1).mean()
    floor = metrics.noise_floor(probs, metric=metrics.nll, n_resamples=300)
    assert floor.mean == pytest.approx(entropy, abs=0.01)
    logits = metrics.noise_floor(np.log(probs), metric=metrics.nll, n_resamples=300, from_logits=True)
    assert logits.mean == pytest.approx(floor.mean, abs=1e-6)


def test_noise_floor_takes_any_metric():
    probs, _ = random_probs(200)
    by_argument = metrics.noise_floor(probs, metric=metrics.ece, bins=5, n_resamples=60)
    by_partial = metrics.noise_floor(probs, metric=functools.partial(metrics.ece, bins=5), n_resamples=60)
    assert by_argument == by_partial
    own = metrics.noise_floor(probs, metric=lambda p, y: (p.argmax(1) == y).double().mean(), n_resamples=200)
    assert own.mean == pytest.approx(probs.max(axis=1).mean(), abs=0.01)
    assert metrics.noise_floor(np.eye(3)[[0, 1, 2, 0]], n_resamples=60).high == 0.0
    assert metrics.noise_floor(confidence=GRID, sample_weight=np.ones(10), n_resamples=60).mean > 0
    assert metrics.noise_floor(GRID, binary="positive", metric=metrics.brier, n_resamples=60).mean > 0
    assert metrics.noise_floor(metrics.Logits(GRID), binary="predicted", n_resamples=60).mean > 0


def test_seeds_decide_everything():
    probs, labels = random_probs(100)
    for function in (
        functools.partial(metrics.noise_floor, probs),
        functools.partial(metrics.bootstrap_interval, probs, labels),
        functools.partial(metrics.calibration_test, probs, labels),
        functools.partial(metrics.compare, probs, probs[:, ::-1].copy(), labels),
    ):
        state = torch.get_rng_state()
        first, again, other = (function(n_resamples=50, seed=seed) for seed in (3, 3, 4))
        assert first == again
        assert first != other
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("metric", [metrics.ece, pytest.param(metrics.smooth_ece, marks=pytest.mark.slow)], ids=name_of)
def test_p_values_are_valid_under_the_null(metric):
    rng = np.random.default_rng(1)
    p_values = []
    for seed in range(300):
        confidence = rng.uniform(0.4, 1, 60)
        pair = {"confidence": confidence, "correct": rng.random(60) < confidence}
        p_values.append(metrics.calibration_test(**pair, metric=metric, n_resamples=39, seed=seed).p_value)
    for level in LEVELS:
        assert no_more_often_than(np.array(p_values) <= level, level)
    assert np.mean(p_values) == pytest.approx(0.5, abs=0.06)  # and not merely by being too large


def test_the_test_sees_miscalibration():
    rng = np.random.default_rng(2)
    assert metrics.calibration_test(**sample(rng, 500, 0.15), n_resamples=199).p_value == 1 / 200
    probs, labels = random_probs(500)
    result = metrics.calibration_test(probs, labels, metric=metrics.classwise_ece, n_resamples=99)
    assert result.p_value == 0.01
    assert result.statistic > result.null_mean
    assert "p = 0.01" in repr(result)


@pytest.mark.parametrize("gap", [0.0, 0.03, 0.15])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_asymptotic_ece_interval_covers_also_calibrated_models(gap, norm):
    rng = np.random.default_rng(3)
    missed = []
    for _ in range(150):
        interval = metrics.asymptotic_interval(**sample(rng, 400, gap), bins=10, norm=norm, level=0.9)
        missed.append(not interval.low <= gap + 1e-12 <= interval.high + 2e-12)
    assert no_more_often_than(missed, 0.1)


@pytest.mark.parametrize("metric", [metrics.nll, metrics.brier, metrics.accuracy, metrics.confidence_gap], ids=name_of)
def test_asymptotic_intervals_of_means_cover(metric):
    truth = metric(**sample(np.random.default_rng(0), 2_000_000, 0.1))
    rng = np.random.default_rng(4)
    intervals = [metrics.asymptotic_interval(**sample(rng, 200, 0.1), metric=metric, level=0.9) for _ in range(400)]
    missed = [not i.low <= truth <= i.high for i in intervals]
    assert no_more_often_than(missed, 0.115)
    assert np.mean(missed) > 0.05


def test_asymptotic_and_bootstrap_agree_on_means():
    confidence, correct = random_pairs(800)
    weight = np.random.default_rng(0).random(800)
    for given in ({}, {"sample_weight": weight}):
        for metric in (metrics.nll, metrics.brier, metrics.confidence_gap, metrics.accuracy):
            pair = {"confidence": confidence, "correct": correct, "metric": metric, **given}
            a, b = metrics.asymptotic_interval(**pair), metrics.bootstrap_interval(**pair, n_resamples=400)
            assert a.value == b.value
            assert (a.low, a.high) == pytest.approx((b.low, b.high), abs=0.12 * (a.high - a.low))


def test_rows_of_weight_zero_do_not_upset_resampling():
    confidence, correct = random_pairs(40)
    weight = (np.arange(40) < 3).astype(float)  # a plain resample would often hold none of these
    pair = {"confidence": confidence, "correct": correct}
    kept = {"confidence": confidence[:3], "correct": correct[:3]}
    for function in (metrics.bootstrap_interval, metrics.calibration_test):
        assert function(**pair, sample_weight=weight, n_resamples=200) == function(
            **kept, sample_weight=np.ones(3), n_resamples=200
        )


def test_intervals_say_what_they_are():
    confidence, correct = random_pairs(100)
    pair = {"confidence": confidence, "correct": correct}
    assert "basic bootstrap, 100 resamples, seed 0" in repr(metrics.bootstrap_interval(**pair, n_resamples=100))
    assert metrics.bootstrap_interval(**pair, n_resamples=100, bins=1).low >= 0
    assert metrics.asymptotic_interval(**pair, metric=metrics.mce).high <= 1
    assert metrics.asymptotic_interval(**pair, metric=metrics.ace).low >= 0


def test_compare_is_paired():
    probs, labels = random_probs(400)
    same = metrics.compare(probs, probs, labels, n_resamples=100, test="bootstrap")
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    bound = metrics.compare(probs, probs, labels)
    assert bound.p_value == 1.0
    assert bound.low < 0 < bound.high
    softer = probs**0.6 / (probs**0.6).sum(axis=1, keepdims=True)
    result = metrics.compare(probs, softer, labels, metric=metrics.nll, n_resamples=200)
    assert result.difference == pytest.approx(metrics.nll(probs, labels) - metrics.nll(softer, labels))
    assert result.low > 0
    assert result.p_value < 0.02
    back = metrics.compare(softer, probs, labels, metric=metrics.nll, n_resamples=200)
    assert back.difference == -result.difference
    assert (back.low, back.high) == pytest.approx((-result.high, -result.low), abs=1e-12)
    assert back.p_value == pytest.approx(result.p_value)
    by_argument = metrics.compare(probs, softer, labels, metric=metrics.ece, bins=10)
    assert metrics.compare(probs, softer, labels, metric=functools.partial(metrics.ece, bins=10)) == by_argument


def test_compare_takes_pairs():
    confidence, correct = random_pairs(300)
    lower = confidence**2  # the truth
    result = metrics.compare(confidence=(confidence, lower), correct=(correct, correct), n_resamples=100)
    assert result.a > result.b
    assert result.low > 0
    assert "a − b" in repr(result)


def two_equal_models(rng, n, case):
    """Two models with equal true errors over 20 bins: confidences on a grid, right with probability t."""
    if case == "both calibrated, one surer":
        sure, unsure = rng.choice([0.925, 0.975], n), rng.choice([0.525, 0.625], n)
        return (sure, unsure), (rng.random(n) < sure, rng.random(n) < unsure)
    t = rng.choice([0.35, 0.45, 0.55, 0.65, 0.75], n)
    correct = rng.random(n) < t
    gap = {"small gaps": 0.02, "large gaps": 0.15}[case]
    return (t + gap, t - gap), (correct, correct)


@pytest.mark.parametrize("case", ["both calibrated, one surer", "small gaps", "large gaps"])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_bounds_on_a_difference_are_valid(case, norm):
    rng = np.random.default_rng(9)
    missed, rejected = [], []
    for seed in range(60):
        confidence, correct = two_equal_models(rng, 400, case)
        result = metrics.compare(confidence=confidence, correct=correct, bins=20, norm=norm, level=0.9, seed=seed)
        missed.append(not result.low <= 0 <= result.high)
        rejected.append(result.p_value <= 0.1)
    assert missed == rejected
    assert no_more_often_than(missed, 0.1)


def test_bounds_see_a_real_difference():
    rng = np.random.default_rng(10)
    t = rng.choice(GRID[3:8], 2000)
    correct = rng.random(2000) < t
    for metric in (metrics.ece, metrics.ace):
        result = metrics.compare(confidence=(t + 0.15, t), correct=(correct, correct), metric=metric)
        assert result.low > 0
        assert result.p_value < 0.01
        back = metrics.compare(confidence=(t, t + 0.15), correct=(correct, correct), metric=metric)
        assert back.high < 0


PAIR = {"confidence": GRID, "correct": GRID > 0.5}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: metrics.noise_floor(), "either probs or confidence="),
        (lambda: metrics.noise_floor(confidence=GRID, level=95), "strictly between 0 and 1"),
        (lambda: metrics.noise_floor(confidence=GRID, n_resamples=5), "at least 40"),
        (lambda: metrics.noise_floor(confidence=GRID, groups=GRID), "must return one number"),
        (lambda: metrics.calibration_test(**PAIR, n_resamples=0), "at least 1"),
        (lambda: metrics.asymptotic_interval(**PAIR, metric=metrics.smooth_ece), "Use bootstrap_interval"),
        (
            lambda: metrics.asymptotic_interval(confidence=[1.0], correct=[0], metric=metrics.nll),
            "finite on this sample",
        ),
        (
            lambda: metrics.bootstrap_interval(GRID, GRID > 0.5, binary="positive", metric=metrics.accuracy),
            "binary must be 'predicted'",
        ),
        (lambda: metrics.compare(confidence=GRID, correct=(GRID > 0, GRID > 0)), "must be a pair"),
        (lambda: metrics.compare(confidence=(GRID, GRID[:5]), correct=(GRID > 0, GRID[:5] > 0)), "same samples"),
        (
            lambda: metrics.compare(np.eye(2), np.eye(3)[:2], [0, 1], metric=metrics.nll),
            "same classes",
        ),
        (lambda: metrics.compare(np.eye(2), np.eye(2), [0, 1], test="t"), "'bound' or 'bootstrap'"),
        (lambda: metrics.compare(np.eye(2), np.eye(2), [0, 1], test="bound", metric=metrics.nll), "must be ece"),
    ],
)
def test_bad_arguments_are_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.slow
def test_bootstrap_covers_where_all_gaps_are_large():
    rng = np.random.default_rng(6)
    missed = []
    for seed in range(200):
        interval = metrics.bootstrap_interval(**sample(rng, 4000, 0.15), bins=10, level=0.9, n_resamples=200, seed=seed)
        missed.append(not interval.low <= 0.15 <= interval.high)
    assert no_more_often_than(missed, 0.12)


@pytest.mark.slow
def test_paired_intervals_cover_and_p_values_match():
    rng = np.random.default_rng(7)
    missed, rejected = [], []
    for seed in range(300):
        confidence = rng.uniform(0.3, 0.9, 400)
        correct = rng.random(400) < confidence
        # models a and b shift the truth by ±0.1 at random: equally bad on average
        shifts = rng.choice([-0.1, 0.1], (2, 400))
        pair = tuple(confidence + shift for shift in shifts)
        result = metrics.compare(
            confidence=pair,
            correct=(correct, correct),
            metric=metrics.nll,
            level=0.9,
            n_resamples=200,
            seed=seed,
        )
        missed.append(not result.low <= 0 <= result.high)
        rejected.append(result.p_value <= 0.1)
    assert no_more_often_than(missed, 0.12)
    assert no_more_often_than(rejected, 0.12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"bins": 7, "scheme": "mass"}, {"norm": "l2", "debias": True}])
def test_many_draws_at_once_score_as_one_by_one(arguments, weighted):
    generator = np.random.default_rng(3)
    confidence = generator.uniform(0.3, 1.0, 500)
    weight = {"sample_weight": generator.uniform(0.1, 2, 500)} if weighted else {}
    at_once = metrics.noise_floor(confidence=confidence, n_resamples=60, **arguments, **weight)
    one_by_one = metrics.noise_floor(
        confidence=confidence, metric=lambda **given: metrics.ece(**given, **arguments), n_resamples=60, **weight
    )
    for name in ("mean", "low", "high"):
        assert getattr(at_once, name) == pytest.approx(getattr(one_by_one, name), rel=1e-12)
    inside = metrics.noise_floor(
        confidence=confidence, metric=functools.partial(metrics.ece, **arguments), n_resamples=60, **weight
    )
    assert inside.mean == at_once.mean
    with pytest.raises(TypeError, match="no argument 'bin'"):
        metrics.noise_floor(confidence=confidence, n_resamples=60, bin=3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"bins": 7, "norm": "l2"}, {"debias": True}])
def test_many_draws_of_labels_at_once(arguments, weighted):
    probs, _ = random_probs(300, 5)
    weight = {"sample_weight": np.random.default_rng(0).uniform(0.1, 2, 300)} if weighted else {}

    def slow(p, labels, **given):
        return metrics.classwise_ece(p, labels, **arguments, **given)

    at_once = metrics.noise_floor(probs, metric=metrics.classwise_ece, n_resamples=40, **arguments, **weight)
    one_by_one = metrics.noise_floor(probs, metric=slow, n_resamples=40, **weight)
    for name in ("mean", "low", "high"):
        assert getattr(at_once, name) == pytest.approx(getattr(one_by_one, name), rel=1e-12)


@pytest.mark.parametrize("metric", [metrics.nll, metrics.brier], ids=name_of)
def test_intervals_of_scores_that_cannot_be_negative_end_at_zero(metric):
    probs = np.array([[0.999, 0.001]] * 19 + [[0.9, 0.1]])
    found = metrics.asymptotic_interval(probs, np.zeros(20, dtype=int), metric=metric)
    assert found.low == 0 < found.value < found.high
    gap = metrics.asymptotic_interval(probs, np.zeros(20, dtype=int), metric=metrics.confidence_gap)
    assert gap.low < gap.value < 0
