"""Tests of smECE and the kernel estimates against direct sums over all pairs."""

import numpy as np
import pytest
import torch
from metrics_cases import random_pairs, random_probs

from calibrant import metrics
from calibrant.metrics import kernel


def reflected_kernel(t, centres, sigma, images=6):
    """Gaussian kernel on [0, 1] with mirror images at both ends, shape (len(t), len(centres))."""
    total = 0.0
    for shift in range(-images, images + 1):
        for image in (2 * shift + centres, 2 * shift - centres):
            total = total + np.exp(-((t[:, None] - image) ** 2) / (2 * sigma**2))
    return total / (np.sqrt(2 * np.pi) * sigma)


def direct_smece(confidence, correct, sigma, weight=None):
    t = np.linspace(0, 1, 8001)
    weight = np.full(len(confidence), 1 / len(confidence)) if weight is None else weight / weight.sum()
    residual = reflected_kernel(t, confidence, sigma) @ (weight * (correct - confidence))
    return np.trapezoid(np.abs(residual), t)


def saturated_pairs(n=200, seed=3):
    confidence, _ = random_pairs(n, seed)
    confidence[: n // 3], confidence[-n // 10 :] = 1.0, 0.0
    return confidence, np.random.default_rng(seed).random(n) < 0.1 + 0.8 * confidence


@pytest.mark.parametrize("sigma", [0.01, 0.03, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("pairs", [random_pairs(200), saturated_pairs()], ids=["inside", "saturated"])
def test_fixed_bandwidth_follows_the_definition(sigma, pairs):
    confidence, correct = pairs
    for weight in (None, np.random.default_rng(0).random(200)):
        got = metrics.smooth_ece(confidence=confidence, correct=correct, bandwidth=sigma, sample_weight=weight)
        assert got == pytest.approx(direct_smece(confidence, correct, sigma, weight), abs=1e-6)


@pytest.mark.parametrize("pairs", [random_pairs(200), saturated_pairs()], ids=["inside", "saturated"])
def test_the_value_is_its_own_bandwidth(pairs):
    confidence, correct = pairs
    value = metrics.smooth_ece(confidence=confidence, correct=correct)
    assert direct_smece(confidence, correct, value) == pytest.approx(value, abs=1e-6)


def test_mass_at_exactly_one_is_kept():
    # all at confidence 1, half of them right: the residual is −1/2 wherever it is smoothed to
    correct = np.arange(10) % 2 == 0
    assert metrics.smooth_ece(confidence=np.ones(10), correct=correct) == pytest.approx(0.5, abs=1e-9)
    assert metrics.smooth_ece(confidence=np.zeros(10), correct=correct) == pytest.approx(0.5, abs=1e-9)
    near = metrics.smooth_ece(confidence=np.full(10, 1 - 1e-6), correct=correct)
    assert near == pytest.approx(0.5, abs=1e-5)


def test_bandwidths_far_wider_than_the_interval():
    confidence, correct = random_pairs(200)
    given = {"confidence": confidence, "correct": correct}
    # everything is smeared evenly: of smECE the overall gap is left, of the KDE a flat density and the accuracy
    gap, rate = abs(metrics.confidence_gap(**given)), correct.mean()
    assert metrics.smooth_ece(**given, bandwidth=1e4) == pytest.approx(gap, abs=1e-9)
    assert metrics.kde_ece(**given, bandwidth=1e4) == pytest.approx((rate**2 + (1 - rate) ** 2) / 2, abs=1e-6)


def test_extremes_of_smece():
    assert metrics.smooth_ece(confidence=np.ones(5), correct=np.ones(5)) == 0.0
    assert metrics.smooth_ece(confidence=np.ones(5), correct=np.zeros(5)) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="bandwidth must be finite and at least"):
        metrics.smooth_ece(confidence=np.ones(5), correct=np.ones(5), bandwidth=0.0)


@pytest.mark.parametrize("d", [1, 1.5, 2])
def test_kde_top_follows_its_integral(d):
    confidence, correct = saturated_pairs()
    h = 0.05
    t = np.linspace(0, 1, 8001)
    weights = reflected_kernel(t, confidence, h) / len(confidence)
    density, hits = weights.sum(axis=1), weights @ correct
    expected = np.trapezoid(np.abs(t - hits / density) ** d * density, t)
    got = metrics.kde_ece(confidence=confidence, correct=correct, d=d, bandwidth=h)
    assert got == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_kde_full_follows_its_sum(leave_one_out):
    probs, labels = random_probs(150, 3)
    square = ((probs[:, None] - probs[None]) ** 2).sum(axis=2)
    weights = np.exp(-square / (2 * 0.1**2)) * (1 - leave_one_out * np.eye(150))
    frequency = weights @ np.eye(3)[labels] / weights.sum(axis=1, keepdims=True)
    expected = np.abs(probs - frequency).sum(axis=1).mean()
    got = metrics.kde_ece(probs, labels, mode="full", bandwidth=0.1, leave_one_out=leave_one_out)
    assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_sece_follows_its_sum(leave_one_out, weighted):
    confidence, correct = saturated_pairs()
    weight = np.random.default_rng(5).random(200) if weighted else np.ones(200)
    weights = np.exp(-((confidence[:, None] - confidence) ** 2) / (2 * 0.02**2)) * weight
    weights = weights * (1 - leave_one_out * np.eye(200))
    expected = np.average(np.abs(weights @ correct / weights.sum(axis=1) - confidence), weights=weight)
    got = metrics.sece(
        confidence=confidence,
        correct=correct,
        bandwidth=0.02,
        leave_one_out=leave_one_out,
        sample_weight=weight if weighted else None,
    )
    assert got == pytest.approx(expected, abs=1e-12)


def test_sece_through_the_grid_agrees_with_all_pairs(monkeypatch):
    confidence, correct = saturated_pairs(1500)
    weight = np.random.default_rng(5).random(1500)
    for given in ({}, {"sample_weight": weight}, {"bandwidth": 0.3}):
        exact = metrics.sece(confidence=confidence, correct=correct, **given)
        monkeypatch.setattr(kernel, "PAIRWISE_LIMIT", 10)
        assert metrics.sece(confidence=confidence, correct=correct, **given) == pytest.approx(exact, abs=2e-6)
        monkeypatch.undo()


def test_pieces_do_not_change_the_sum(monkeypatch):
    confidence, correct = saturated_pairs()
    for leave_one_out in (False, True):
        given = {"confidence": confidence, "correct": correct, "leave_one_out": leave_one_out}
        whole = metrics.sece(**given)
        monkeypatch.setattr(kernel, "PAIRS_AT_ONCE", 1000)
        assert metrics.sece(**given) == pytest.approx(whole, abs=1e-14)
        monkeypatch.undo()


def test_nadaraya_watson_is_differentiable():
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(8, generator=generator, dtype=torch.float64)
    points[1] = points[0]  # coinciding points must not give a NaN gradient
    values = torch.rand(8, generator=generator, dtype=torch.float64)
    points.requires_grad_()
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda z, v: kernel.nadaraya_watson(z, v, 0.1), (points, values))


def test_far_points_do_not_underflow():
    points = torch.tensor([0.0, 1.0], dtype=torch.float64)
    got = kernel.nadaraya_watson(points, torch.tensor([0.0, 1.0]), 1e-4, leave_out=torch.tensor([0, 1]))
    assert got.tolist() == [1.0, 0.0]
