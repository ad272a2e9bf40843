"""Tests of the first paper's outer loss: formula, gradient, and probabilities near 0 and 1."""

import pytest
import torch
from scipy.special import lambertw

from calibrant.losses import confidence_bce, smooth_max


@pytest.mark.parametrize("classes", [2, 5, 100])
@pytest.mark.parametrize("alpha", [10.0, 30.0])
def test_smooth_max_stays_within_its_stated_gap(classes, alpha):
    """One class ahead of all others, by any margin, is the worst case: the gap is at most W((C − 1)/e)/α."""
    top = torch.linspace(1 / classes, 1, 4000, dtype=torch.float64)
    rest = ((1 - top) / (classes - 1)).unsqueeze(1).expand(-1, classes - 1)
    probs = torch.cat([top.unsqueeze(1), rest], 1)
    gap = probs.max(1).values - smooth_max(probs, alpha)
    bound = lambertw((classes - 1) / torch.e).real / alpha
    assert (gap >= -1e-12).all()
    assert gap.max() <= bound + 1e-12


def test_confidence_bce_is_equation_13():
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 4, dtype=torch.float64), torch.randint(0, 4, (50,))
    probs = logits.softmax(1)
    confidence = smooth_max(probs, 30.0)
    right = (probs.argmax(1) == labels).double()
    expected = -(right * confidence.log() + (1 - right) * (1 - confidence).log())
    assert torch.allclose(confidence_bce(logits, labels), expected, rtol=1e-10)


def test_confidence_bce_gradient():
    torch.manual_seed(0)
    logits = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 3, (8,))
    assert torch.autograd.gradcheck(lambda x: confidence_bce(x, labels), (logits,))
    assert torch.autograd.gradgradcheck(lambda x: confidence_bce(x, labels), (logits,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confidence_bce_is_finite_with_a_slope_at_high_confidence(dtype):
    """A wrong prediction at odds of e^40 costs 40 and still pushes back; a smaller α ends that at cost α."""
    logits = torch.tensor([[40.0, 0.0], [0.0, 40.0]], dtype=dtype, requires_grad=True)
    losses = confidence_bce(logits, torch.tensor([1, 1]), alpha=80.0)
    capped = confidence_bce(logits, torch.tensor([1, 1]), alpha=30.0)
    (slope,) = torch.autograd.grad(losses[0], logits, retain_graph=True)
    losses, capped = losses.tolist(), capped.tolist()
    assert losses[0] == pytest.approx(40.0, rel=1e-4)
    assert losses[1] == pytest.approx(0.0, abs=1e-6)
    assert capped[0] == pytest.approx(30.0, rel=1e-4)
    assert slope[0, 0].item() == pytest.approx(1.0, rel=1e-3)
