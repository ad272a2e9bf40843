"""Tests of agreement with other libraries, where they are correct."""

import numpy as np
import pytest
import torch
from metrics_cases import random_pairs, random_probs
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from calibrant import metrics

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("bins", [10, 15])
def test_torchmetrics(seed, norm, bins):
    classification = pytest.importorskip("torchmetrics.functional.classification")
    probs, labels = (torch.from_numpy(x) for x in random_probs(seed=seed))
    theirs = classification.multiclass_calibration_error(probs, labels, 4, n_bins=bins, norm=norm).item()
    assert metrics.ece(probs, labels, bins=bins, norm=norm) == pytest.approx(theirs, abs=1e-6)
    confidence, correct = (torch.from_numpy(x) for x in random_pairs(seed=seed))
    theirs = classification.binary_calibration_error(confidence, correct.long(), n_bins=bins, norm=norm).item()
    assert metrics.ece(confidence=confidence, correct=correct, bins=bins, norm=norm) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_netcal(seed):
    theirs = pytest.importorskip("netcal.metrics")
    probs, labels = random_probs(seed=seed)
    assert metrics.ece(probs, labels) == pytest.approx(theirs.ECE(15).measure(probs, labels), abs=1e-6)
    assert metrics.mce(probs, labels) == pytest.approx(theirs.MCE(15).measure(probs, labels), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_uncertainty_calibration(seed):
    theirs = pytest.importorskip("calibration")
    probs, labels = random_probs(seed=seed)  # 600 rows: 15 bins of exactly 40
    assert metrics.ece(probs, labels) == pytest.approx(theirs.get_ece(probs, labels), abs=1e-6)
    assert metrics.ace(probs, labels) == pytest.approx(theirs.get_ece_em(probs, labels), abs=1e-6)
    unbiased = theirs.lower_bound_scaling_ce(probs, labels, p=2, debias=True, mode="top-label")
    assert metrics.ece(probs, labels, scheme="mass", norm="l2", debias=True) == pytest.approx(unbiased, abs=1e-6)
    marginal = theirs.get_ece(probs, labels, mode="marginal")
    assert metrics.classwise_ece(probs, labels) == pytest.approx(marginal, abs=1e-6)
    marginal = theirs.get_ece_em(probs, labels, mode="marginal")
    assert metrics.classwise_ece(probs, labels, scheme="mass") == pytest.approx(marginal, abs=1e-6)


def test_uncertainty_calibration_debiased_l1():
    theirs = pytest.importorskip("calibration")
    probs, labels = random_probs()
    np.random.seed(0)  # noqa: NPY002 (theirs draws from the global state)
    draws = [theirs.get_ece_em(probs, labels, debias=True) for _ in range(3)]
    assert metrics.ace(probs, labels, debias=True) == pytest.approx(np.mean(draws), abs=1e-3)


@pytest.mark.parametrize("sigma", [0.03, 0.1])
def test_relplot_kernel_on_a_fine_grid(sigma):
    # relplot's default grid is off by about 1e-4; its own kernel on a finer one is not
    kernels = pytest.importorskip("relplot.kernels")
    confidence, correct = random_pairs(400)
    keep = (confidence > 0.2) & (confidence < 0.8)  # away from the ends, where its reflection loses mass
    confidence, residual = confidence[keep], (correct - confidence)[keep]
    t = np.linspace(0, 1, 8001)
    smoothed = kernels.ReflectedGaussianKernel(sigma).apply(confidence, residual, t, eval_points=16_001)
    theirs = np.trapezoid(np.abs(smoothed), t) / len(confidence)
    ours = metrics.smooth_ece(confidence=confidence, correct=correct[keep], bandwidth=sigma)
    assert ours == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_relplot_as_it_is(seed):
    relplot = pytest.importorskip("relplot")
    confidence, correct = random_pairs(2000, seed)
    theirs = relplot.smECE(confidence, correct.astype(float))
    assert metrics.smooth_ece(confidence=confidence, correct=correct) == pytest.approx(theirs, abs=1.5e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_scikit_learn(seed):
    probs, labels = random_probs(seed=seed)
    weight = np.random.default_rng(seed).random(len(labels))
    for given in ({}, {"sample_weight": weight}):
        assert metrics.nll(probs, labels, **given) == pytest.approx(log_loss(labels, probs, **given), abs=1e-6)
        theirs = accuracy_score(labels, probs.argmax(axis=1), **given)
        assert metrics.accuracy(probs, labels, **given) == pytest.approx(theirs, abs=1e-6)
        binary = brier_score_loss(labels == 0, probs[:, 0], **given)
        assert metrics.brier(probs[:, 0], labels == 0, binary="positive", **given) == pytest.approx(binary, abs=1e-6)


def test_reliability_bins_against_scikit_learn():
    confidence, correct = random_pairs(601)
    accuracy, mean = calibration_curve(correct, confidence, n_bins=20, strategy="uniform")
    table = metrics.reliability_bins(confidence=confidence, correct=correct, bins=20)
    filled = table.share > 0
    np.testing.assert_allclose(table.accuracy[filled], accuracy, atol=1e-6)
    np.testing.assert_allclose(table.confidence[filled], mean, atol=1e-6)
    # scikit-learn's quantile edges open the next bin and interpolate, so its bins of equal mass differ by a sample
    order = np.argsort(confidence)[:600].reshape(20, 30)
    pairs = {"confidence": confidence[order.ravel()], "correct": correct[order.ravel()]}
    table = metrics.reliability_bins(**pairs, bins=20, scheme="mass")
    np.testing.assert_allclose(table.accuracy, correct[order].mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(table.confidence, confidence[order].mean(axis=1), atol=1e-12)
