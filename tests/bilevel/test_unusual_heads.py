"""Tests of hypergradients of the head for unusual networks and batches: random numbers, other heads, several sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.bilevel import L2, SGD, Adam, Bilevel, Direct, Implicit, LogitMap, OneStep
from calibrant.bilevel.compiled import cuda_graphs as replay
from calibrant.bilevel.compiled.cuda_graphs import Captured
from calibrant.bilevel.gradients.head import FeatureMemory
from calibrant.bilevel.running.outer_step import outer_step
from calibrant.bilevel.running.run import Run
from calibrant.bilevel.variables.logits import BehindMap
from calibrant.data.streams.batch import Batch
from calibrant.losses import cross_entropy

from . import test_heads
from .test_heads import CLASSES, VAL, Gamma, Net, data, gamma_loss, problem, steps


class Noisy(Net):
    """A network that draws its own random numbers in the body, like attention with dropout."""

    def forward(self, x):
        keep = torch.bernoulli(torch.full((len(x), 1), 0.5, dtype=x.dtype)) if self.training else 1
        return self.fc(torch.tanh(self.norm(self.conv(x))).mean((2, 3)) * keep)


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_a_body_that_draws_random_numbers_can_be_shared(first, monkeypatch):
    monkeypatch.setattr(test_heads, "Net", Noisy)
    shared = problem()
    assert shared.stochastic
    state = torch.get_rng_state()
    one, two = (steps(shared, OneStep(2, scope="head", first=first), in_place=way) for way in (True, False))
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(one.phi, two.phi, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(one.state.params, two.state.params, rtol=1e-10, atol=1e-11)
    solved = [steps(problem(), Implicit(2, "head")).phi for _ in range(2)]
    assert torch.equal(*solved)
    assert not torch.equal(solved[0], shared.initial_phi())


class NoisyHead(nn.Module):
    """A head that draws random numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, h):
        return self.layer(h + torch.randn_like(h))


def test_a_head_that_draws_random_numbers_cannot_be_solved():
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 4), NoisyHead()).double()
    one = Bilevel(model, L2(model), **data(), batch_size=8, val_batch_size=5, head="2")
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="the head may draw random numbers"):
        steps(one, Implicit(2, "head"))
    assert torch.equal(state, torch.get_rng_state())


class Cosine(nn.Module):
    """A head that is not a linear layer, with dropout."""

    def __init__(self):
        super().__init__()
        self.dropout, self.weight = nn.Dropout(0.2), nn.Parameter(torch.randn(CLASSES, 4))

    def forward(self, h):
        return 5 * nn.functional.normalize(self.dropout(h)) @ nn.functional.normalize(self.weight).T


@pytest.mark.parametrize("hypergradient", [Implicit(2, "head"), OneStep(2, scope="head")], ids=repr)
def test_a_named_head_is_used_by_losses_of_features(hypergradient):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 4), nn.ReLU(), Cosine()).double()
    settings = {"batch_size": 8, "val_batch_size": 5, "inner_loss": gamma_loss}
    one = Bilevel(model, Gamma(), **data(), **settings, head="3")
    assert one.head.name == "3"
    assert not torch.equal(steps(one, hypergradient).phi, one.initial_phi())
    with pytest.raises(ValueError, match=r"head='3' \(Cosine\)"):
        Bilevel(model, Gamma(), **data(), **settings)


def test_a_direct_gradient_needs_no_head():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, CLASSES), nn.LogSoftmax(1)).double()
    settings = {"outer_loss": BehindMap(cross_entropy), "batch_size": 8, "val_batch_size": 5}
    one = Bilevel(model, LogitMap(4, samples=VAL), **data(), **settings)
    in_place, pure = (steps(one, Direct(2), in_place=way).phi for way in (True, False))
    torch.testing.assert_close(in_place, pure, rtol=1e-10, atol=1e-12)
    assert not torch.equal(pure, one.initial_phi())


def test_features_of_batches_of_several_sizes_are_kept():
    """The last batch of a loader is often smaller, and sentences are padded batch by batch."""
    memory = FeatureMemory(3)
    for rows, width in ((4, 5), (4, 5), (2, 7), (4, 5), (4, 6)):
        batch = Batch(torch.zeros(rows, width), torch.full((rows,), rows))
        memory.add(batch, torch.full((rows, 2), float(width)))
    batch, features = memory.joined()
    assert batch.inputs is None
    assert batch.targets.tolist() == [2] * 2 + [4] * 8
    assert features[:, 0].tolist() == [7.0] * 2 + [5.0] * 4 + [6.0] * 4


@pytest.mark.parametrize("size", [8, 5], ids=["equal batches", "a smaller last batch"])
def test_a_recorded_step_writes_to_the_tensors_of_the_memory(size, monkeypatch):
    """Without a GPU: which tensors a recording would write to, and whether one would be used."""
    used = []

    class Recorded(Captured):
        def __call__(self, *tensors):
            before = kept()
            found = super().__call__(*tensors)
            if self.calls > 2:  # recorded in the third call and replayed after it
                self.written = getattr(self, "written", before)
                assert before == self.written == kept()
                used.append(self.calls)
            return found

    def kept():
        return [id(features) for _, features in run.head.memory.kept]

    monkeypatch.setattr(replay, "Captured", Recorded)
    hypergradient = Implicit(1, scope="head", batches=2)
    run, eager = (Run(problem("weights", batch_size=size), hypergradient, SGD(0.3), Adam(0.05), 12) for _ in range(2))
    run.replay = replay.Replay(run, record=False)
    for _ in range(12):
        outer_step(run)
        outer_step(eager)
    torch.testing.assert_close(run.phi, eager.phi, rtol=1e-6, atol=1e-8)
    assert bool(used) == (size == 8)
    assert len(run.replay._recorded) <= 2
