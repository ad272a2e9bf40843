"""The implicit hypergradient: the inner problem, or that of the last layer, is treated as solved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from calibrant._settings import check_number
from calibrant.bilevel.dynamics import State
from calibrant.bilevel.hypergradients import (
    Hypergradient,
    HypergradientInput,
    HypergradientResult,
    Order,
    Scope,
    check_choices,
    outer_gradient,
    warn_without_network,
)
from calibrant.bilevel.level import Gradient
from calibrant.bilevel.linear import CG, LinearSolver
from calibrant.bilevel.optimizers import Optimizer


@dataclass(frozen=True)
class Implicit(Hypergradient):
    """The implicit function theorem at the inner solution.

    Invariant: ``∇θ L(θ*, φ) + decay·θ* = 0``, where ``decay`` is the optimiser's coupled weight decay. Then
    ``dF/dφ = ∂F/∂φ − Cᵀ v`` with ``(H + decay·I + damping·I) v = ∂F/∂θ``, the Hessian H and the cross derivative C.

    ``scope="all"`` treats the whole network as solved. It is exact only if the ``steps`` inner steps reach the
    solution. The Hessian is that of the next training batch.

    ``scope="head"`` treats only the last layer as solved, on the features of the last ``batches`` training batches.
    This is a convex problem with few variables, and training stays close to its solution. The body is a constant of
    this map. Unlike one look-ahead step, it takes into account where training leads, not only the next step.

    Parameters
    ----------
    steps : int
        The number of training steps per outer step.
    scope : {"all", "head"}
        The whole network, or its last layer.
    solve : LinearSolver
        By default conjugate gradients; for ``"head"`` with 8 products.
    damping : float, optional
        Added to the Hessian's eigenvalues. By default 0, and 0.01 for ``"head"``.
    batches : int
        The number of recent batches that ``"head"`` keeps.
    first : {"inner", "outer"}
        The level that moves first in an outer step.
    """

    scope: Scope = "all"
    solve: LinearSolver | None = field(default=None, kw_only=True)
    damping: float | None = field(default=None, kw_only=True)
    batches: int = field(default=8, kw_only=True)
    first: Order = field(default="inner", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self.scope, self.first)
        if self.batches < 1:
            raise ValueError(f"batches must be at least 1; got {self.batches}.")
        if self.solve is not None and (isinstance(self.solve, type) or not callable(self.solve)):
            raise TypeError(f"solve must be a linear solver such as CG(); got {self.solve!r}.")
        if self.damping is not None and not check_number("damping", self.damping) >= 0:
            raise ValueError(f"damping must be at least 0; got {self.damping}.")

    @property
    def lookahead(self) -> bool:
        return self.first == "outer"

    @property
    def of_head(self) -> bool:
        return self.scope == "head"

    @property
    def remembers(self) -> int:
        return self.batches if self.of_head else 0

    def __call__(self, given: HypergradientInput, start: State, phi: Tensor) -> HypergradientResult:
        state, losses = start, list[Tensor]()
        if not self.lookahead:
            state, losses = self.train(given, start, phi, self.steps)
        return (self._of_head if self.of_head else self._of_all)(given, state, losses, phi)

    def _of_all(
        self, given: HypergradientInput, state: State, losses: list[Tensor], phi: Tensor
    ) -> HypergradientResult:
        outer, adjoint = outer_gradient(given, state, phi)
        if adjoint.buffers:
            raise ValueError(
                "Implicit does not differentiate through BatchNorm's running statistics. Use outer_mode='train', or "
                "use Unrolled."
            )
        here = given.dynamics.level.linearize(state.params, state.buffers, phi, given.draws(state.step))
        share, details = self._solved(here, adjoint.params, given.dynamics.optimizer)
        return HypergradientResult(outer.loss, outer.phi - share, losses, state, details)

    def _of_head(
        self, given: HypergradientInput, state: State, losses: list[Tensor], phi: Tensor
    ) -> HypergradientResult:
        heads, memory = given.heads, given.features
        if heads is None or memory is None:
            raise ValueError(
                "Implicit(scope='head') needs an inner loss that uses the network through its features: call "
                "net.logits(batch.inputs), or net.features and net.head, on inputs that do not depend on φ. Neither "
                "the loss nor the head may draw random numbers. Otherwise use scope='all'."
            )
        if not len(memory):  # there are no features before the first training step
            return HypergradientResult(None, torch.zeros_like(phi), losses, state)
        batch, features = memory.joined()
        w = state.params[..., heads.stretch].clone()
        outer = heads.outer(state, None, phi, given.judge).gradients(w, {}, phi, given.judge)
        warn_without_network(outer)
        here = heads.inner(state, features).linearize(w, {}, phi, batch)
        share, details = self._solved(here, outer.params, given.dynamics.optimizer.on(heads.stretch))
        return HypergradientResult(outer.loss, outer.phi - share, losses, state, details)

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
