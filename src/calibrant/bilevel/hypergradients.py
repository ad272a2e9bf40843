"""Hypergradients as values: how dF/dφ is had is chosen like a solver.

With ``θ_0 = Φ_0(φ)`` and ``θ_t = Φ_t(θ_{t-1}, φ)`` (Eq. 6, Sanguin et al. 2024) the hypergradient is (Eq. 8)::

    dF/dφ = ∂F/∂φ + (dθ_T/dφ)ᵀ ∂F/∂θ

=================  =====================================================  =======================================
value              the map that it differentiates                         cost of an outer step (1 = plain training)
=================  =====================================================  =======================================
``Unrolled``       all T steps, exactly                                   about 3; memory by ``memory=``
``Truncated``      φ acts in the last K of T steps only                   about 1 + 2·K/T; memory of K steps
``Forward``        all T steps, exactly                                   grows with dim φ; memory of one step
``Implicit``       the solution of ∇θ L(θ, φ) = 0 near θ_T                1 + one linear solve an outer step
``OneStep``        one look-ahead step (of the whole net or its head)     look-ahead + the real steps
``Plain``          none: training with φ fixed                            1
=================  =====================================================  =======================================

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

from calibrant.bilevel.dynamics import Cotangent, Dynamics, State
from calibrant.bilevel.level import FullGradient, Level
from calibrant.bilevel.linear import CG, Solve
from calibrant.bilevel.optimizers import SGD
from calibrant.bilevel.tape import Draws, Tape, graphs_fit
from calibrant.data.batch import Batch

Memory = Literal["auto", "graphs", "states", "checkpoints"]


class Problem(NamedTuple):
    """What a hypergradient is taken of. ``pull_initial`` transposes Φ_0 where the start depends on φ."""

    dynamics: Dynamics
    outer: Level
    draws: Draws
    outer_batch: Batch
    pull_initial: Callable[[Tensor], Tensor] | None = None
    push_initial: Callable[[Tensor], Tensor] | None = None


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
    lookahead = False
    """Whether φ is updated before the real steps are taken (True) or after them (False)."""

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

    def _train(self, problem: Problem, state: State, phi: Tensor, steps: int) -> tuple[State, list[Tensor]]:
        losses = []
        for _ in range(steps):
            state, loss = problem.dynamics.advance(state, phi, problem.draws(state.step))
            losses.append(loss)
        return state, losses


@dataclass(frozen=True)
class Plain(Hypergradient):
    """No hypergradient: ordinary training, φ fixed. The outer loss is not evaluated."""

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        state, losses = self._train(problem, start, phi, self.steps)
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

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        dynamics = problem.dynamics
        entry, losses = self._train(problem, start, phi, self.steps - self.last)
        memory = self.memory
        if memory == "auto":
            memory = (
                "graphs" if graphs_fit(dynamics, entry, phi, problem.draws(entry.step), self.last) else "checkpoints"
            )
        tape = Tape(dynamics, problem.draws, phi, entry, self.last, memory)
        state, more = tape.forward()
        outer, adjoint = _outer_gradient(problem, state, phi)
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
        outer, adjoint = _outer_gradient(problem, state, phi)
        along = (t_params * adjoint.params).sum(-1)
        for name, d_buffer in adjoint.buffers.items():
            along = along + (t_buffers[name] * d_buffer).flatten(1 + len(lead)).sum(-1)
        return Estimate(outer.loss, outer.phi + along.movedim(0, -1), losses, state)


@dataclass(frozen=True)
class Implicit(Hypergradient):
    """The implicit function theorem at the inner solution.

    The invariant: ``∇θ L(θ*, φ) + decay·θ* = 0``, with ``decay`` the optimiser's coupled weight decay. Then
    ``dF/dφ = ∂F/∂φ − Cᵀ v`` with ``(H + decay·I + damping·I) v = ∂F/∂θ``, H the Hessian and C the cross derivative.
    Exact only when the ``steps`` inner steps reach the solution. The Hessian is that of the next training batch.
    """

    solve: Solve = field(default_factory=CG, kw_only=True)
    damping: float = field(default=0.0, kw_only=True)

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        decay = problem.dynamics.optimizer.stationary_decay() + self.damping
        state, losses = self._train(problem, start, phi, self.steps)
        outer, adjoint = _outer_gradient(problem, state, phi)
        if adjoint.buffers:
            raise ValueError(
                "The implicit hypergradient does not see the path through BatchNorm's running statistics; evaluate the "
                "outer loss in training mode, or use Unrolled."
            )
        here = problem.dynamics.level.linearize(state.params, state.buffers, phi, problem.draws(state.step))

        def matvec(vector: Tensor) -> Tensor:
            product = here.pull(vector, {}, retain=True).params
            assert product is not None
            return product + decay * vector

        solved = self.solve(matvec, adjoint.params)
        share = here.pull(solved.value, {}, params=False).phi
        return Estimate(outer.loss, outer.phi - share, losses, state, {"linear_solve": solved})


@dataclass(frozen=True)
class OneStep(Hypergradient):
    """One look-ahead step; then φ moves; then the real steps are taken with the new φ.

    The map: ``F(θ + scope·(Φ(θ, φ) − θ))`` with Φ one step of the inner optimiser from where it stands, or plain
    descent ``θ − lr·∇L`` when ``lr`` is given. ``scope="head"`` moves the last layer only, as the public
    meta-calibration code does; ``steps`` real steps follow (the first on the look-ahead's own batch).
    """

    scope: Literal["all", "head"] = "all"
    lr: float | None = field(default=None, kw_only=True)
    head_size: int | None = field(default=None, kw_only=True)
    """Length of the head's stretch at the end of the parameter vector; the solver fills it in from the model."""
    lookahead = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scope not in ("all", "head"):
            raise ValueError(f"scope must be 'all' or 'head'; got {self.scope!r}.")

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        dynamics = problem.dynamics
        if self.lr is not None:
            dynamics = Dynamics(dynamics.level, SGD(self.lr))
            start = State(start.params, (), start.buffers, start.step)
        ahead, loss, recorded = dynamics.record(start, phi, problem.draws(start.step))
        mask = self._mask(start.params)
        if mask is not None:
            ahead = ahead._replace(params=torch.where(mask, ahead.params, start.params))
        outer, adjoint = _outer_gradient(problem, ahead, phi)
        if mask is not None:
            adjoint = adjoint._replace(params=torch.where(mask, adjoint.params, 0.0))
        adjoint = adjoint._replace(moments=dynamics.zero(ahead).moments)
        _, share = dynamics.pull(recorded, adjoint, params=False)
        return Estimate(outer.loss, outer.phi + share, [loss], start)

    def _mask(self, params: Tensor) -> Tensor | None:
        if self.scope == "all":
            return None
        if self.head_size is None:
            raise ValueError("OneStep(scope='head') needs head_size when it is used outside the solver.")
        return torch.arange(params.shape[-1], device=params.device) >= params.shape[-1] - self.head_size


def _outer_gradient(problem: Problem, state: State, phi: Tensor) -> tuple[FullGradient, Cotangent]:
    outer = problem.outer.gradients(state.params, state.buffers, phi, problem.outer_batch)
    zero = problem.dynamics.zero(state)
    return outer, Cotangent(outer.params, zero.moments, outer.buffers)
