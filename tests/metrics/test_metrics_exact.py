"""Tests of metrics against values computed by hand."""

import math

import numpy as np
import pytest
import torch
from metrics_cases import name_of

from calibrant import metrics

CONFIDENCE = [0.2, 0.4, 0.6, 0.8, 1.0]
CORRECT = [False, True, True, False, True]
PAIRS = {"confidence": np.array(CONFIDENCE), "correct": np.array(CORRECT)}
# each confidence is the upper edge of its own bin of width 1/5: gaps −0.2, 0.6, 0.4, −0.8, 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("norm", "value"), [("l1", 2.0 / 5), ("l2", math.sqrt(1.2 / 5)), ("max", 0.8)], ids=["l1", "l2", "max"]
)
def test_ece_by_hand(dtype, norm, value):
    confidence = np.array(CONFIDENCE, dtype=dtype)
    got = metrics.ece(confidence=confidence, correct=np.array(CORRECT), bins=5, norm=norm)
    assert got == pytest.approx(value, abs=1e-7 if dtype == np.float32 else 1e-15)


def test_mce_and_signed_parts_by_hand():
    assert metrics.mce(bins=5, **PAIRS) == pytest.approx(0.8)
    assert metrics.overconfidence(bins=5, **PAIRS) == pytest.approx(0.2)
    assert metrics.underconfidence(bins=5, **PAIRS) == pytest.approx(0.2)
    assert metrics.confidence_gap(**PAIRS) == pytest.approx(0.0, abs=1e-15)


def test_bins_are_open_below_and_closed_above():
    # 0.5 belongs with 0.1 to (0, 1/2], not with 0.9; were it above, the error would be 0.1
    got = metrics.ece(confidence=np.array([0.1, 0.5, 0.9]), correct=np.array([0, 1, 1]), bins=2)
    assert got == pytest.approx((abs(1 - 0.6) + 0.1) / 3)


def test_zero_and_one_fall_in_the_outer_bins():
    table = metrics.reliability_bins(confidence=np.array([0.0, 0.05, 0.95, 1.0]), correct=[0, 0, 1, 1], bins=10)
    assert table.share[0] == 0.5
    assert table.share[9] == 0.5
    assert table.accuracy[9] == 1.0
    assert table.accuracy[4].isnan()


@pytest.mark.parametrize("bins", [1, 3, 7, 10, 15, 49, 100, 1000, 7919])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_edge_and_its_neighbours_are_binned_exactly(bins, dtype):
    from calibrant.metrics.bins import bin_edges, bin_index

    edges = bin_edges(torch.zeros(1, dtype=dtype), bins, "width")
    up, down = (torch.nextafter(edges, torch.full_like(edges, to)) for to in (2.0, -1.0))
    values = torch.cat([edges, up[:-1], down, torch.zeros(1, dtype=dtype), torch.tensor([1e-38], dtype=dtype)])
    assert torch.equal(bin_index(values, edges, "width").long(), torch.bucketize(values, edges))


def test_equal_mass_by_hand():
    # quantiles {0.1, 0.2}, {0.3, 0.9}: gaps 0.5 − 0.15 and 1 − 0.6
    got = metrics.ace(confidence=np.array([0.9, 0.1, 0.3, 0.2]), correct=np.array([1, 0, 1, 1]), bins=2)
    assert got == pytest.approx((0.35 + 0.4) / 2)


def test_equal_confidences_share_an_equal_mass_bin():
    confidence = np.array([0.7] * 6 + [0.9] * 2)
    correct = np.array([1, 1, 1, 0, 0, 0, 1, 1])
    expected = (6 * 0.2 + 2 * 0.1) / 8
    for order in ([0, 1, 2, 3, 4, 5, 6, 7], [3, 6, 0, 5, 1, 4, 7, 2]):
        got = metrics.ace(confidence=confidence[order], correct=correct[order], bins=4)
        assert got == pytest.approx(expected)


def test_debiased_l2_by_hand():
    # two bins of two: gap² − acc(1 − acc)/(n − 1) is 0.09 − 0.25 and 0.01 − 0; the sum is cut off at 0
    pair = {"confidence": np.array([0.2, 0.2, 0.9, 0.9]), "correct": np.array([0, 1, 1, 1]), "bins": 2}
    assert metrics.ece(norm="l2", **pair) == pytest.approx(math.sqrt(0.05))
    assert metrics.ece(norm="l2", debias=True, **pair) == 0.0
    certain = {"confidence": np.array([0.2, 0.2, 0.9, 0.9]), "correct": np.array([0, 0, 1, 1]), "bins": 2}
    assert metrics.ece(norm="l2", debias=True, **certain) == pytest.approx(metrics.ece(norm="l2", **certain))


def test_classwise_by_hand():
    probs = np.array([[0.8, 0.2], [0.4, 0.6]])
    # class 0: 0.8 against 1 and 0.4 against 1, separate bins; class 1: 0.2 and 0.6 against 0
    assert metrics.classwise_ece(probs, [0, 0], bins=5) == pytest.approx(0.4)
    np.testing.assert_allclose(metrics.classwise_ece(probs, [0, 0], bins=5, average=None), [0.4, 0.4])


def test_proper_scores_by_hand():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    assert metrics.nll(probs, [0, 1]) == pytest.approx(-(math.log(0.7) + math.log(0.1)) / 2)
    assert metrics.brier(probs, [0, 1]) == pytest.approx((0.09 + 0.04 + 0.01 + 0.01 + 0.81 + 0.64) / 2)
    assert metrics.accuracy(probs, [0, 1]) == 0.5
    pair = {"confidence": np.array([0.7, 0.8]), "correct": np.array([1, 0])}
    assert metrics.nll(**pair) == pytest.approx(-(math.log(0.7) + math.log(0.2)) / 2)
    assert metrics.brier(**pair) == pytest.approx((0.09 + 0.64) / 2)


def test_nll_of_logits_does_not_underflow():
    logits = np.array([[0.0, 1000.0]])
    assert metrics.nll(logits, [0], from_logits=True) == pytest.approx(1000.0)
    assert metrics.nll(np.array([[0.0, 1.0]]), [0]) == math.inf


def test_zero_weight_removes_an_infinite_loss():
    assert metrics.nll(np.array([[0.0, 1.0], [0.5, 0.5]]), [0, 0], sample_weight=[0, 1]) == pytest.approx(math.log(2))


def test_share_below_chance():
    assert metrics.share_below_chance(confidence=np.array([0.1, 0.3, 0.5, 0.9]), n_classes=4) == 0.25
    uniform = np.full((5, 7), 1 / 7, dtype=np.float32)
    assert metrics.share_below_chance(uniform) == 0.0
    assert metrics.share_below_chance(np.log(uniform), from_logits=True) == 0.0
    assert metrics.share_below_chance(confidence=np.array([0.1, 0.9]), n_classes=2, sample_weight=[3, 1]) == 0.75


def test_binary_probabilities_mean_what_is_said():
    p, y = np.array([0.1, 0.2, 0.7]), np.array([0, 1, 1])
    assert metrics.confidence_gap(p, y, binary="positive") == pytest.approx(p.mean() - y.mean())
    assert metrics.confidence_gap(p, y, binary="predicted") == pytest.approx((0.9 + 0.8 + 0.7) / 3 - 2 / 3)
    columns = np.stack([1 - p, p], axis=1)
    for metric in (metrics.ece, metrics.smooth_ece, metrics.accuracy):
        assert metric(p, y, binary="predicted") == pytest.approx(metric(columns, y)), name_of(metric)
    assert metrics.brier(p, y, binary="positive") == pytest.approx(metrics.brier(columns, y) / 2)
    assert metrics.nll(p, y, binary="positive") == pytest.approx(metrics.nll(columns, y))
    z = np.log(p / (1 - p))
    assert metrics.ece(z, y, binary="positive", from_logits=True) == pytest.approx(metrics.ece(p, y, binary="positive"))


def test_a_tie_between_two_classes_goes_to_the_first():
    assert metrics.accuracy(np.array([[0.5, 0.5]]), [0]) == 1.0
    assert metrics.accuracy(np.array([0.5]), np.array([0]), binary="predicted") == 1.0


def test_sece_by_hand():
    # two predictions 0.01 apart, h = 0.01: kernel weight exp(−1/2) for the neighbour
    w = math.exp(-0.5)
    pair = {"confidence": np.array([0.5, 0.51]), "correct": np.array([1, 0])}
    first, second = 1 / (1 + w), w / (1 + w)
    assert metrics.sece(**pair) == pytest.approx((abs(first - 0.5) + abs(second - 0.51)) / 2)
    assert metrics.sece(leave_one_out=True, **pair) == pytest.approx((0.5 + 0.49) / 2)


def test_kde_full_by_hand():
    # leaving one out, each of two points sees only the other's label
    probs = np.array([[0.9, 0.1], [0.8, 0.2]])
    assert metrics.kde_ece(probs, [0, 1], mode="full") == pytest.approx((0.9 + 0.9 + 0.2 + 0.2) / 2)
    assert metrics.kde_ece(probs, [0, 1], d=2, mode="full") == pytest.approx((2 * 0.81 + 2 * 0.04) / 2)


def test_brier_decomposition_adds_up():
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(3), 300)
    labels = rng.integers(0, 3, 300)
    for arguments in ((probs, labels), (probs[:, 0], labels == 0)):
        given = {"binary": "positive"} if arguments[0].ndim == 1 else {}
        parts = metrics.brier_decomposition(*arguments, sample_weight=rng.random(300), **given)
        assert parts.score == pytest.approx(parts.calibration + parts.refinement, abs=1e-12)
        assert parts.refinement == pytest.approx(parts.uncertainty - parts.resolution, abs=1e-12)
        assert parts.calibration >= 0


def test_brier_decomposition_by_hand():
    # forecasts 0.2 (freq 1/2) and 0.9 (freq 1): calibration mean of 0.09 and 0.01, refinement mean of 1/4 and 0
    pair = {"confidence": np.array([0.2, 0.2, 0.9, 0.9]), "correct": np.array([0, 1, 1, 1])}
    parts = metrics.brier_decomposition(**pair)
    assert parts.calibration == pytest.approx(0.05)
    assert parts.refinement == pytest.approx(0.125)
    assert parts.uncertainty == pytest.approx(3 / 16)


def test_groups_by_hand():
    result = metrics.accuracy(**PAIRS, groups=["x", "x", "y", "y", "y"])
    assert dict(result) == {"x": 0.5, "y": pytest.approx(2 / 3)}
    assert result.overall == 0.6
    assert result.counts == {"x": 2, "y": 3}
    assert result.spread == pytest.approx(1 / 6)
    assert "n=3" in repr(result)
