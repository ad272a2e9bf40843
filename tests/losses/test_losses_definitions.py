"""Tests of each loss against its published formula, written as loops, or against a defining property."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant import metrics
from calibrant.losses import (
    avuc,
    binary_discrimination,
    binary_exclusion,
    cross_entropy,
    dual_focal,
    entropy,
    flsd,
    focal,
    focal_gamma,
    focal_slope,
    logit_margin,
    mdca,
    mmce,
    negative_entropy,
    sece,
    smoothed_cross_entropy,
    soft_binned_avuc,
    soft_binned_ece,
)
from calibrant.losses.trainable import confidence_and_right

LOGITS = arrays(np.float64, (1, 5), elements=st.floats(-30, 30))


def draw(rows=30, classes=4, scale=1.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, classes, (rows,), generator=generator)


@given(LOGITS, st.integers(0, 4), st.floats(0, 20))
def test_focal_is_at_least_cross_entropy_minus_gamma_times_entropy(logits, label, gamma):
    """Eq. (1) of the second paper, for every γ ≥ 0: L ≥ CE − γ·H(p)."""
    logits, labels = torch.from_numpy(logits), torch.tensor([label])
    bound = cross_entropy(logits, labels) - gamma * entropy(logits)
    assert (focal(logits, labels, gamma) >= bound - 1e-9 * (1 + bound.abs())).all()


@pytest.mark.parametrize("p0", [0.01, 0.1, 0.2, 0.25, 0.3, 0.45])
def test_gamma_of_a_confidence_gives_both_losses_one_slope(p0):
    """Slopes in the label's logit, two classes: equal at p0, and focal's smaller above it."""
    gamma = focal_gamma(p0)
    assert gamma > 0

    def slopes(p):
        logit = torch.tensor(math.log(p / (1 - p)), dtype=torch.float64, requires_grad=True)
        logits, label = torch.stack([logit, torch.zeros_like(logit)])[None], torch.tensor([0])
        losses = focal(logits, label, gamma), cross_entropy(logits, label)
        return [torch.autograd.grad(value.sum(), logit, retain_graph=True)[0].abs().item() for value in losses]

    ours, plain = slopes(p0)
    assert ours == pytest.approx(plain, rel=1e-8)
    above, below = slopes(min(1.2 * p0, 0.9)), slopes(0.8 * p0)
    assert above[0] < above[1]
    assert below[0] > below[1]


def test_the_gammas_of_flsd_53_are_those_of_its_confidences():
    """Mukhoti et al. round them to 5 and 3."""
    assert round(focal_gamma(0.2)) == 5
    assert round(focal_gamma(0.25)) == 3
    for several in (np.array([0.2, 0.25]), [0.2, 0.25], torch.tensor([0.2, 0.25])):
        assert focal_gamma(several).shape == (2,)
    assert isinstance(focal_gamma(np.float64(0.2)), float)
    for outside in (0.0, 0.5, 0.9):
        with pytest.raises(ValueError, match="strictly between"):
            focal_gamma(outside)


@pytest.mark.parametrize("p0", [1e-300, 1e-18, 1e-9, 1e-3])
def test_gamma_of_a_very_small_confidence(p0):
    """(1 − p)^γ·(1 − γ·p·log p/(1 − p)) = 1 at p = p0, the definition of this γ, with 1 − p0 rounded to 1."""
    gamma = focal_gamma(p0)
    factor = math.exp(gamma * math.log1p(-p0)) * (1 - gamma * p0 * math.log(p0) / (1 - p0))
    assert factor == pytest.approx(1, rel=1e-9)


def test_flsd_takes_5_below_a_fifth_and_3_elsewhere():
    logits, labels = draw(200)
    p = (-cross_entropy(logits, labels)).exp()
    gamma = torch.where(p < 0.2, 5.0, 3.0)
    assert 0 < (p < 0.2).sum() < 200
    torch.testing.assert_close(flsd(logits, labels), focal(logits, labels, gamma))


def test_dual_focal_by_its_definition():
    logits, labels = draw(200)
    for z, y, found in zip(logits, labels, dual_focal(logits, labels, 3.0), strict=True):
        p = z.softmax(0)
        smaller = [q for q in p.tolist() if q < p[y]]
        expected = -((1 - p[y] + (max(smaller) if smaller else 0)) ** 3) * p[y].log()
        assert found.item() == pytest.approx(expected.item(), rel=1e-9)


def test_the_confidence_penalty_rewards_entropy():
    """Added to a loss it must be lowest for the uniform distribution, and −log C there."""
    flat, sure = torch.zeros(1, 4, dtype=torch.float64), torch.tensor([[9.0, 0, 0, 0]], dtype=torch.float64)
    assert negative_entropy(flat).item() == pytest.approx(-math.log(4))
    assert negative_entropy(flat) < negative_entropy(sure) < 0


@pytest.mark.parametrize("margin", [0.0, 1.0, 10.0])
def test_the_margin_penalty_by_its_definition(margin):
    logits, _ = draw(scale=6.0)
    for z, found in zip(logits.tolist(), logit_margin(logits, margin=margin), strict=True):
        expected = sum(max(0.0, max(z) - value - margin) for value in z) / 4
        assert found.item() == pytest.approx(expected)


def test_without_a_margin_the_slope_is_that_of_label_smoothing():
    """Where the label has the largest logit."""
    logits, labels = draw()
    logits = logits.scatter(1, labels[:, None], 10.0).requires_grad_()
    penalised = cross_entropy(logits, labels) + 0.1 * logit_margin(logits, margin=0.0)
    smoothed = smoothed_cross_entropy(logits, labels, 0.1)
    slopes = [torch.autograd.grad(loss.sum(), logits)[0] for loss in (penalised, smoothed)]
    torch.testing.assert_close(slopes[0], slopes[1])


def test_pairwise_losses_by_their_definitions():
    logits, labels = draw()
    for z, y, bdc, bec in zip(
        logits.tolist(),
        labels.tolist(),
        binary_discrimination(logits, labels),
        binary_exclusion(logits, labels),
        strict=True,
    ):
        others = [k for k in range(4) if k != y]
        log_sigmoid = lambda x: -math.log1p(math.exp(-x))  # noqa: E731
        assert bdc.item() == pytest.approx(-sum(log_sigmoid(z[y] - z[k]) for k in others) / 3)
        pairs = [log_sigmoid(z[i] - z[j]) / 2 for i in others for j in others if i != j]
        assert bec.item() == pytest.approx(-sum(pairs) / (3 * 2))


def test_exclusion_is_smallest_if_others_agree_and_zero_for_two():
    level = torch.tensor([[3.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    tilted = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    label = torch.tensor([0])
    assert binary_exclusion(level, label).item() == pytest.approx(math.log(2) / 2)
    assert binary_exclusion(level, label) < binary_exclusion(tilted, label)
    assert binary_exclusion(level[:, :2], label).item() == 0


def test_mmce_is_the_metric():
    logits, labels = draw(200)
    assert mmce(logits, labels).item() == pytest.approx(metrics.mmce(logits.softmax(1), labels), rel=1e-9)


def test_weighted_mmce_by_its_definition():
    logits, labels = draw()
    confidence, right = (t.tolist() for t in confidence_and_right(logits, labels))
    hits, misses = ([k for k in range(30) if right[k] == value] for value in (1, 0))
    assert hits
    assert misses
    kernel = lambda i, j: math.exp(-abs(confidence[i] - confidence[j]) / 0.4)  # noqa: E731
    total = sum(confidence[i] * confidence[j] * kernel(i, j) for i in misses for j in misses) / len(misses) ** 2
    total += sum((1 - confidence[i]) * (1 - confidence[j]) * kernel(i, j) for i in hits for j in hits) / len(hits) ** 2
    cross = sum((1 - confidence[i]) * confidence[j] * kernel(i, j) for i in hits for j in misses)
    total -= 2 * cross / (len(hits) * len(misses))
    assert mmce(logits, labels, weighted=True).item() == pytest.approx(math.sqrt(total), rel=1e-9)


def test_mdca_by_its_definition_for_labels_and_soft_targets():
    logits, labels = draw()
    p = logits.softmax(1)
    shares = [abs(p[:, c].mean() - (labels == c).double().mean()).item() for c in range(4)]
    assert mdca(logits, labels).item() == pytest.approx(sum(shares) / 4)
    assert mdca(logits, torch.eye(4, dtype=torch.float64)[labels]).item() == pytest.approx(sum(shares) / 4)


@pytest.mark.parametrize("order", [1, 2])
def test_soft_binned_ece_by_its_definition(order):
    logits, labels = draw()
    confidence, right = confidence_and_right(logits, labels)
    centres = torch.tensor([(k + 0.5) / 15 for k in range(15)], dtype=torch.float64)
    member = torch.softmax(-((confidence[:, None] - centres) ** 2) / 0.01, 1)
    mass = member.sum(0)
    gap = (member.T @ right - member.T @ confidence) / mass
    expected = ((mass / 30 * gap.abs() ** order).sum()) ** (1 / order)
    assert soft_binned_ece(logits, labels, order=order).item() == pytest.approx(expected.item(), rel=1e-9)


def test_soft_binned_ece_with_sharp_bins_is_ece():
    logits, labels = draw(200)
    found = soft_binned_ece(logits, labels, temperature=1e-7, order=1)
    assert found.item() == pytest.approx(metrics.ece(logits.softmax(1), labels, 15), rel=1e-6)


@pytest.mark.parametrize("threshold", [None, 0.9])
def test_avuc_by_its_definition(threshold):
    logits, labels = draw(60)
    confidence, right = (t.tolist() for t in confidence_and_right(logits, labels))
    u = entropy(logits).tolist()
    if threshold is None:
        means = [np.mean([v for v, r in zip(u, right, strict=True) if r == value]) for value in (0, 1)]
    limit = threshold or sum(means) / 2
    counts = {"AC": 0.0, "AU": 0.0, "IC": 0.0, "IU": 0.0}
    for p, r, v in zip(confidence, right, u, strict=True):
        key = ("A" if r else "I") + ("U" if v > limit else "C")
        counts[key] += (p if r else 1 - p) * (math.tanh(v) if v > limit else 1 - math.tanh(v))
    assert all(counts.values())
    expected = math.log(1 + (counts["AU"] + counts["IC"]) / (counts["AC"] + counts["IU"]))
    assert avuc(logits, labels, threshold=threshold).item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_avuc_counts_equal_predictions_as_certain(dtype):
    """Their entropies do not exceed their mean, however the mean is rounded."""
    for rows, classes in itertools.product((3, 7, 64, 100, 300), (3, 7, 10)):
        logits, labels = draw(1, classes, seed=classes)
        logits, labels = logits.to(dtype).expand(rows, -1), torch.arange(rows) % classes
        expected = avuc(logits, labels, threshold=2 * math.log(classes))
        torch.testing.assert_close(avuc(logits, labels), expected)


def test_soft_binned_avuc_by_its_definition():
    logits, labels = draw(60)
    _, right = (t.tolist() for t in confidence_and_right(logits, labels))
    good = bad = 0.0
    for r, v in zip(right, entropy(logits).tolist(), strict=True):
        h = v / math.log(4)
        t = 1 / (1 + (h * 0.7 / ((1 - h) * 0.3)) ** (-1 / 0.2))
        uncertain, certain = t * math.tanh(v), (1 - t) * (1 - math.tanh(v))
        good, bad = (good + certain, bad + uncertain) if r else (good + uncertain, bad + certain)
    found = soft_binned_avuc(logits, labels, threshold=0.3, temperature=0.2)
    assert found.item() == pytest.approx(math.log(1 + bad / good), rel=1e-8)


@pytest.mark.parametrize("accuracy", ["soft", "hard"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("rows", [1, 7, 29])
def test_sece_in_blocks_equals_the_dense_form_with_its_slopes(rows, order, weighted, accuracy):
    logits, labels = draw(30)
    weights = torch.linspace(0, 2, 30, dtype=torch.float64) if weighted else None
    settings = {"bandwidth": 0.05, "order": order, "sample_weight": weights, "accuracy": accuracy}
    logits.requires_grad_()
    dense, blocks = sece(logits, labels, **settings), sece(logits, labels, rows=rows, **settings)
    torch.testing.assert_close(blocks, dense)
    slopes = [torch.autograd.grad(value, logits, create_graph=True)[0] for value in (dense, blocks)]
    torch.testing.assert_close(slopes[1], slopes[0])
    seconds = [torch.autograd.grad(slope.square().sum(), logits)[0] for slope in slopes]
    torch.testing.assert_close(seconds[1], seconds[0])


def test_sece_in_blocks_under_vmap():
    pairs = [draw(20, seed=k) for k in range(3)]
    logits, labels = (torch.stack(part) for part in zip(*pairs, strict=True))
    slope = torch.func.grad(lambda z, y, rows: sece(z, y, rows=rows, bandwidth=0.1))
    found = torch.func.vmap(lambda z, y: slope(z, y, 6))(logits, labels)
    for own, (z, y) in zip(found, pairs, strict=True):
        torch.testing.assert_close(own, slope(z, y, 1024))


def test_sece_in_blocks_keeps_one_block_of_pairs():
    """What autograd saves for the backward pass grows with n, not with n²."""

    def saved(rows):
        numbers = []
        logits, labels = draw(400)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: numbers.append(t.numel()) or t, lambda t: t):
            sece(logits.requires_grad_(), labels, rows=rows)
        return max(numbers)

    assert saved(1024) >= 400**2
    assert saved(50) <= 400 * 4


def test_the_squared_form_is_the_gaps_mean_square():
    """One sample of confidence c and accuracy a: gap a − c alone."""
    logits, label = torch.tensor([[2.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    first = sece(logits, label, accuracy="hard")
    torch.testing.assert_close(sece(logits, label, accuracy="hard", order=2), first.square())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0])
def test_focal_slope_is_the_ratio_of_gradients(gamma):
    logits = torch.linspace(-30, 30, 61, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.0])
    logits.requires_grad_()
    labels = torch.zeros(61, dtype=torch.long)
    slopes = [
        torch.autograd.grad(loss.sum(), logits)[0][:, 0]
        for loss in (focal(logits, labels, gamma), cross_entropy(logits, labels))
    ]
    torch.testing.assert_close(focal_slope(logits, labels, gamma) * slopes[1], slopes[0])
    extreme = torch.tensor([[1e4, 0.0], [-1e4, 0.0]])
    assert torch.isfinite(focal_slope(extreme, torch.zeros(2, dtype=torch.long), gamma)).all()
