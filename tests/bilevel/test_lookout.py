"""Tests of steps that are checked later: the error names the step that caused it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.bilevel import SGD, Bilevel, NonFiniteError, Plain
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
