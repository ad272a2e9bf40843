"""Hypergradients as values: choose how dF/dφ is computed by passing one of these objects to ``solve``.

With ``θ_0 = Φ_0(φ)`` and ``θ_t = Φ_t(θ_{t-1}, φ)`` (Eq. 6, Sanguin et al. 2024) the hypergradient is (Eq. 8)::

    dF/dφ = ∂F/∂φ + (dθ_T/dφ)ᵀ ∂F/∂θ

=====================  =====================================================  ==========================================
value                  the map that it differentiates                         cost of an outer step (1 = plain training)
=====================  =====================================================  ==========================================
``Unrolled``           all T steps, exactly                                   about 3; memory by ``memory=``
``Truncated``          φ acts in the last K of T steps only                   about 1 + 2·K/T; memory of K steps
``Forward``            all T steps, exactly                                   grows with dim φ; memory of one step
``Implicit``           the solution of ∇θ L(θ, φ) = 0 near θ_T                1 + one linear solve an outer step
``Implicit``, head     the solution of the last layer on recent features      1 + a small linear solve
``OneStep``            one look-ahead step of the whole network               look-ahead + the real steps
``OneStep``, head      one look-ahead step of the last layer                  1 + a pass of the outer batch
``Direct``             none: θ is held fixed, ∂F/∂φ alone                     1 + a pass of the outer batch
``Feedback``           none: φ follows a signed held-out quantity             1 + a pass of the outer batch
``Plain``              none: training with φ fixed                            1
=====================  =====================================================  ==========================================

``steps`` is the number of training steps to one outer step. ``first`` says which of the two levels moves first in an
outer step: ``"outer"`` moves φ and then trains with it, ``"inner"`` trains and then moves φ.

``memory`` of the reverse sweeps: ``"graphs"`` keeps each step's graph (fastest; activations of every step in the
window), ``"states"`` keeps parameters and moments and computes each graph again (4 vectors a step), ``"checkpoints"``
keeps about 2·√K states and trains each stretch a second time (leanest), ``"auto"`` measures one graph and keeps them
while all fit (see :func:`calibrant.bilevel.tape.graphs_fit`), and takes checkpoints otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from calibrant.bilevel.dynamics import Cotangent, Draws, Dynamics, State
from calibrant.bilevel.features import Memory as FeatureMemory
from calibrant.bilevel.heads import Heads
from calibrant.bilevel.level import FullGradient, Level
from calibrant.bilevel.tape import Tape, graphs_fit
from calibrant.data.batch import Batch

Order = Literal["inner", "outer"]
Scope = Literal["all", "head"]
Memory = Literal["auto", "graphs", "states", "checkpoints"]


class Problem(NamedTuple):
    """What a hypergradient is taken of.

    ``pull_initial`` transposes Φ_0 where the start depends on φ. ``stretch`` says where the head stands in the
    parameter vector. ``heads`` has the losses of the head alone, and ``features`` keeps those of recent batches.
    """

    dynamics: Dynamics
    outer: Level
    draws: Draws
    outer_batch: Batch
    pull_initial: Callable[[Tensor], Tensor] | None = None
    push_initial: Callable[[Tensor], Tensor] | None = None
    stretch: slice | None = None
    heads: Heads | None = None
    features: FeatureMemory | None = None


class Estimate(NamedTuple):
    """The outer loss, its hypergradient, the inner losses on the way, and the state where the inner level ended."""

    loss: Tensor | None
    gradient: Tensor | None
    inner_losses: list[Tensor]
    state: State
    details: dict[str, Any] = {}  # noqa: RUF012 (never written to)


@dataclass(frozen=True)
class Hypergradient:
    """Base of all: ``steps`` inner steps belong to one outer step."""

    steps: int = 1

    @property
    def moves(self) -> bool:
        """Whether φ is moved at all."""
        return True

    @property
    def lookahead(self) -> bool:
        """Whether φ is updated before the real steps are taken (True) or after them (False)."""
        return False

    @property
    def of_head(self) -> bool:
        """Whether only the last layer is differentiated."""
        return False

    @property
    def direct(self) -> bool:
        """Whether ∂F/∂φ alone is computed, as if training did not depend on φ."""
        return False

    @property
    def trains(self) -> bool:
        """Whether it takes training steps that are not differentiated."""
        return True

    @property
    def remembers(self) -> int:
        """How many recent batches it needs the features of."""
        return 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1; got {self.steps}.")

    @property
    def sees_start(self) -> bool:
        """Whether the path from φ through the starting point Φ_0 is differentiated."""
        return False

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        """Run the inner level from ``start`` and differentiate."""
        raise NotImplementedError

    def train(self, problem: Problem, state: State, phi: Tensor, steps: int) -> tuple[State, list[Tensor]]:
        """Ordinary training steps; the state after them, and the loss before each."""
        dynamics, memory = problem.dynamics, problem.features
        if memory is None or steps == 0:
            return dynamics.train(state, phi, problem.draws, steps)
        if dynamics.trainer is not None:
            return dynamics.trainer.train(state, phi, problem.draws, steps, memory)
        assert problem.heads is not None
        losses = []
        for _ in range(steps):
            batch = problem.draws(state.step)
            memory.add(batch, problem.heads.see(state, phi, batch).features)
            state, loss = dynamics.advance(state, phi, batch)
            losses.append(loss)
        return state, losses


@dataclass(frozen=True)
class Plain(Hypergradient):
    """No hypergradient: ordinary training, φ fixed. The outer loss is not evaluated."""

    @property
    def moves(self) -> bool:
        return False

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        state, losses = self.train(problem, start, phi, self.steps)
        return Estimate(None, None, losses, state)


@dataclass(frozen=True)
class Truncated(Hypergradient):
    """Reverse mode through the last ``last`` of ``steps`` inner steps.

    The map: φ enters the loss of the last K steps; before them it is a constant. ``Truncated(T, T)`` is
    ``Unrolled(T)``.
    """

    last: int = 1
    memory: Memory = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.last <= self.steps:
            raise ValueError(f"last must lie between 1 and steps={self.steps}; got {self.last}.")
        if self.memory not in ("auto", "graphs", "states", "checkpoints"):
            raise ValueError(f"memory must be 'auto', 'graphs', 'states' or 'checkpoints'; got {self.memory!r}.")

    @property
    def sees_start(self) -> bool:
        return self.last == self.steps

    @property
    def trains(self) -> bool:
        return self.last < self.steps

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        dynamics = problem.dynamics
        entry, losses = self.train(problem, start, phi, self.steps - self.last)
        memory = self.memory
        if memory == "auto":
            memory = (
                "graphs" if graphs_fit(dynamics, entry, phi, problem.draws(entry.step), self.last) else "checkpoints"
            )
        tape = Tape(dynamics, problem.draws, phi, entry, self.last, memory)
        state, more = tape.forward()
        outer, adjoint = outer_gradient(problem, state, phi)
        whole = self.sees_start and problem.pull_initial is not None
        adjoint, share = tape.sweep(adjoint, to_start=whole)
        gradient = outer.phi + share
        if whole and problem.pull_initial is not None:
            gradient = gradient + problem.pull_initial(adjoint.params)
        return Estimate(outer.loss, gradient, losses + more, state)


class Unrolled(Truncated):
    """Reverse mode through all ``steps`` inner steps: the exact hypergradient of Eq. (6)."""

    def __init__(self, steps: int, *, memory: Memory = "auto") -> None:
        super().__init__(steps, steps, memory=memory)

    def __repr__(self) -> str:
        return f"Unrolled(steps={self.steps}, memory={self.memory!r})"


@dataclass(frozen=True)
class Forward(Hypergradient):
    """Forward mode: dθ_t/dφ is carried along. Exact, memory of one step, for few outer variables.

    ``at_most`` guards against an accidental use with thousands of outer variables, which would be very slow.
    """

    at_most: int = field(default=256, kw_only=True)

    @property
    def sees_start(self) -> bool:
        return True

    @property
    def trains(self) -> bool:
        return False

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        count = phi.shape[-1]
        if count > self.at_most:
            raise ValueError(
                f"Forward carries one tangent per outer variable: there are {count}. Use Unrolled, or raise at_most."
            )
        dynamics, lead = problem.dynamics, phi.shape[:-1]
        basis = torch.eye(count, dtype=phi.dtype, device=phi.device)
        basis = basis.view((count,) + (1,) * len(lead) + (count,)).expand((count, *lead, count))
        if problem.push_initial is not None:
            t_params = torch.stack([problem.push_initial(direction) for direction in basis])
        else:
            t_params = torch.zeros((count, *start.params.shape), dtype=phi.dtype, device=phi.device)
        t_moments = tuple(torch.zeros((count, *m.shape), dtype=m.dtype, device=m.device) for m in start.moments)
        t_buffers = {
            k: torch.zeros((count, *start.buffers[k].shape), dtype=phi.dtype, device=phi.device)
            for k in dynamics.level.differentiable_buffers
        }
        state, losses = start, []
        for _ in range(self.steps):
            state, loss, recorded = dynamics.record(state, phi, problem.draws(state.step))
            t_grad, t_buffers = recorded.gradient.push(t_params, basis, t_buffers)
            t_params, t_moments = dynamics.optimizer.push(recorded.at, t_params, t_moments, t_grad)
            losses.append(loss)
        outer, adjoint = outer_gradient(problem, state, phi)
        along = (t_params * adjoint.params).sum(-1)
        for name, d_buffer in adjoint.buffers.items():
            along = along + (t_buffers[name] * d_buffer).flatten(1 + len(lead)).sum(-1)
        return Estimate(outer.loss, outer.phi + along.movedim(0, -1), losses, state)


def outer_gradient(problem: Problem, state: State, phi: Tensor) -> tuple[FullGradient, Cotangent]:
    """First derivatives of the outer loss, and the adjoint of the state that they make."""
    outer = problem.outer.gradients(state.params, state.buffers, phi, problem.outer_batch)
    zero = problem.dynamics.zero(state)
    return outer, Cotangent(outer.params, zero.moments, outer.buffers)


def check_choices(scope: str, first: str) -> None:
    """Refuse unknown values of ``scope`` and ``first``."""
    if scope not in ("all", "head"):
        raise ValueError(f"scope must be 'all' or 'head'; got {scope!r}.")
    if first not in ("inner", "outer"):
        raise ValueError(f"first must be 'inner' or 'outer'; got {first!r}.")
