"""Training as a dynamical system: the step θ_t = Φ_t(θ_{t-1}, φ), and its transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from calibrant.bilevel.level import Gradient, Level
from calibrant.bilevel.optimizers import Linearization, Moments, Optimizer
from calibrant.data.batch import Batch, Tensors

if TYPE_CHECKING:
    from calibrant.bilevel.tracing import Trainer

Draws = Callable[[int], Batch]


class State(NamedTuple):
    """The state of training: parameters, optimiser moments, module buffers, and the number of steps taken."""

    params: Tensor
    moments: Moments
    buffers: Tensors
    step: int

    def map(self, fn: Callable[[Tensor], Tensor]) -> State:
        """Apply ``fn`` to every tensor."""
        return State(
            fn(self.params),
            tuple(map(fn, self.moments)),
            {k: fn(b) for k, b in self.buffers.items()},
            self.step,
        )


class Cotangent(NamedTuple):
    """The adjoint of a state. ``buffers`` contains only buffers through which gradient flows."""

    params: Tensor
    moments: Moments
    buffers: Tensors


class Recorded(NamedTuple):
    """One step, with everything that its transpose needs."""

    gradient: Gradient
    at: Linearization


class Dynamics:
    """Training as a map, made of an inner loss and an optimiser.

    ``trainer`` takes the steps that are not differentiated in place. Without one, they are steps of the map as well.
    """

    def __init__(self, level: Level, optimizer: Optimizer, trainer: Trainer | None = None) -> None:
        self.level, self.optimizer, self.trainer = level, optimizer, trainer

    def start(self, params: Tensor, buffers: Tensors) -> State:
        """The state before the first step."""
        return State(params, self.optimizer.init(params), buffers, 0)

    def train(self, state: State, phi: Tensor, draws: Draws, steps: int) -> tuple[State, list[Tensor]]:
        """Take ``steps`` training steps. Returns the state after them and the loss before each step."""
        if self.trainer is not None and steps > 0:
            return self.trainer.train(state, phi, draws, steps)
        losses = []
        for _ in range(steps):
            state, loss = self.advance(state, phi, draws(state.step))
            losses.append(loss)
        return state, losses

    def advance(self, state: State, phi: Tensor, batch: Batch) -> tuple[State, Tensor]:
        """Take one training step. Returns the state after it and the loss before it."""
        loss, grad, buffers = self.level.gradient(state.params, state.buffers, phi, batch)
        return self._update(state, grad, buffers), loss

    def record(self, state: State, phi: Tensor, batch: Batch) -> tuple[State, Tensor, Recorded]:
        """Take one training step, and record it so that it can be pulled back."""
        found = self.level.linearize(state.params, state.buffers, phi, batch)
        after = self._update(state, found.grad, found.buffers)
        at = Linearization(state.params, state.moments, after.moments, found.grad, after.step)
        return after, found.loss, Recorded(found, at)

    def pull(self, recorded: Recorded, adjoint: Cotangent, *, params: bool = True) -> tuple[Cotangent, Tensor]:
        """The adjoint of the state before a step from the adjoint after it, and the step's share of dF/dφ.

        ``params=False`` is for the first differentiated step, whose starting point does not depend on φ. It saves the
        Hessian-vector product; then only the share of dF/dφ is valid.
        """
        with torch.no_grad():
            d_params, d_moments, d_grad = self.optimizer.pull(recorded.at, adjoint.params, adjoint.moments)
            back = recorded.gradient.pull(d_grad, adjoint.buffers, params=params)
            if back.params is not None:
                d_params = d_params + back.params
        return Cotangent(d_params, d_moments, back.buffers), back.phi

    def zero(self, state: State) -> Cotangent:
        """An adjoint of zeros."""
        return Cotangent(torch.zeros_like(state.params), tuple(torch.zeros_like(m) for m in state.moments), {})

    def _update(self, state: State, grad: Tensor, buffers: Tensors) -> State:
        with torch.no_grad():
            if self.optimizer.clip_norm is not None:
                grad = self.optimizer.clip_(grad.clone())
            params, moments = self.optimizer.update(state.params, state.moments, grad, state.step + 1)
        return State(params, moments, buffers, state.step + 1)
