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


def one_cycle(
    lr: float | Tensor, steps: int, *, warmup: float = 0.3, initial: float = 25.0, final: float = 1e4
) -> Schedule:
    """Up from ``lr/initial`` to ``lr`` and down to ``lr/(initial·final)``, both along half a cosine (Smith 2018).

    ``warmup`` is the share of ``steps`` on the way up. The values are those of ``torch.optim.lr_scheduler.OneCycleLR``
    with its default arguments; after the last step the rate stays where it is.
    """
    check_rate("lr", lr)
    if not 0 < warmup < 1 or steps < 2:
        raise ValueError(f"warmup must lie between 0 and 1 and steps be at least 2; got {warmup} and {steps}.")
    if not (initial >= 1 and final >= 1):
        raise ValueError(f"initial and final divide the rate and must be at least 1; got {initial} and {final}.")
    low, lowest, top = lr / initial, lr / (initial * final), warmup * steps - 1

    def at(step: int) -> float | Tensor:
        position = min(step - 1, steps - 1)
        if position <= top:
            return _between(low, lr, position / top if top > 0 else 1.0)
        return _between(lr, lowest, (position - top) / (steps - 1 - top))

    return at


def _between(start: float | Tensor, end: float | Tensor, share: float) -> float | Tensor:
    """Half a cosine from ``start`` to ``end``."""
    return end + (start - end) * (0.5 * (1 + math.cos(math.pi * share)))


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
