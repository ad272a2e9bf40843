"""Whole outer steps of one problem as CUDA graphs.

A step of a medium-sized network is hundreds of short kernels, and launching them takes longer than running them. The
state of a single problem lies in fixed memory while it trains (:mod:`calibrant.bilevel.native`), so an outer step, with
its training steps, the hypergradient and the move of φ, can be recorded once and replayed with one launch. Batches,
learning rates and step numbers are copied in; losses, φ and the state are copied out.

Recording freezes what Python decides in a step, as tracing does (:mod:`calibrant.bilevel.tracing`). Where a step cannot
be recorded (it waits for the GPU, or draws random numbers), it goes on as before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from calibrant.bilevel.capture import Captured
from calibrant.bilevel.dynamics import Dynamics, State
from calibrant.bilevel.hypergradients import Estimate
from calibrant.bilevel.hypergradients import Problem as View
from calibrant.bilevel.optimizers import SGD, Adam, Linearization, Moments, Optimizer
from calibrant.data.batch import Batch

if TYPE_CHECKING:
    from calibrant.bilevel.run import Run


class Outcome(NamedTuple):
    """What an outer step ended with: the estimate, the hypergradient that moved φ, and everything after the move."""

    estimate: Estimate
    gradient: Tensor | None
    phi: Tensor
    moments: Moments
    state: State
    inner_losses: list[Tensor]


class Clock(NamedTuple):
    """Step numbers and learning rates on the device: entry 0 counts the steps taken, entry k is the rate of step k."""

    numbers: Tensor

    def time(self, step: int) -> Tensor:
        """The number of a step, counted from 1 since the beginning of the run."""
        return self.numbers[0] + step

    def rate(self, step: int) -> Tensor:
        """The learning rate of a step of this recording."""
        return self.numbers[step]


@dataclass(frozen=True)
class Timed(Optimizer):
    """An optimiser that reads its learning rate and the number of the step from a clock."""

    lr: Any = 0.0
    base: Optimizer = field(default=SGD(0.0), kw_only=True)
    clock: Clock | None = field(default=None, kw_only=True)

    def on(self, stretch: slice) -> Timed:
        return _with(self, base=self.base.on(stretch))

    @property
    def decay(self) -> float | Tensor:
        return self.base.decay

    def init(self, params: Tensor) -> Moments:
        return self.base.init(params)

    def update(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> tuple[Tensor, Moments]:
        return self._at(step).update(params, moments, grad, self._time(step))

    def update_(self, params: Tensor, moments: Moments, grad: Tensor, step: int) -> None:
        self._at(step).update_(params, moments, grad, self._time(step))

    def pull(self, at: Linearization, d_params: Tensor, d_moments: Moments) -> tuple[Tensor, Moments, Tensor]:
        timed = Linearization(at.params, at.moments, at.new_moments, at.grad, self._time(at.step))
        return self._at(at.step).pull(timed, d_params, d_moments)

    def stationary_decay(self) -> float | Tensor:
        return self.base.stationary_decay()

    def _at(self, step: int) -> Optimizer:
        assert self.clock is not None
        return _with(self.base, lr=self.clock.rate(step))

    def _time(self, step: int) -> Any:
        assert self.clock is not None
        return self.clock.time(step)


def _with(optimizer: Any, **values: Any) -> Any:
    """A copy with other values, unchecked: looking at a tensor on a GPU would wait for it."""
    twin = copy.copy(optimizer)
    for name, value in values.items():
        object.__setattr__(twin, name, value)
    return twin


def can_replay(run: Run, compile: str | None) -> bool:
    """Whether the outer steps of a run can be recorded."""
    trainer, outer = run.dynamics.trainer, run.outer_optimizer
    return (
        compile == "inductor"
        and trainer is not None
        and run.state.params.is_cuda
        and not run.restart
        and not run.problem.moves_start
        and not run.problem.stochastic  # type: ignore[union-attr]
        and type(run.dynamics.optimizer) in _KNOWN
        and (outer is None or type(outer) in _KNOWN)
    )


_KNOWN = (SGD, Adam)


class Replay:
    """The outer steps of a run, recorded for each kind of step and each shape of batches."""

    def __init__(self, run: Run, compute: Callable[..., Outcome]) -> None:
        self.run, self.compute = run, compute
        trainer = run.dynamics.trainer
        assert trainer is not None
        self.trainer = trainer
        self.phi = run.phi.clone()
        self.moments = tuple(m.clone() for m in run.outer_moments)
        self._recorded: dict[Any, Captured] = {}
        self._last: Tensor | None = None

    def __call__(self) -> Outcome:
        """One outer step."""
        run, trainer = self.run, self.trainer
        hypergradient, taken = run.present, run.step * run.present.steps
        train = [run.problem.train_batch(taken + k) for k in range(hypergradient.steps)]
        val = [run.problem.val_batch(run.step)] if hypergradient.moves else []
        leaves, structure = pytree.tree_flatten([batch._replace(seed=None) for batch in train + val])
        constants = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        memory = 0 if run.features is None else len(run.features)
        forms = tuple((t.shape, t.dtype) for t in tensors)
        key = (hypergradient.moves, memory, str(structure), str(constants), forms)
        if key not in self._recorded:
            self._recorded[key] = Captured(_Step(self, structure, constants, hypergradient.steps))
        if not run.deferred:
            trainer.load(run.state)
        if run.phi is not self._last:
            self.phi.copy_(run.phi)
            for own, given in zip(self.moments, run.outer_moments, strict=True):
                own.copy_(given)
        inner, outer = self._numbers(taken, hypergradient.steps)
        results = self._recorded[key](inner, outer, *tensors)
        return self._outcome(results, taken + hypergradient.steps, hypergradient.moves)

    def _numbers(self, taken: int, steps: int) -> tuple[Tensor, Tensor]:
        """The clocks of both levels, sent without waiting."""
        run = self.run
        inner = [float(taken), *(_rate(run.dynamics.optimizer, taken + k + 1) for k in range(steps))]
        outer = [0.0, 0.0]
        if run.outer_optimizer is not None:
            outer = [float(run.step), _rate(run.outer_optimizer, run.step + 1)]
        numbers = torch.tensor(inner + outer, dtype=torch.float64)
        if self.trainer.params.is_cuda:
            numbers = numbers.pin_memory().to(self.trainer.params.device, non_blocking=True)
        return numbers[: len(inner)], numbers[len(inner) :]

    def _outcome(self, results: Any, step: int, moves: bool) -> Outcome:
        inner_losses, loss, gradient, moved, ahead = results
        state = self.trainer.live(step)
        phi, moments = self.run.phi, self.run.outer_moments
        if moves:
            phi, moments = self.phi.clone(), tuple(m.clone() for m in self.moments)
        self._last = phi
        losses = list(inner_losses.unbind())
        seen = list(ahead.unbind()) if ahead is not None else []
        return Outcome(Estimate(loss, gradient, seen, state), moved, phi, moments, state, losses)


class _Step:
    """The function that is recorded: one outer step on tensors in fixed places."""

    def __init__(self, replay: Replay, structure: Any, constants: list[Any], steps: int) -> None:
        self.replay, self.structure, self.constants, self.steps = replay, structure, constants, steps

    def __call__(self, inner: Tensor, outer: Tensor, *tensors: Tensor) -> list[Any]:
        replay, supply = self.replay, iter(tensors)
        leaves = [next(supply) if c is None else c[0] for c in self.constants]
        batches: list[Batch] = pytree.tree_unflatten(leaves, self.structure)
        run, trainer = replay.run, replay.trainer
        timed = Timed(base=run.dynamics.optimizer, clock=Clock(inner))
        mover = None if run.outer_optimizer is None else Timed(base=run.outer_optimizer, clock=Clock(outer))
        with trainer.in_place(timed):
            view = View(
                Dynamics(run.dynamics.level, timed, trainer),
                run.outer_level,
                lambda step: batches[step],
                batches[self.steps] if len(batches) > self.steps else None,  # type: ignore[arg-type]
                stretch=run.problem.stretch if run.present.of_head else None,
                heads=run.heads,
                features=run.features,
            )
            outcome = replay.compute(run, view, trainer.live(), replay.phi, replay.moments, mover, 0)
            trainer.load(outcome.state)
        with torch.no_grad():
            if run.present.moves:
                replay.phi.copy_(outcome.phi)
                for own, new in zip(replay.moments, outcome.moments, strict=True):
                    own.copy_(new)
            seen = outcome.estimate.inner_losses if run.present.lookahead else []
            return [
                torch.stack([loss.detach() for loss in outcome.inner_losses]),
                outcome.estimate.loss,
                outcome.estimate.gradient,
                outcome.gradient,
                torch.stack([loss.detach() for loss in seen]) if seen else None,
            ]


def _rate(optimizer: Optimizer, step: int) -> float:
    return float(optimizer.lr(step) if callable(optimizer.lr) else optimizer.lr)
