"""The rule by which a method is chosen where none is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.methods import Calibrated, CrossFitted, Part, Standard, Task, default_method
from calibrant.methods.confidence import LearnedConfidence
from calibrant.methods.default import BEST, PLAIN
from calibrant.methods.loaded import as_part
from calibrant.metrics import nll


def part(n):
    return Part(torch.zeros(n, 2), torch.arange(n) % 2)


def test_small_data_in_memory_get_folds_and_everything_else_one_network():
    net = nn.Linear(2, 2)
    small, large = Task(part(20), part(10), 2), Task(part(5000), part(10), 2)
    assert isinstance(default_method(net, small), CrossFitted)
    chosen = default_method(net, large)
    assert isinstance(chosen, Calibrated)
    assert isinstance(chosen.base, LearnedConfidence)
    assert chosen.base.recipe.epochs == 31  # 1,200 steps of 39 in an epoch, and at least 20 epochs
    assert default_method(net, Task(part(128 * 100), part(10), 2)).base.recipe.epochs == 20
    assert isinstance(default_method(net, Task(part(5000), None, 2)), Standard)
    loader = as_part(DataLoader(TensorDataset(torch.zeros(20, 2), torch.arange(20) % 2)), net)
    assert default_method(net, Task(loader, part(10), 2)) == Calibrated("temperature", BEST)


def test_a_trained_network_is_not_drawn_anew():
    frozen, seen = nn.Linear(2, 2), nn.BatchNorm1d(2)
    frozen.bias.requires_grad_(False)
    seen(torch.randn(4, 2))
    for net in (frozen, seen):
        assert isinstance(default_method(net, Task(part(20), part(10), 2)), Calibrated)


class NoHead(nn.Module):
    """The logits are a product of two layers' outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.a(x) * self.b(x)


def test_without_a_head_or_with_a_trained_network_large_data_get_plain_training():
    plain = Calibrated("temperature", BEST)
    large = Task(part(5000), part(10), 2)
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    frozen[0].weight.requires_grad_(False)
    for net in (NoHead(), frozen):
        assert default_method(net, large) == plain
    assert isinstance(default_method(lambda seed: nn.Linear(2, 2), large).base, LearnedConfidence)


class Recurrent(nn.Module):
    """An LSTM and a linear layer on its last state."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.lstm, self.fc = nn.LSTM(2, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


def sequences(count, generator):
    """Pairs of numbers; the class depends on the sum of their products, under noise."""
    x = torch.randn(count, 6, 2, generator=generator)
    total = (x[..., 0] * x[..., 1]).sum(1) + torch.randn(count, generator=generator)
    return x, torch.bucketize(total, torch.tensor([-1.0, 1.0]))


def rows(count, generator):
    """Ten numbers, four of them of any use; the class is drawn from a softmax."""
    x = torch.randn(count, 10, generator=generator)
    noise = -torch.log(-torch.log(torch.rand(count, 3, generator=generator)))
    return x, (2 * torch.tanh(x[:, :3]) + x[:, 1:4] + noise).argmax(1)


def perceptron(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 3))


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "model"), [(rows, perceptron), (sequences, Recurrent)])
def test_the_default_for_large_data_is_no_worse_than_plain_training(draw, model):
    generator = torch.Generator().manual_seed(0)
    train, val, test = (draw(count, generator) for count in (4200, 800, 4000))
    default, plain = (calibrant.fit(model(0), train, val, method=method) for method in (None, PLAIN))
    assert float(nll(default.probs(test[0]), test[1])) <= float(nll(plain.probs(test[0]), test[1]))
