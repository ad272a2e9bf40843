"""The implicit hypergradient: the network, or its last layer alone, taken as solved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel.dynamics import State
from calibrant.bilevel.hypergradients import (
    Estimate,
    Hypergradient,
    Order,
    Problem,
    Scope,
    check_choices,
    outer_gradient,
)
from calibrant.bilevel.level import Gradient
from calibrant.bilevel.linear import CG, Solve
from calibrant.bilevel.optimizers import Optimizer


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
        check_choices(self.scope, self.first)
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
        outer, adjoint = outer_gradient(problem, state, phi)
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
