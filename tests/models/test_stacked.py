"""The mean of perceptrons that are evaluated together equals the mean of the modules' logits."""

import copy

import pytest
import torch
from torch import nn

from calibrant.models.architectures import stacked
from calibrant.models.architectures.mlp import make_encoding, mlp
from calibrant.models.architectures.stacked import MeanPerceptron, Perceptron

ROWS = torch.randn(70, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def network(seed, rows=None, **settings):
    """A perceptron whose weights, including those of the embedding of ``rows``, are random."""
    encoding = None if rows is None else make_encoding(rows)
    found = mlp(5, 3, encoding=encoding, seed=seed, **settings).double()
    if rows is not None:
        nn.init.normal_(found[0].embedded.weight, generator=torch.Generator().manual_seed(seed))
    return found


def turned(seed):
    """A perceptron of rows that were rotated to four columns."""
    turn = nn.Linear(5, 4, bias=False).double()
    turn.weight.data = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed % 2))
    return nn.Sequential(turn, mlp(4, 3, hidden=(6,), seed=seed).double())


CASES = {
    "plain": ([network(k) for k in range(3)], 1),
    "no hidden layer": ([network(k, hidden=()) for k in range(2)], 1),
    "an embedding without hidden layers": ([network(k, ROWS, hidden=()) for k in range(2)], 1),
    "three hidden layers": ([network(k, hidden=(4, 5, 6), activation="tanh") for k in range(2)], 1),
    "one encoding for all": ([network(k, ROWS, activation="silu") for k in range(3)], 1),
    "an encoding for each": ([network(k, ROWS + k) for k in range(2)], 2),
    "two rotations": ([turned(k) for k in range(4)], 2),
    "several kinds": ([network(0, ROWS), network(1), network(2, ROWS), network(3, hidden=(8,))], 3),
}


@pytest.mark.parametrize(("modules", "stacks"), CASES.values(), ids=CASES)
def test_the_mean_equals_that_of_the_modules(modules, stacks, monkeypatch):
    """For each kind of perceptron, with unequal shares and several blocks of rows, the last one smaller."""
    monkeypatch.setattr(stacked, "ROWS", 16)
    shares = [1.0 + k for k in range(len(modules))]
    found = MeanPerceptron.of(modules, shares)
    expected = sum(share * module(ROWS) for share, module in zip(shares, modules, strict=True)) / sum(shares)
    assert len(found.stacks) == stacks
    torch.testing.assert_close(found.logits(ROWS), expected.detach(), rtol=1e-12, atol=1e-12)
    assert found.logits(ROWS[:0]).shape == (0, 3)


def test_float32_weights_take_rows_of_any_precision():
    modules = [network(k, ROWS).float() for k in range(2)]
    found = MeanPerceptron.of(modules, [1.0, 1.0])
    expected = sum(copy.deepcopy(module).double()(ROWS) for module in modules) / 2
    assert found.logits(ROWS).dtype == torch.float64
    torch.testing.assert_close(found.logits(ROWS), expected.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv1d(3, 3, 1),
        nn.Sequential(nn.Linear(5, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)),
        nn.Sequential(),
    ],
    ids=["convolution", "last activation", "other activation", "dropout", "no bias", "empty"],
)
def test_other_modules_are_not_perceptrons(module):
    assert Perceptron.of(module) is None
    assert MeanPerceptron.of([network(0), module], [1.0, 1.0]) is None
