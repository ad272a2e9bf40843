"""Tests of the numbers behind the figures: they equal the metrics, and bands have their stated coverage."""

import numpy as np
import pytest
import torch

from calibrant import metrics, plots, selective

RNG_TRIALS = 200


def test_reliability_gaps_add_up_to_ece(predictions):
    for scheme in ("width", "mass"):
        data = plots.prepare_reliability(*predictions, bins=12, scheme=scheme, n_resamples=40)
        gaps = np.nan_to_num(np.abs(data.accuracy - data.confidence))
        assert np.sum(data.share * gaps) == pytest.approx(data.ece)
        assert gaps.max() == pytest.approx(data.mce)
        assert data.ece == metrics.ece(*predictions, bins=12, scheme=scheme)
        expected = metrics.noise_floor(predictions[0], bins=12, scheme=scheme, n_resamples=40)
        assert data.floor.mean == pytest.approx(expected.mean)


def test_reliability_by_hand():
    data = plots.prepare_reliability(confidence=[0.45, 0.55, 0.55, 0.95], correct=[0, 1, 0, 1], bins=10, n_resamples=0)
    np.testing.assert_array_equal(np.flatnonzero(data.share), [4, 5, 9])
    np.testing.assert_allclose(data.accuracy[[4, 5, 9]], [0, 0.5, 1])
    np.testing.assert_allclose(data.confidence[[4, 5, 9]], [0.45, 0.55, 0.95])
    assert np.isnan(data.accuracy[0])
    assert data.floor is None
    # One sample at 0.45: both outcomes are compatible with calibration.
    assert (data.band_low[4], data.band_high[4]) == (0, 1)


def test_consistency_band_holds_for_a_calibrated_model():
    generator = np.random.default_rng(2)
    confidence = generator.beta(4, 1.5, 2000)
    inside = []
    for _ in range(RNG_TRIALS):
        data = plots.prepare_reliability(
            confidence=confidence, correct=generator.random(2000) < confidence, n_resamples=0, level=0.9
        )
        full = data.share > 0
        within = (data.accuracy >= data.band_low - 1e-12) & (data.accuracy <= data.band_high + 1e-12)
        inside.append(within[full].mean())
    # At least 90 %: steps of a discrete law and the binomial in place of the exact one only widen the band.
    assert 0.9 - 0.01 < np.mean(inside) < 0.97


def test_histogram(predictions):
    data = plots.prepare_confidence_histogram(*predictions, bins=20)
    confidence = predictions[0].max(axis=1)
    assert data.share.sum() == pytest.approx(1)
    assert data.accuracy == pytest.approx(metrics.accuracy(*predictions))
    assert data.mean_confidence == pytest.approx(confidence.mean())
    assert data.chance == pytest.approx(1 / 3)
    assert data.share[-1] == pytest.approx((confidence > 0.95).mean())


def test_smooth_curve_integrates_to_smece(predictions):
    data = plots.prepare_smooth_reliability(*predictions)
    assert data.smece == metrics.smooth_ece(*predictions)
    assert data.bandwidth == pytest.approx(data.smece, abs=1e-6)
    gap = np.nan_to_num(np.abs(data.accuracy - data.confidence) * data.density)
    assert np.trapezoid(gap, data.confidence) == pytest.approx(data.smece, rel=1e-3)
    assert np.trapezoid(data.density, data.confidence) == pytest.approx(1, abs=1e-3)


def test_smooth_curve_against_the_kernel_written_out(pairs):
    sigma = 0.05
    data = plots.prepare_smooth_reliability(**pairs, bandwidth=sigma)
    c, right = pairs["confidence"], pairs["correct"]
    t = data.confidence[256:, None]
    images = np.stack([c, -c, 2 - c, 2 + c, c - 2])
    kernel = np.exp(-((t[None] - images[:, None]) ** 2) / (2 * sigma**2)).sum(axis=0) / (sigma * np.sqrt(2 * np.pi))
    density = kernel.mean(axis=1)
    np.testing.assert_allclose(data.density[256:], density, rtol=1e-4)
    curve = t[:, 0] + (kernel * (right - c)).mean(axis=1) / density
    np.testing.assert_allclose(data.accuracy[256:], curve, atol=1e-4)
    sd = np.sqrt((kernel**2 * c * (1 - c)).sum(axis=1)) / kernel.sum(axis=1)
    np.testing.assert_allclose(data.spread[256:], 1.959964 * sd, rtol=2e-3)
    np.testing.assert_allclose(data.local_count[256:], kernel.sum(axis=1) ** 2 / (kernel**2).sum(axis=1), rtol=2e-3)


def test_smooth_band_holds_for_a_calibrated_model():
    generator = np.random.default_rng(3)
    confidence = generator.uniform(0.5, 1, 1000)
    inside = []
    for _ in range(RNG_TRIALS):
        data = plots.prepare_smooth_reliability(
            confidence=confidence, correct=generator.random(1000) < confidence, bandwidth=0.04
        )
        at = (data.confidence > 0.55) & (data.confidence < 0.9)
        inside.append((np.abs(data.accuracy - data.confidence) <= data.spread)[at].mean())
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)


def test_smooth_curve_of_saturated_confidences():
    data = plots.prepare_smooth_reliability(confidence=np.ones(50), correct=np.arange(50) > 4)
    assert data.smece == pytest.approx(0.1)
    assert np.isfinite(data.accuracy[-1])
    perfect = plots.prepare_smooth_reliability(confidence=np.ones(50), correct=np.ones(50, bool))
    assert np.nanmax(np.abs(perfect.accuracy[-3:])) <= 1 + 1e-9
    assert np.isnan(perfect.accuracy[0])


def test_weights_count_as_repetitions(pairs):
    repeats = np.random.default_rng(4).integers(1, 4, len(pairs["confidence"]))
    repeated = {name: np.repeat(values, repeats) for name, values in pairs.items()}
    for prepare in (plots.prepare_reliability, plots.prepare_smooth_reliability, plots.prepare_confidence_histogram):
        options = {"n_resamples": 0} if prepare is plots.prepare_reliability else {}
        weighted = prepare(**pairs, sample_weight=repeats.astype(float), **options)
        plain = prepare(**repeated, **options)
        for name in ("share", "accuracy", "density"):
            if hasattr(plain, name):
                np.testing.assert_allclose(getattr(weighted, name), getattr(plain, name), atol=1e-9)


def test_risk_coverage(pairs):
    data = plots.prepare_risk_coverage(**pairs, level=0.9)
    assert data.aurc == selective.aurc(**pairs)
    assert data.augrc == selective.augrc(**pairs)
    bound = selective.uniform_risk_bound(**pairs, level=0.9, two_sided=False)
    np.testing.assert_array_equal(data.bound, bound.risk(high=data.curve.threshold))
    assert (data.bound > data.curve.risk).all()
    assert (data.best <= data.curve.risk + 1e-12).all()
    assert plots.prepare_risk_coverage(**pairs).bound is None
    with pytest.raises(ValueError, match="sample_weight must be None"):
        plots.prepare_risk_coverage(**pairs, sample_weight=np.ones(1500))


def test_bin_sweep(predictions):
    data = plots.prepare_bin_sweep(*predictions, n_resamples=40)
    np.testing.assert_array_equal(data.bins, [10, 20, 50, 100, 200, 500, 1000])
    np.testing.assert_allclose(data.ece, [metrics.ece(*predictions, bins=m) for m in data.bins])
    np.testing.assert_allclose(data.mce, [metrics.mce(*predictions, bins=m) for m in data.bins])
    assert (np.diff(data.ece_floor) > 0).all()
    assert np.isnan(plots.prepare_bin_sweep(*predictions, bins=[10], n_resamples=0).mce_floor).all()
    with pytest.raises(ValueError, match="got none"):
        plots.prepare_bin_sweep(*predictions, bins=[])


def test_confidence_map_knows_its_share():
    # Confidence 1 right of x = 0 and 1/2 left of it: the map spans [−1, 3] without margin.
    def predict(points):
        sure = points[:, :1] > 0
        return np.hstack([np.where(sure, 1.0, 0.5), np.where(sure, 0.0, 0.5)])

    X = np.array([[-1.0, 0.0], [3.0, 2.0]])
    data = plots.prepare_confidence_map(predict, X, [0, 1], margin=0, resolution=101)
    assert data.confidence.shape == (101, 101)
    assert data.share_above == pytest.approx(0.75, abs=0.01)
    assert data.chance == 0.5
    assert data.x[0] == -1
    assert data.y[-1] == 2
    as_tensors = plots.prepare_confidence_map(
        lambda points: torch.as_tensor(predict(points)), torch.as_tensor(X), margin=0, resolution=101
    )
    np.testing.assert_array_equal(as_tensors.confidence, data.confidence)
    assert as_tensors.labels is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.prepare_reliability([[0.5, 0.5]], [0], level=95), "must be a fraction"),
        (lambda: plots.prepare_smooth_reliability([[0.5, 0.5]], [0], level=95), "must be a fraction"),
        (lambda: plots.prepare_reliability([[0.5, 0.6]], [0]), "sum to 1"),
        (lambda: plots.prepare_confidence_map(lambda x: x, np.ones((0, 2))), r"at least one row; got \(0, 2\)"),
        (lambda: plots.prepare_confidence_map(lambda x: x, np.eye(3)), r"X must have shape \(n, 2\)"),
        (lambda: plots.prepare_confidence_map(lambda x: x, np.full((2, 2), np.nan)), "NaN"),
        (lambda: plots.prepare_confidence_map(lambda x: x, np.eye(2), resolution=1), "resolution"),
        (lambda: plots.prepare_confidence_map(lambda x: x * 0 + 0.5, np.eye(2), [0]), "2 entries"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
