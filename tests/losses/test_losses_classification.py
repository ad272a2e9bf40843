"""Tests of per-sample losses: formulas, two derivatives, and saturated networks."""

import pytest
import torch

from calibrant.base.classes import log_of_others
from calibrant.losses import brier, cross_entropy, focal, nll, smoothed_cross_entropy

CLASSES = 4


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.randn(12, CLASSES, dtype=torch.float64), torch.arange(12) % CLASSES


def test_by_hand(data):
    logits, labels = data
    epsilon = gamma = torch.linspace(0.0, 1.0, 12, dtype=torch.float64)
    for i, (row, y) in enumerate(zip(logits.softmax(1).tolist(), labels.tolist(), strict=True)):
        log = torch.tensor(row, dtype=torch.float64).log()
        target = [(1 - epsilon[i]) * (c == y) + epsilon[i] / CLASSES for c in range(CLASSES)]
        assert nll(logits, labels)[i] == pytest.approx(-log[y].item(), rel=1e-12)
        smoothed = -sum(t * v for t, v in zip(target, log, strict=True))
        assert smoothed_cross_entropy(logits, labels, epsilon)[i].item() == pytest.approx(smoothed.item(), rel=1e-12)
        score = sum((p - (c == y)) ** 2 for c, p in enumerate(row))
        assert brier(logits, labels)[i].item() == pytest.approx(score, rel=1e-12)
        expected = -((1 - row[y]) ** gamma[i]) * log[y]
        assert focal(logits, labels, gamma)[i].item() == pytest.approx(expected.item(), rel=1e-12)


def test_the_ends_of_the_parameters_are_cross_entropy(data):
    plain = cross_entropy(*data)
    assert torch.allclose(focal(*data, 0.0), plain, rtol=1e-14)
    assert torch.allclose(smoothed_cross_entropy(*data, 0.0), plain, rtol=1e-14)
    uniform = torch.full_like(data[0], 1 / CLASSES)
    assert torch.allclose(smoothed_cross_entropy(*data, 1.0), cross_entropy(data[0], uniform), rtol=1e-13)


def test_soft_targets_where_they_have_a_meaning(data):
    logits, labels = data
    soft = torch.nn.functional.one_hot(labels, CLASSES).double()
    for loss in (cross_entropy, brier):
        assert torch.allclose(loss(logits, labels), loss(logits, soft), rtol=1e-13)
        assert loss(logits, labels).shape == (12,)
    with pytest.raises(ValueError, match=r"one class index .* of shape \(12, 4\)"):
        focal(logits, soft, 1.0)


def test_gamma_and_epsilon_have_derivatives(data):
    logits, labels = data[0][:4].requires_grad_(), data[1][:4]
    value = torch.linspace(0.2, 3.0, 4, dtype=torch.float64, requires_grad=True)
    for loss in (focal, smoothed_cross_entropy):
        assert torch.autograd.gradcheck(lambda x, v, f=loss: f(x, labels, v), (logits, value))
        assert torch.autograd.gradgradcheck(lambda x, v, f=loss: f(x, labels, v), (logits, value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 5.0])
def test_focal_where_probabilities_round_to_one(gamma, dtype):
    """Right and wrong at odds of e^20, e^200, e^2000: values, slopes in logits and γ, and second slopes stay finite."""
    rows = [[20.0, 0.0, 1.0], [0.0, 200.0, 1.0], [2000.0, 0.0, 1.0]]
    logits = torch.tensor(rows, dtype=dtype, requires_grad=True)
    power = torch.full((3,), gamma, dtype=dtype, requires_grad=True)
    for labels in (torch.tensor([0, 1, 0]), torch.tensor([1, 2, 2])):
        losses = focal(logits, labels, power)
        first = torch.autograd.grad(losses.sum(), (logits, power), create_graph=True)
        second = torch.autograd.grad(sum(g.sum() for g in first), (logits, power))
        for tensor in (losses, *first, *second):
            assert torch.isfinite(tensor).all()
    assert losses[2].item() == pytest.approx(1999.0)  # wrong and sure: the cross-entropy, whatever γ


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_share_of_the_others_keeps_its_digits(dtype):
    logits = torch.tensor([[100.0, 0.0, 0.0]], dtype=dtype)
    found = log_of_others(logits, torch.tensor([0]))
    assert found.item() == pytest.approx(-100 + torch.log(torch.tensor(2.0)).item(), rel=1e-6)
