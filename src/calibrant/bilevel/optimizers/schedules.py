"""Learning-rate schedules: functions ``step -> learning rate``, passed as an optimiser's ``learning_rate``.

Steps count from 1, as in :meth:`calibrant.bilevel.Optimizer.update`. ``learning_rate`` (η below) is a number, or a
tensor with one value per member of a population. The values equal those of ``torch.optim.lr_scheduler``, in closed
form: a schedule has no state, so a run can resume at any step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from calibrant.bilevel.optimizers.base import check_rate

Schedule = Callable[[int], float | Tensor]


def cosine(learning_rate: float | Tensor, steps: int, warmup: int = 0, final: float | Tensor = 0.0) -> Schedule:
    """Half a cosine from η down to ``final`` (SGDR without restarts, Loshchilov & Hutter 2017), after a warm-up.

    ``warmup`` is a number of steps, and ``final`` is a rate. (In :func:`one_cycle` they are a share of the steps and a
    factor.)

    The rate is ``η·t/(warmup + 1)`` at steps ``t ≤ warmup``. After that it is ``final + (η − final)·(1 + cos πu)/2``
    with ``u = (t − 1 − warmup)/(steps − warmup)``. After the last step it stays at ``final``; torch's rises again.
    """
    check_rate("learning_rate", learning_rate)
    check_rate("final", final)
    if not 0 <= warmup < steps:
        raise ValueError(f"warmup must be between 0 and steps - 1 = {steps - 1}; got {warmup}.")

    def at(step: int) -> float | Tensor:
        if step <= warmup:
            return learning_rate * (step / (warmup + 1))
        done = min((step - 1 - warmup) / (steps - warmup), 1.0)
        return final + (learning_rate - final) * (0.5 * (1 + math.cos(math.pi * done)))

    return at


def one_cycle(
    learning_rate: float | Tensor, steps: int, *, warmup: float = 0.3, initial: float = 25.0, final: float = 1e4
) -> Schedule:
    """Up from ``η/initial`` to η and down to ``η/(initial·final)``, both along half a cosine (Smith 2018).

    ``warmup`` is the share of ``steps`` on the way up, and ``initial`` and ``final`` divide the rate. The values equal
    those of ``torch.optim.lr_scheduler.OneCycleLR`` with its default arguments. After the last step the rate stays
    constant.
    """
    check_rate("learning_rate", learning_rate)
    if not 0 < warmup < 1 or steps < 2:
        raise ValueError(f"warmup must be between 0 and 1 and steps at least 2; got {warmup=} and {steps=}.")
    if not (initial >= 1 and final >= 1):
        raise ValueError(f"initial and final must be at least 1, since they divide the rate; got {initial=}, {final=}.")
    low, lowest, top = learning_rate / initial, learning_rate / (initial * final), warmup * steps - 1

    def at(step: int) -> float | Tensor:
        position = min(step - 1, steps - 1)
        if position <= top:
            return _between(low, learning_rate, position / top if top > 0 else 1.0)
        return _between(learning_rate, lowest, (position - top) / (steps - 1 - top))

    return at


def _between(start: float | Tensor, end: float | Tensor, share: float) -> float | Tensor:
    """Half a cosine from ``start`` to ``end``."""
    return end + (start - end) * (0.5 * (1 + math.cos(math.pi * share)))


def multistep(learning_rate: float | Tensor, milestones: Sequence[int], factor: float = 0.1) -> Schedule:
    """``η·factor^k`` at step ``t``, where ``k`` is the number of ``milestones`` that are at most ``t − 1``.

    With a milestone of 100, the first 100 steps use the old rate.
    """
    check_rate("learning_rate", learning_rate)
    if not factor > 0:
        raise ValueError(f"factor must be positive; got {factor}.")
    if any(m < 1 for m in milestones):
        raise ValueError(f"milestones must be numbers of steps, at least 1 each; got {list(milestones)}.")
    return lambda step: learning_rate * factor ** sum(m < step for m in milestones)
