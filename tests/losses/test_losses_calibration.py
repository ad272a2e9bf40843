"""Tests of SECE and DECE: against the metrics of the same definition, gradients, and their minimisers."""

import pytest
import torch

from calibrant import metrics
from calibrant.losses import dece, sece, soft_accuracy

CLASSES = 3
ERRORS = {"sece": sece, "dece": dece}


def draw(n=60, scale=2.0):
    torch.manual_seed(1)
    return scale * torch.randn(n, CLASSES, dtype=torch.float64), torch.randint(0, CLASSES, (n,))


@pytest.mark.parametrize("bandwidth", [0.01, 0.1])
def test_sece_with_hard_accuracy_is_the_metric(bandwidth):
    logits, labels = draw()
    expected = metrics.sece(logits.softmax(1), labels, bandwidth)
    assert sece(logits, labels, bandwidth=bandwidth, accuracy="hard").item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("bins", [5, 15])
def test_dece_with_sharp_bins_and_hard_accuracy_is_ece(bins):
    logits, labels = draw()
    expected = metrics.ece(logits.softmax(1), labels, bins)
    found = dece(logits, labels, bins=bins, temperature=1e-7, accuracy="hard")
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_dece_by_its_definition():
    """Bins with masses, accuracies and confidences, as Bohdal et al. write it."""
    logits, labels = draw()
    probs = logits.softmax(1)
    confidence, right = probs.amax(1), soft_accuracy(probs, labels)
    edges = torch.linspace(0, 1, 16, dtype=torch.float64)[:-1]
    share = torch.softmax((confidence[:, None] * torch.arange(1, 16) - edges.cumsum(0)) / 0.01, 1)
    mass = share.sum(0)
    accuracies, confidences = (share.T @ right) / mass, (share.T @ confidence) / mass
    expected = (mass / len(labels) * (accuracies - confidences).abs()).nansum()
    assert dece(logits, labels).item() == pytest.approx(expected.item(), rel=1e-10)


def test_soft_accuracy_is_hard_with_margin_and_half_when_tied():
    probs = torch.tensor([[0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [0.4, 0.4, 0.2]], dtype=torch.float64)
    assert soft_accuracy(probs, torch.tensor([0, 1, 1])).tolist() == pytest.approx([1.0, 0.0, 0.5], abs=1e-6)


@pytest.mark.parametrize("accuracy", ["soft", "hard"])
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_gradients(error, accuracy):
    logits, labels = draw(8, scale=0.5)
    assert torch.autograd.gradcheck(lambda x: error(x, labels, accuracy=accuracy), (logits.requires_grad_(),))


@pytest.mark.parametrize("accuracy", ["soft", "hard"])
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_weights_count_samples(error, accuracy):
    """A weight of 2 counts a sample twice, a weight of 0 leaves it out, and the scale of weights does not matter."""
    logits, labels = draw(10)
    weights = torch.tensor([2.0, 0, 1, 1, 1, 1, 0, 1, 1, 2], dtype=torch.float64)
    rows = torch.repeat_interleave(torch.arange(10), weights.long())
    expected = error(logits[rows], labels[rows], accuracy=accuracy).item()
    for scale in (1.0, 0.1):
        found = error(logits, labels, accuracy=accuracy, sample_weight=scale * weights)
        assert found.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_saturated_batches_have_a_value_and_a_slope(error):
    """All predictions right, or all wrong, at confidence 1."""
    logits = (200 * torch.eye(CLASSES)).requires_grad_()
    for labels, expected in ((torch.arange(CLASSES), 0.0), (torch.arange(CLASSES).roll(1), 1.0)):
        value = error(logits, labels)
        (slope,) = torch.autograd.grad(value, logits)
        assert value.item() == pytest.approx(expected, abs=1e-6)
        assert torch.isfinite(slope).all()


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_descent_on_the_error_finds_the_temperature(error):
    """Labels drawn from softmax(z), logits 3·z: following the slope of the scale leads back near 1."""
    torch.manual_seed(0)
    logits = torch.randn(600, CLASSES, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1).squeeze(1)
    log_scale = torch.tensor(3.0, dtype=torch.float64).log().requires_grad_()
    optimizer = torch.optim.Adam([log_scale], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        settings = {"bandwidth": 0.05} if error is sece else {}
        error(log_scale.exp() * logits, labels, accuracy="hard", **settings).backward()
        optimizer.step()
    assert 0.75 < log_scale.exp().item() < 1.3
