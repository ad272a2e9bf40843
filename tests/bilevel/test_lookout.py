"""Tests of steps that are checked later: the error names the step that caused it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.bilevel import SGD, AdamW, Bilevel, NonFiniteError, Plain
from calibrant.bilevel.compiled import Replay
from calibrant.bilevel.running.finite import STEPS_TOGETHER
from calibrant.bilevel.running.outer_step import outer_step
from calibrant.bilevel.running.run import Run


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


def test_sound_steps_pass():
    run = started(0.1)
    take(run, 2 * STEPS_TOGETHER + 3)
    run.look()
    assert not run.deferred_finite_check.unread


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), AdamW(0.01, clip_norm=0.1)], ids=["momentum", "adamw"])
def test_plain_steps_in_fixed_memory_equal_ordinary_steps(optimizer):
    """Learning rates and step numbers come from tensors there, and batches have two sizes."""

    def trained(fixed: bool) -> torch.Tensor:
        torch.manual_seed(0)
        data = torch.randn(30, 2, dtype=torch.float64), torch.randint(0, 3, (30,))
        one = Bilevel(nn.Linear(2, 3).double(), train=data, batch_size=12)
        run = Run(one, Plain(2), optimizer, None, 1000)
        if fixed:
            run.replay = Replay(run, record=False, masks=False)
        take(run, 7)
        return run.state.params

    assert torch.allclose(trained(True), trained(False), rtol=0, atol=1e-14)


def test_seeded_steps_in_fixed_memory_can_be_repeated():
    """Dropout draws other numbers in each step, and the same ones in a second run."""

    def losses() -> torch.Tensor:
        torch.manual_seed(0)
        data = torch.randn(30, 2), torch.randint(0, 3, (30,))
        run = Run(Bilevel(nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 3)), train=data), Plain(1), SGD(0.0), None, 1000)
        run.replay = Replay(run, record=False, masks=False)
        values = []
        for _ in range(4):
            outer_step(run)
            values.append(run.inner_losses)
        return torch.cat(values)

    first = losses()
    assert torch.equal(first, losses())
    assert len(first.unique()) == 4
