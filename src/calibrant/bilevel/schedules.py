"""Learning-rate schedules: functions that return ``step -> learning rate``, to be given as an optimiser's ``lr``.

Steps count from 1, as in :meth:`calibrant.bilevel.Optimizer.update`. ``lr`` is a number, or a tensor with one value per
member of a population. The values are those of ``torch.optim.lr_scheduler``, but in closed form: a schedule has no
state, so a run is resumed at any step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from calibrant.bilevel.optimizers import check_rate

Schedule = Callable[[int], float | Tensor]


def cosine(lr: float | Tensor, steps: int, warmup: int = 0, final: float | Tensor = 0.0) -> Schedule:
    """Half a cosine from ``lr`` down to ``final`` (SGDR without restarts, Loshchilov & Hutter 2017), after a warm-up.

    ``lr·t/(warmup + 1)`` at steps ``t ≤ warmup``; then, with ``u = (t − 1 − warmup)/(steps − warmup)``,
    ``final + (lr − final)·(1 + cos πu)/2``; and ``final`` after the last of ``steps`` (torch's would rise again).
    """
    check_rate("lr", lr)
    check_rate("final", final)
    if not 0 <= warmup < steps:
        raise ValueError(f"warmup must lie between 0 and steps - 1 = {steps - 1}; got {warmup}.")

    def at(step: int) -> float | Tensor:
        if step <= warmup:
            return lr * (step / (warmup + 1))
        done = min((step - 1 - warmup) / (steps - warmup), 1.0)
        return final + (lr - final) * (0.5 * (1 + math.cos(math.pi * done)))

    return at


def multistep(lr: float | Tensor, milestones: Sequence[int], factor: float = 0.1) -> Schedule:
    """``lr·factor^k`` at step ``t``, with ``k`` the number of ``milestones`` ``≤ t − 1``.

    A milestone of 100 thus leaves 100 steps at the old rate.
    """
    check_rate("lr", lr)
    _check_factor(factor)
    if any(m < 1 for m in milestones):
        raise ValueError(f"Milestones are numbers of steps taken, at least 1; got {list(milestones)}.")
    return lambda step: lr * factor ** sum(m < step for m in milestones)


def exponential(lr: float | Tensor, factor: float) -> Schedule:
    """``lr·factor^(t − 1)`` at step ``t``."""
    check_rate("lr", lr)
    _check_factor(factor)
    return lambda step: lr * factor ** (step - 1)


def _check_factor(factor: float) -> None:
    if not factor > 0:
        raise ValueError(f"factor must be positive; got {factor}.")
