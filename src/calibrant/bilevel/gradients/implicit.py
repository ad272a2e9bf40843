"""The implicit hypergradient, and the linear solvers that it uses.

Linear solvers for implicit hypergradients: ``A x = b`` with a symmetric ``A`` given by its products. Each solution has
its residual and says whether it converged. Vectors are along the last axis. With a leading population axis, each member
has its own system, and all are solved at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from calibrant.base.settings import check_number, check_whole
from calibrant.base.warning import warn
from calibrant.bilevel.gradients.dynamics import State
from calibrant.bilevel.gradients.hypergradients import (
    HypergradientInput,
    HypergradientResult,
    Order,
    Scope,
    _Scoped,
    outer_gradient,
    warn_without_network,
)
from calibrant.bilevel.gradients.loss_derivatives import Gradient
from calibrant.bilevel.optimizers.base import Optimizer

MatVec = Callable[[Tensor], Tensor]


class LinearSolution(NamedTuple):
    """The solution ``value``, its residual ``‖A·value − b‖ / ‖b‖`` per member, and whether all members converged.

    ``products`` is the number of products with ``A``.
    """

    value: Tensor
    residual: Tensor
    products: int
    converged: bool | Tensor


LinearSolver = Callable[[MatVec, Tensor], LinearSolution]
"""A solver is called as ``solver(matvec, b)`` and solves ``A x = b``."""


@dataclass(frozen=True)
class CG:
    """Conjugate gradients, for a positive definite ``A``. If the inner loss is not convex, add ``damping``.

    At a direction of negative curvature the solve of that member stops with its present solution (Steihaug 1983).
    ``quiet`` turns off the warning about a solve that stops early. ``steps`` is the largest number of products with
    ``A``, and ``tolerance`` the relative residual at which the solve ends.
    """

    steps: int = 100
    tolerance: float = 1e-6
    quiet: bool = False

    def __post_init__(self) -> None:
        check_whole("steps", self.steps)

    def __call__(self, matvec: MatVec, b: Tensor) -> LinearSolution:
        x, r = torch.zeros_like(b), b.clone()
        p, rr = r.clone(), _dot(r, r)
        target, convex = (self.tolerance**2) * rr, torch.ones_like(rr, dtype=torch.bool)
        finite = rr.isfinite()
        rounding = torch.finfo(b.dtype).eps
        products = 0
        for _ in range(self.steps):
            live = convex & (rr > target)
            if not (self.quiet and b.is_cuda) and not bool(live.any()):  # reading it would wait for a GPU
                break
            ap = matvec(p)
            products += 1
            curvature = _dot(p, ap)
            finite = finite & curvature.isfinite()
            # A curvature that is positive only by rounding would make the step arbitrarily long.
            convex = convex & (
                ~live | (curvature > rounding * p.norm(dim=-1, keepdim=True) * ap.norm(dim=-1, keepdim=True))
            )
            live = live & convex
            alpha = torch.where(live, rr / torch.where(live, curvature, 1.0), 0.0)
            x, r = x + alpha * p, torch.where(live, r - alpha * ap, r)
            fresh = _dot(r, r)
            p = r + torch.where(live, fresh / torch.where(rr > 0, rr, 1.0), 0.0) * p
            rr = fresh
        x = torch.where(finite, x, math.nan)  # NaN is not negative curvature, and the caller must see it
        remedy = "more steps, or more damping"
        if not self.quiet and not bool(convex.all()):
            remedy = (
                "more damping, or Nystrom(): the inner loss is not convex here, and conjugate gradients stopped at a "
                "direction of negative curvature"
            )
        return _finish(x, _relative(r, b), products, self.tolerance, None if self.quiet else remedy)


@dataclass(frozen=True)
class Neumann:
    """The truncated series ``x = s·Σ_k (I − s·A)^k b`` (Lorraine et al. 2020).

    It converges if all eigenvalues of ``s·A`` are in (0, 2). ``scale=None`` uses ``s = 1/λ_max`` from power iteration.
    """

    terms: int = 100
    scale: float | None = None
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        check_whole("terms", self.terms)
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"scale must be positive, or None; got {self.scale}.")

    def __call__(self, matvec: MatVec, b: Tensor) -> LinearSolution:
        scale = self.scale if self.scale is not None else 1 / _largest_eigenvalue(matvec, b)
        term, total = b, b
        for _ in range(self.terms):
            term = term - scale * matvec(term)
            total = total + term
        # A population member fails later, by its hypergradient. If b is not finite, the series is not the cause.
        if b.dim() == 1 and bool(b.isfinite().all()) and not bool(total.isfinite().all()):
            raise FloatingPointError("The Neumann series diverged. Decrease scale below 2 / the largest eigenvalue.")
        x = scale * total
        return _finish(x, _relative(b - matvec(x), b), self.terms + 1, self.tolerance, "more terms")


@dataclass(frozen=True)
class Nystrom:
    """A low-rank approximation from products with random directions (Frangella, Tropp & Udell 2023).

    ``A ≈ U Λ Uᵀ`` and ``x = U (Λ + ρ)⁻¹ Uᵀ b + (b − U Uᵀ b)/ρ`` with ρ = ``shift``, the damping outside the captured
    space. It does not iterate, and it does not fail for an indefinite ``A``: negative eigenvalues count as zero. It is
    exact if ``rank`` reaches the dimension, ``A`` is positive definite and ``shift`` is small. It solves one problem at
    a time, not a population.
    """

    rank: int = 20
    shift: float = 1e-2
    seed: int = 0
    tolerance: float = 1e-1

    def __post_init__(self) -> None:
        check_whole("rank", self.rank)
        if not self.shift >= 0:
            raise ValueError(f"shift must be at least 0; got {self.shift}.")

    def __call__(self, matvec: MatVec, b: Tensor) -> LinearSolution:
        if b.dim() != 1:
            raise ValueError("Nystrom needs a single problem; got a population. Use CG() or Neumann().")
        rank = min(self.rank, b.shape[0])
        generator = torch.Generator().manual_seed(self.seed)
        sketch = torch.randn(b.shape[0], rank, generator=generator, dtype=torch.float64, device="cpu").to(b)
        basis = torch.linalg.qr(sketch).Q
        image = torch.stack([matvec(column) for column in basis.unbind(1)], 1)
        core = basis.T @ image
        values, vectors = torch.linalg.eigh((core + core.T) / 2)
        keep = values > values.abs().max() * torch.finfo(b.dtype).eps * rank
        # A ≈ Y (ΩᵀY)⁺ Yᵀ = F Fᵀ with F = Y V Λ^(-1/2), without the part of negative curvature.
        factor = image @ (vectors[:, keep] / values[keep].sqrt())
        u, s, _ = torch.linalg.svd(factor, full_matrices=False)
        inside = u.T @ b
        x = u @ (inside / (s.square() + self.shift))
        if u.shape[1] < b.shape[0]:  # otherwise the difference is only rounding
            x = x + (b - u @ inside) / self.shift
        residual = _relative(b - matvec(x) - self.shift * x, b)
        return _finish(x, residual, rank + 1, self.tolerance, "a larger rank or a larger shift")


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def _relative(r: Tensor, b: Tensor) -> Tensor:
    norm = b.norm(dim=-1)
    return r.norm(dim=-1) / torch.where(norm > 0, norm, 1.0)


def _largest_eigenvalue(matvec: MatVec, b: Tensor, steps: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(b.shape, generator=generator, dtype=torch.float64, device="cpu").to(b)
    for _ in range(steps):
        v = v / v.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(b.dtype).tiny)
        v = matvec(v)
    # Power iteration approaches the eigenvalue from below.
    return 1.1 * v.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(b.dtype).tiny)


def _finish(x: Tensor, residual: Tensor, products: int, tolerance: float, remedy: str | None) -> LinearSolution:
    if remedy is None:  # no warning is wanted
        return LinearSolution(x, residual, products, (residual <= tolerance).all())
    converged = bool((residual <= tolerance).all())
    if not converged:
        # The text must not vary: Python shows an equal warning once, not in every outer step.
        warn(f"The linear solve stopped before its relative residual was {tolerance:.0e}. Try {remedy}.")
    return LinearSolution(x, residual, products, converged)


@dataclass(frozen=True)
class Implicit(_Scoped):
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
        if self.batches < 1:
            raise ValueError(f"batches must be at least 1; got {self.batches}.")
        if self.solve is not None and (isinstance(self.solve, type) or not callable(self.solve)):
            raise TypeError(f"solve must be a linear solver such as CG(); got {self.solve!r}.")
        if self.damping is not None and not check_number("damping", self.damping) >= 0:
            raise ValueError(f"damping must be at least 0; got {self.damping}.")

    @property
    def remembers(self) -> int:
        return self.batches if self.of_head else 0

    def __call__(self, inputs: HypergradientInput, start: State, phi: Tensor) -> HypergradientResult:
        state, losses = start, list[Tensor]()
        if not self.lookahead:
            state, losses = self.train(inputs, start, phi, self.steps)
        return (self._of_head if self.of_head else self._of_all)(inputs, state, losses, phi)

    def _of_all(
        self, inputs: HypergradientInput, state: State, losses: list[Tensor], phi: Tensor
    ) -> HypergradientResult:
        outer, adjoint = outer_gradient(inputs, state, phi)
        if adjoint.buffers:
            raise ValueError(
                "Implicit with scope='all' does not differentiate through BatchNorm's running statistics. Use "
                "scope='head' or Unrolled."
            )
        here = inputs.dynamics.derivatives.linearize(state.params, state.buffers, phi, inputs.draws(state.step))
        share, details = self._solved(here, adjoint.params, inputs.dynamics.optimizer)
        return HypergradientResult(outer.loss, outer.phi - share, losses, state, details)

    def _of_head(
        self, inputs: HypergradientInput, state: State, losses: list[Tensor], phi: Tensor
    ) -> HypergradientResult:
        head, memory = inputs.head, inputs.head.memory
        if not len(memory):  # there are no features before the first training step
            return HypergradientResult(None, torch.zeros_like(phi), losses, state)
        batch, features = memory.joined()
        w = state.params[..., head.at].clone()
        outer = head.outer(state, w, phi, inputs.required_outer_batch)
        warn_without_network(outer)
        linearized = head.inner(state, features).linearize(w, {}, phi, batch)
        share, details = self._solved(linearized, outer.params, inputs.dynamics.optimizer.on(head.at))
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
