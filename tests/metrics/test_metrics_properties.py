"""Tests of properties that hold for every sample."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from metrics_cases import MATRIX_METRICS, PAIR_METRICS, name_of, random_probs

from calibrant import metrics

# multiples of 1/60 hit the edges of 10, 12, 15 and 20 bins, and 0 and 1
confidences = arrays.arrays(
    np.float64,
    st.integers(1, 40),
    elements=st.one_of(st.floats(0, 1), st.integers(0, 60).map(lambda k: k / 60)),
)


@st.composite
def pairs(draw):
    confidence = draw(confidences)
    correct = draw(arrays.arrays(bool, len(confidence)))
    return {"confidence": confidence, "correct": correct}


@given(pairs(), st.integers(1, 30))
def test_ece_lies_between_the_gap_and_mce(pair, bins):
    for scheme in ("width", "mass"):
        value = metrics.ece(bins=bins, scheme=scheme, **pair)
        over = metrics.overconfidence(bins=bins, scheme=scheme, **pair)
        under = metrics.underconfidence(bins=bins, scheme=scheme, **pair)
        assert value == pytest.approx(over + under, abs=1e-12)
        assert metrics.confidence_gap(**pair) == pytest.approx(over - under, abs=1e-12)
        squared = metrics.ece(bins=bins, scheme=scheme, norm="l2", **pair)
        largest = metrics.mce(bins=bins, scheme=scheme, **pair)
        assert -1e-12 <= abs(over - under) <= value + 1e-12 <= squared + 2e-12 <= largest + 3e-12 <= 1 + 4e-12


@given(pairs(), st.integers(1, 30))
def test_ece_is_the_plain_loop_over_bins(pair, bins):
    confidence, correct = pair["confidence"], pair["correct"]
    expected = 0.0
    for m in range(1, bins + 1):
        inside = (confidence > (m - 1) / bins) & (confidence <= m / bins)
        inside |= (m == 1) & (confidence == 0)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert metrics.ece(bins=bins, **pair) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(pairs())
def test_smooth_ece_lies_between_the_gap_and_the_mean_residual(pair):
    value = metrics.smooth_ece(**pair)
    residual = np.abs(pair["confidence"] - pair["correct"]).mean()
    assert abs(metrics.confidence_gap(**pair)) - 1e-6 <= value <= residual + 1e-6


@settings(max_examples=40, deadline=None)
@given(pairs(), st.floats(0.01, 0.5), st.floats(1.1, 3))
def test_smooth_ece_does_not_grow_with_the_bandwidth(pair, sigma, factor):
    narrow = metrics.smooth_ece(bandwidth=sigma, **pair)
    assert metrics.smooth_ece(bandwidth=sigma * factor, **pair) <= narrow + 1e-6


@given(pairs())
def test_isotonic_parts_are_not_negative(pair):
    parts = metrics.brier_decomposition(**pair)
    assert min(parts.calibration, parts.resolution, parts.uncertainty) >= -1e-12
    assert parts.score == pytest.approx(parts.calibration - parts.resolution + parts.uncertainty, abs=1e-12)


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
def test_order_does_not_matter(metric):
    probs, labels = random_probs(300)
    probs[:100] = probs[0]  # ties
    order = np.random.default_rng(0).permutation(300)
    assert metric(probs[order], labels[order]) == pytest.approx(metric(probs, labels), abs=1e-12)


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
def test_integer_weights_are_repetitions(metric):
    probs, labels = random_probs(120)
    weight = np.random.default_rng(1).integers(0, 4, 120)
    rows = np.repeat(np.arange(120), weight)
    given = {"bandwidth": 0.1} if metric is metrics.kde_ece else {}
    expected = metric(probs[rows], labels[rows], **given)
    assert metric(probs, labels, sample_weight=weight, **given) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
def test_the_scale_of_the_weights_does_not_matter(metric):
    probs, labels = random_probs(120)
    weight = np.random.default_rng(2).random(120)
    assert metric(probs, labels, sample_weight=7 * weight) == pytest.approx(
        metric(probs, labels, sample_weight=weight), abs=1e-12
    )
    assert metric(probs, labels, sample_weight=np.full(120, 3.0)) == pytest.approx(metric(probs, labels), abs=1e-9)


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
def test_groups_are_the_metric_on_each_part(metric):
    probs, labels = random_probs(120)
    weight = np.random.default_rng(2).random(120)
    groups = np.arange(120) % 3
    result = metric(probs, labels, groups=groups, sample_weight=weight)
    assert result.overall == pytest.approx(metric(probs, labels, sample_weight=weight), abs=1e-12)
    for g in range(3):
        part = groups == g
        expected = metric(probs[part], labels[part], sample_weight=weight[part])
        assert result[g] == pytest.approx(expected, abs=1e-12)
    tensor = metric(torch.from_numpy(probs), torch.from_numpy(labels), groups=torch.from_numpy(groups))
    assert set(tensor) == {0, 1, 2}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
def test_the_gpu_agrees(metric):
    probs, labels = random_probs(3000)
    weight = np.random.default_rng(0).random(3000)
    on_gpu = torch.from_numpy(probs).cuda()
    for keywords in ({}, {"sample_weight": weight}, {"groups": labels}):
        expected = metric(probs, labels, **keywords)
        got = metric(on_gpu, torch.from_numpy(labels).cuda(), **keywords)
        assert got == pytest.approx(expected, abs=1e-9) if isinstance(got, float) else got.overall > 0
    assert metric(on_gpu, labels) == pytest.approx(metric(probs, labels), abs=1e-9)
    metrics.noise_floor(on_gpu, metric=metric, n_resamples=40)
    metrics.bootstrap_interval(on_gpu, labels, metric=metric, n_resamples=40)


@pytest.mark.parametrize("metric", [m for m in PAIR_METRICS if getattr(m, "top_label", False)], ids=name_of)
def test_pairs_are_the_top_label(metric):
    probs, labels = random_probs(120)
    pair = {"confidence": probs.max(axis=1), "correct": probs.argmax(axis=1) == labels}
    assert metric(probs, labels) == metric(**pair)


def test_pieces_do_not_change_the_sums(monkeypatch):
    import calibrant.metrics._grid as grid
    import calibrant.metrics.bins as bins
    import calibrant.metrics.classwise as classwise

    probs, labels = random_probs(200)
    whole = [metric(probs, labels) for metric in (metrics.ece, metrics.classwise_ece, metrics.smooth_ece)]
    for module in (bins, grid, classwise):
        monkeypatch.setattr(module, "CHUNK", 17)
    pieces = [metric(probs, labels) for metric in (metrics.ece, metrics.classwise_ece, metrics.smooth_ece)]
    assert pieces == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("metric", [metrics.ece, metrics.ace, metrics.smooth_ece, metrics.sece], ids=name_of)
def test_calibrated_predictions_approach_the_floor_and_zero(metric):
    rng = np.random.default_rng(0)
    values, floors = [], []
    for n in (100, 1_000, 10_000, 100_000):
        confidence = rng.uniform(0.3, 1, n)
        correct = rng.random(n) < confidence
        values.append(metric(confidence=confidence, correct=correct))
        floors.append(metrics.noise_floor(confidence=confidence, metric=metric, n_resamples=40, level=0.9).mean)
    assert all(later < earlier for earlier, later in itertools.pairwise(values))
    assert values[-1] < 0.02
    assert all(0.4 < value / floor < 2.2 for value, floor in zip(values, floors, strict=True))


def test_debiased_errors_are_right_on_calibrated_and_biased_data():
    rng = np.random.default_rng(0)
    plain, debiased, shifted = [], [], []
    for _ in range(200):
        confidence = rng.uniform(0.3, 0.9, 500)
        pair = {"confidence": confidence, "correct": rng.random(500) < confidence}
        plain.append(metrics.ece(norm="l2", **pair) ** 2)
        debiased.append(metrics.ece(norm="l2", debias=True, **pair) ** 2)
        over = {"confidence": confidence, "correct": rng.random(500) < confidence - 0.2}
        shifted.append(metrics.ece(norm="l2", debias=True, **over) ** 2)
    assert np.mean(debiased) < 0.3 * np.mean(plain)
    assert np.mean(shifted) == pytest.approx(0.04, abs=3 * np.std(shifted) / np.sqrt(200))
