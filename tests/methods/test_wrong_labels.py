"""Tests of wrong labels: evidence for them, their share, and which they are."""

from types import SimpleNamespace

import pytest
import torch

from calibrant.methods import Samples
from calibrant.methods.crossfit.crossfit import CrossFit, flip_rate, labels_differ, wrong_label
from calibrant.methods.crossfit.folds import Fold


def met(wrong: tuple[int, int], weights: torch.Tensor | None = None) -> CrossFit:
    """A cross-fit on 700 training and 300 validation samples with ``wrong`` wrong predictions in each part."""
    labels = torch.zeros(1000, dtype=torch.long)
    logits = torch.tensor([[1.0, 0.0]]).repeat(1000, 1)
    for start, count in zip((0, 700), wrong, strict=True):
        logits[start : start + count] = torch.tensor([0.0, 1.0])
    rows = torch.arange(1000)
    network = SimpleNamespace(logits=lambda inputs: logits, params=logits)
    return CrossFit((network,), (Fold(rows[:0], rows, rows[:0]),), Samples(torch.zeros(1000, 1), labels, weights))


@pytest.mark.parametrize(("wrong", "differ"), [((8, 0), False), ((150, 30), True), ((90, 30), False)])
def test_labels_are_suspected_on_strong_evidence_only(wrong, differ):
    """Eight wrong predictions among 700, and none among 300, can be chance."""
    assert labels_differ(met(wrong), 700) == differ


@pytest.mark.parametrize(("weight", "differ"), [(1.0, True), (0.01, False)])
def test_doubtful_rows_that_hardly_count_raise_no_suspicion(weight, differ):
    weights = torch.ones(1000)
    weights[:200] = weight
    assert labels_differ(met((200, 0), weights), 700) == differ


def draw(rate: float, n: int = 20_000):
    """Probabilities of four classes, labels drawn from them and flipped at a rate, and which labels were flipped."""
    generator = torch.Generator().manual_seed(0)
    probs = (3 * torch.randn(n, 4, generator=generator, dtype=torch.float64)).softmax(1)
    truth = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    flipped = torch.rand(n, generator=generator) < rate
    shift = torch.randint(1, 4, (n,), generator=generator)
    labels = torch.where(flipped, (truth + shift) % 4, truth)
    return probs, labels, flipped


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.3, 0.6])
def test_the_rate_of_flipping_is_found(rate):
    probs, labels, _ = draw(rate)
    assert flip_rate(probs, labels) == pytest.approx(rate, abs=0.015)


def test_weights_decide_the_rate_and_their_scale_does_not():
    clean, noisy = draw(0.0), draw(0.4)
    probs, labels = (torch.cat(both) for both in zip(clean[:2], noisy[:2], strict=True))
    weights = (torch.arange(len(labels)) >= len(clean[1])) + 1e-6
    assert flip_rate(probs, labels, weights) == pytest.approx(0.4, abs=0.015)
    assert flip_rate(probs, labels, 7 * weights) == pytest.approx(flip_rate(probs, labels, weights), abs=1e-6)


def test_the_suspicion_is_a_probability_that_can_be_believed():
    probs, labels, flipped = draw(0.3)
    suspicion = wrong_label(probs, labels, 0.3)
    for low in (0.0, 0.2, 0.5, 0.9):
        rows = (suspicion >= low) & (suspicion < low + 0.1)
        assert suspicion[rows].mean().item() == pytest.approx(flipped[rows].double().mean().item(), abs=0.05)


def test_an_impossible_label_is_wrong_a_certain_one_is_not():
    probs = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    labels = torch.tensor([1, 0, 0])
    assert wrong_label(probs, labels, 0.1)[:2].tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    assert wrong_label(probs, labels, 0.0)[1:].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
