"""Tests of steps that are checked later: the error names the step that caused it."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from calibrant.bilevel import SGD, AdamW, Bilevel, Implicit, NonFiniteError, OneStep, Plain, SampleWeights
from calibrant.bilevel.compiled import Replay, can_replay
from calibrant.bilevel.compiled.cuda_graphs import Captured
from calibrant.bilevel.running.finite import STEPS_TOGETHER
from calibrant.bilevel.running.outer_step import outer_step
from calibrant.bilevel.running.run import Run
from tests.bilevel.loop_cases import Replaces


def started(rate: float) -> Run:
    """A run with the steps that a GPU would record."""
    torch.manual_seed(0)
    data = torch.randn(30, 2), torch.randint(0, 3, (30,))
    run = Run(Bilevel(nn.Linear(2, 3), train=data), Plain(1), SGD(rate), None, 1000)
    run.replay = Replay(run, record=False)
    return run


def take(run: Run, steps: int) -> None:
    for _ in range(steps):
        outer_step(run)


def test_a_failure_is_found_at_the_end():
    run = started(1e38)
    take(run, 5)
    with pytest.raises(NonFiniteError, match=r"inner (loss|parameter vector).*outer step [123]\b"):
        run.look()


def test_a_failure_is_found_on_the_way():
    run = started(1e38)
    with pytest.raises(NonFiniteError, match=r"outer step [123]\b"):
        take(run, 3 * STEPS_TOGETHER)


def test_a_failure_is_found_at_its_own_step():
    """Later steps have changed the parameters of the earlier ones, which were sound."""
    torch.manual_seed(0)
    data = torch.randn(30, 2), torch.randint(0, 3, (30,))
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    run = Run(Bilevel(net, train=data), Plain(1), SGD(lambda step: 0.1 if step < 20 else 1e38), None, 1000)
    run.replay = Replay(run, record=False)
    with pytest.raises(NonFiniteError, match=r"inner loss .*outer step 2[0-4]\b"):
        take(run, STEPS_TOGETHER)


def test_sound_steps_pass():
    run = started(0.1)
    take(run, 2 * STEPS_TOGETHER + 3)
    run.look()
    assert not run.deferred_finite_check.unread


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), AdamW(0.01, clip_norm=0.1)], ids=["momentum", "adamw"])
def test_plain_steps_in_fixed_memory_equal_ordinary_steps(optimizer):
    """Learning rates and step numbers come from tensors there, batches have two sizes, and a state is restored."""

    def trained(fixed: bool) -> torch.Tensor:
        torch.manual_seed(0)
        data = torch.randn(30, 2, dtype=torch.float64), torch.randint(0, 3, (30,))
        one = Bilevel(nn.Linear(2, 3).double(), train=data, batch_size=12)
        run = Run(one, Plain(2), optimizer, None, 1000, compile="graphs")
        if fixed:
            run.replay = Replay(run, record=False)
        take(run, 7)
        kept = run.state
        take(run, 3)
        if isinstance(optimizer, SGD):  # AdamW counts the steps of its state, and a recording those of the run
            run.state = kept
        take(run, 2)
        return run.state.params

    assert torch.allclose(trained(True), trained(False), rtol=0, atol=1e-12)


def test_seeded_steps_in_fixed_memory_can_be_repeated():
    """Dropout draws other numbers in each step, and the same ones in a second run and without fixed memory."""

    def losses(fixed: bool) -> torch.Tensor:
        torch.manual_seed(0)
        data = torch.randn(30, 2), torch.randint(0, 3, (30,))
        one = Bilevel(nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 3)), train=data)
        run = Run(one, Plain(1), SGD(0.0), None, 1000, compile="graphs")
        if fixed:
            run.replay = Replay(run, record=False)
        values = []
        for _ in range(4):
            outer_step(run)
            values.append(run.inner_losses)
        return torch.cat(values)

    first = losses(True)
    assert torch.equal(first, losses(True))
    assert torch.equal(first, losses(False))
    assert len(first.unique()) == 4


class Counts(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x)


class Drops(nn.Linear):
    """Decides on the CPU whether to run, like LayerDrop; a recording would repeat one decision."""

    def forward(self, x):
        return super().forward(x) * (0.0 if self.training and float(torch.rand((), device="cpu")) < 0.1 else 1.0)


@pytest.mark.parametrize(
    ("layer", "recordable"),
    [(nn.Linear, True), (nn.BatchNorm1d, True), (Counts, False), (Replaces, False), (Drops, False)],
)
def test_a_step_that_a_recording_would_freeze_is_not_recorded(layer, recordable):
    torch.manual_seed(0)
    data = torch.randn(30, 2), torch.randint(0, 2, (30,))
    first = layer(2) if layer is nn.BatchNorm1d else layer(2, 2)
    net = nn.Sequential(first, nn.Linear(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Run(Bilevel(net, train=data), Plain(2), SGD(0.1), None, 1000, compile="graphs")
    run.replay = Replay(run, record=False)
    run.replay.record = True  # as on a GPU; the first step does not need one
    take(run, 1)
    assert run.replay.record is recordable


class Twice(OneStep):
    """Trains twice from the first state, which a recorded step does not keep."""


@pytest.mark.parametrize(("hypergradient", "recorded"), [(OneStep(2), True), (Implicit(2), True), (Twice(2), False)])
def test_hypergradients_of_users_are_not_recorded(hypergradient, recorded):
    data = torch.randn(30, 2), torch.randint(0, 3, (30,))
    problem = Bilevel(nn.Linear(2, 3), SampleWeights(30), train=data, val=data)
    run = Run(problem, hypergradient, SGD(0.1), SGD(1.0), 1000)
    run.dynamics.params = SimpleNamespace(is_cuda=True)
    assert can_replay(run, "inductor") is recorded


def test_recordings_use_their_own_device_and_spare_other_threads(monkeypatch):
    seen = {}
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"a stream of {device}")
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **how: nullcontext(seen.update(how)))
    recorded = Captured(lambda x: [x + 1])
    for _ in range(3):
        recorded(torch.zeros(2, device="cpu"))
    assert recorded.graph is not None
    assert seen["stream"] == "a stream of cpu"
    assert seen["capture_error_mode"] == "thread_local"
