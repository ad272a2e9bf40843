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
from calibrant.bilevel.heads import Heads, Seen
from calibrant.bilevel.level import FullGradient, Gradient, Level
from calibrant.bilevel.linear import CG, Solve
from calibrant.bilevel.optimizers import SGD, Linearization, Optimizer
from calibrant.bilevel.tape import Tape, graphs_fit
from calibrant.data.batch import Batch

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
        outer, adjoint = _outer_gradient(problem, state, phi)
        along = (t_params * adjoint.params).sum(-1)
        for name, d_buffer in adjoint.buffers.items():
            along = along + (t_buffers[name] * d_buffer).flatten(1 + len(lead)).sum(-1)
        return Estimate(outer.loss, outer.phi + along.movedim(0, -1), losses, state)


Order = Literal["inner", "outer"]
Scope = Literal["all", "head"]


@dataclass(frozen=True)
class Implicit(Hypergradient):
    """The implicit function theorem at the inner solution.

    The invariant: ``∇θ L(θ*, φ) + decay·θ* = 0``, with ``decay`` the optimiser's coupled weight decay. Then
    ``dF/dφ = ∂F/∂φ − Cᵀ v`` with ``(H + decay·I + damping·I) v = ∂F/∂θ``, H the Hessian and C the cross derivative.

    ``scope="all"`` takes the whole network for solved. It is exact only when the ``steps`` inner steps reach the
    solution; the Hessian is that of the next training batch. ``scope="head"`` takes the last layer alone for solved, on
    the features of the last ``batches`` training batches joined into one: a convex problem of few variables, which
    training keeps close to its solution. The body is a constant of this map. Unlike one look-ahead step it sees where
    training leads, not only the next step.

    Parameters
    ----------
    steps : int
        Training steps to one outer step.
    scope : {"all", "head"}
    solve : Solve
        The linear solver; by default conjugate gradients, 8 products for ``"head"``.
    damping : float, optional
        Added to the Hessian's eigenvalues. By default 0, and 0.01 for ``"head"``.
    batches : int
        For ``"head"``: how many recent batches are kept.
    first : {"inner", "outer"}
        Which level moves first in an outer step.
    """

    scope: Scope = "all"
    solve: Solve | None = field(default=None, kw_only=True)
    damping: float | None = field(default=None, kw_only=True)
    batches: int = field(default=8, kw_only=True)
    first: Order = field(default="inner", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_choices(self.scope, self.first)
        if self.batches < 1:
            raise ValueError(f"batches must be at least 1; got {self.batches}.")

    @property
    def lookahead(self) -> bool:
        return self.first == "outer"

    @property
    def of_head(self) -> bool:
        return self.scope == "head"

    @property
    def remembers(self) -> int:
        return self.batches if self.of_head else 0

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        state, losses = start, list[Tensor]()
        if not self.lookahead:
            state, losses = self.train(problem, start, phi, self.steps)
        return (self._of_head if self.of_head else self._of_all)(problem, state, losses, phi)

    def _of_all(self, problem: Problem, state: State, losses: list[Tensor], phi: Tensor) -> Estimate:
        outer, adjoint = _outer_gradient(problem, state, phi)
        if adjoint.buffers:
            raise ValueError(
                "The implicit hypergradient does not see the path through BatchNorm's running statistics; evaluate the "
                "outer loss in training mode, or use Unrolled."
            )
        here = problem.dynamics.level.linearize(state.params, state.buffers, phi, problem.draws(state.step))
        share, details = self._solved(here, adjoint.params, problem.dynamics.optimizer)
        return Estimate(outer.loss, outer.phi - share, losses, state, details)

    def _of_head(self, problem: Problem, state: State, losses: list[Tensor], phi: Tensor) -> Estimate:
        heads, memory = problem.heads, problem.features
        if heads is None or memory is None:
            raise ValueError(
                "Implicit(scope='head') needs an inner loss that sees the network through its features: call "
                "net.logits(batch.inputs), or net.features and net.head, on inputs that do not depend on φ."
            )
        if not len(memory):  # before the first training step there is nothing to solve the head on
            return Estimate(None, torch.zeros_like(phi), losses, state)
        batch, features = memory.joined()
        w = state.params[..., heads.stretch].clone()
        outer = heads.outer(state, None, phi, problem.outer_batch).gradients(w, {}, phi, problem.outer_batch)
        here = heads.inner(state, features).linearize(w, {}, phi, batch)
        share, details = self._solved(here, outer.params, problem.dynamics.optimizer.on(heads.stretch))
        return Estimate(outer.loss, outer.phi - share, losses, state, details)

    def _solved(self, here: Gradient, slope: Tensor, optimizer: Optimizer) -> tuple[Tensor, dict[str, Any]]:
        """``Cᵀ v`` with ``(H + decay + damping) v = slope``."""
        damping = self.damping if self.damping is not None else (0.01 if self.of_head else 0.0)
        decay = optimizer.stationary_decay() + damping

        def matvec(vector: Tensor) -> Tensor:
            product = here.pull(vector, {}, retain=True).params
            assert product is not None
            return product + decay * vector

        solver = self.solve if self.solve is not None else (CG(8, quiet=True) if self.of_head else CG())
        solved = solver(matvec, slope)
        return here.pull(solved.value, {}, params=False).phi, {"linear_solve": solved}


@dataclass(frozen=True)
class OneStep(Hypergradient):
    """One look-ahead step.

    The map: ``F(θ + scope·(Φ(θ, φ) − θ))`` with Φ one step of the inner optimiser from where it stands, or plain
    descent ``θ − lr·∇L`` when ``lr`` is given.

    Parameters
    ----------
    scope : {"all", "head"}
        ``"head"`` moves the last layer only, as the public meta-calibration code does. The body then runs once for the
        look-ahead and the first real step, and the outer batch runs through it without a graph.
    steps : int
        Real training steps to one outer step.
    lr : float, optional
    first : {"outer", "inner"}
        ``"outer"``: look ahead on the next batch, move φ, then train, the first step on that same batch. ``"inner"``:
        train with the present φ; the last step is the one that is differentiated, and F is evaluated behind it (Section
        3.3 of the second paper).
    """

    scope: Scope = "all"
    lr: float | None = field(default=None, kw_only=True)
    first: Order = field(default="outer", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_choices(self.scope, self.first)
        if self.lr is not None and not self.lookahead:
            raise ValueError("lr is the rate of a look-ahead step; with first='inner' the real step is differentiated.")

    @property
    def lookahead(self) -> bool:
        return self.first == "outer"

    @property
    def of_head(self) -> bool:
        return self.scope == "head"

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        state, losses = start, list[Tensor]()
        if not self.lookahead:
            state, losses = self.train(problem, start, phi, self.steps - 1)
        if self.of_head and problem.heads is not None:
            return self._of_head(problem, problem.heads, state, losses, phi)
        return self._of_all(problem, state, losses, phi)

    def _of_all(self, problem: Problem, start: State, losses: list[Tensor], phi: Tensor) -> Estimate:
        dynamics, at = problem.dynamics, start
        if self.lr is not None:
            dynamics, at = Dynamics(dynamics.level, SGD(self.lr)), start._replace(moments=())
        ahead, loss, recorded = dynamics.record(at, phi, problem.draws(start.step))
        real, mask = ahead, self._mask(problem, start.params)
        if mask is not None and self.lookahead:
            ahead = ahead._replace(params=torch.where(mask, ahead.params, start.params))
        outer, adjoint = _outer_gradient(problem, ahead, phi)
        if mask is not None:
            adjoint = adjoint._replace(params=torch.where(mask, adjoint.params, 0.0))
        adjoint = adjoint._replace(moments=dynamics.zero(ahead).moments)
        _, share = dynamics.pull(recorded, adjoint, params=False)
        return Estimate(outer.loss, outer.phi + share, [*losses, loss], start if self.lookahead else real)

    def _of_head(self, problem: Problem, heads: Heads, start: State, losses: list[Tensor], phi: Tensor) -> Estimate:
        at, batch = heads.stretch, problem.draws(start.step)
        optimizer = SGD(self.lr) if self.lr is not None else problem.dynamics.optimizer.on(at)
        w = start.params[..., at].clone()  # training in place must not reach what is differentiated
        moments = () if self.lr is not None else tuple(m[..., at].clone() for m in start.moments)
        seen: Seen | None = heads.see(start, phi, batch)
        assert seen is not None
        here = heads.inner(start, seen.features).linearize(w, {}, phi, batch)
        with torch.no_grad():
            ahead, after = optimizer.update(w, moments, here.grad, start.step + 1)
        state = start
        if not self.lookahead:
            state, more = self.train(problem, start, phi, 1)
            losses, seen, ahead = [*losses, *more], None, state.params[..., at]
        outer = heads.outer(state, seen, phi, problem.outer_batch).gradients(ahead, {}, phi, problem.outer_batch)
        zero = tuple(torch.zeros_like(m) for m in after)
        with torch.no_grad():
            line = Linearization(w, moments, after, here.grad, start.step + 1)
            slope = optimizer.pull(line, outer.params, zero)[2]
        share = here.pull(slope, {}, params=False).phi
        return Estimate(outer.loss, outer.phi + share, losses or [here.loss], state)

    def _mask(self, problem: Problem, params: Tensor) -> Tensor | None:
        if self.scope == "all":
            return None
        if problem.stretch is None:
            raise ValueError("OneStep(scope='head') needs to know where the head stands: give Problem(stretch=…).")
        mask = torch.zeros(params.shape[-1], dtype=torch.bool, device=params.device)
        mask[problem.stretch] = True
        return mask


@dataclass(frozen=True)
class Feedback(Hypergradient):
    """No gradient: φ moves against the sign of the outer loss, as an integral controller does.

    The outer loss is a signed quantity that φ should bring to zero, such as :func:`confidence_gap_loss`, the mean
    confidence minus the accuracy on held-out data. Every entry of φ gets ``−F`` as its gradient, so that ``SGD(k)``
    outside is ``φ ← φ + k·F``. It is the plainest rival of a learned φ.
    """

    @property
    def of_head(self) -> bool:
        return True

    def __call__(self, problem: Problem, start: State, phi: Tensor) -> Estimate:
        state, losses = self.train(problem, start, phi, self.steps)
        batch = problem.outer_batch
        if problem.heads is not None:
            w = state.params[..., problem.heads.stretch]
            value, _ = problem.heads.outer(state, None, phi, batch).value(w, {}, phi, batch)
        else:
            value, _ = problem.outer.value(state.params, state.buffers, phi, batch)
        return Estimate(value, -value.unsqueeze(-1).expand_as(phi), losses, state)


def _check_choices(scope: str, first: str) -> None:
    if scope not in ("all", "head"):
        raise ValueError(f"scope must be 'all' or 'head'; got {scope!r}.")
    if first not in ("inner", "outer"):
        raise ValueError(f"first must be 'inner' or 'outer'; got {first!r}.")


def _outer_gradient(problem: Problem, state: State, phi: Tensor) -> tuple[FullGradient, Cotangent]:
    outer = problem.outer.gradients(state.params, state.buffers, phi, problem.outer_batch)
    zero = problem.dynamics.zero(state)
    return outer, Cotangent(outer.params, zero.moments, outer.buffers)
