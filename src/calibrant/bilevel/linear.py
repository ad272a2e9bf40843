"""Linear solves ``A x = b`` with a symmetric ``A`` known only by its products, for implicit hypergradients.

Each solver is a value; each answer carries its residual and says whether it can be trusted. Vectors run along the last
axis; a leading population axis is solved member by member at the same time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

MatVec = Callable[[Tensor], Tensor]


class LinearSolution(NamedTuple):
    """``value`` with ``‖A·value − b‖ / ‖b‖`` per member, the products used, and whether every member converged."""

    value: Tensor
    residual: Tensor
    products: int
    converged: bool | Tensor


class LinearSolver:
    """Base of the solvers: ``solve(matvec, b) -> LinearSolution``."""

    def __call__(self, matvec: MatVec, b: Tensor) -> LinearSolution:
        """LinearSolver ``A x = b``."""
        raise NotImplementedError


@dataclass(frozen=True)
class CG(LinearSolver):
    """Conjugate gradients, for a positive definite ``A``: add ``damping`` where the inner loss is not convex.

    A direction of negative curvature ends the solve of that member, with what it had before (Steihaug 1983). Where an
    early end is meant, ``quiet`` leaves out the warning.
    """

    steps: int = 100
    tolerance: float = 1e-6
    quiet: bool = False

    def __call__(self, matvec: MatVec, b: Tensor) -> LinearSolution:
        x, r = torch.zeros_like(b), b.clone()
        p, rr = r.clone(), _dot(r, r)
        target, convex = (self.tolerance**2) * rr, torch.ones_like(rr, dtype=torch.bool)
        finite = rr.isfinite()
        rounding = torch.finfo(b.dtype).eps
        products = 0
        for _ in range(self.steps):
            live = convex & (rr > target)
            if not (self.quiet and b.is_cuda) and not bool(live.any()):  # a look would hold up a GPU
                break
            ap = matvec(p)
            products += 1
            curvature = _dot(p, ap)
            finite = finite & curvature.isfinite()
            # What is positive by rounding alone would make the step arbitrarily long.
            convex = convex & (
                ~live | (curvature > rounding * p.norm(dim=-1, keepdim=True) * ap.norm(dim=-1, keepdim=True))
            )
            live = live & convex
            alpha = torch.where(live, rr / torch.where(live, curvature, 1.0), 0.0)
            x, r = x + alpha * p, torch.where(live, r - alpha * ap, r)
            fresh = _dot(r, r)
            p = r + torch.where(live, fresh / torch.where(rr > 0, rr, 1.0), 0.0) * p
            rr = fresh
        x = torch.where(finite, x, math.nan)  # not a direction of negative curvature: the caller must hear of it
        remedy = "more steps, or more damping"
        if not self.quiet and not bool(convex.all()):
            remedy = (
                "more damping, or Nystrom(): the inner loss is not convex here, and conjugate gradients ended "
                "where they met a direction of negative curvature"
            )
        return _finish(x, _relative(r, b), products, self.tolerance, None if self.quiet else remedy)


@dataclass(frozen=True)
class Neumann(LinearSolver):
    """The truncated series ``x = s·Σ_k (I − s·A)^k b`` (Lorraine et al. 2020).

    Converges when all eigenvalues of ``s·A`` lie in (0, 2). ``scale=None`` takes ``s = 1/λ_max`` by power iteration.
    """

    terms: int = 100
    scale: float | None = None
    tolerance: float = 1e-3

    def __call__(self, matvec: MatVec, b: Tensor) -> LinearSolution:
        scale = self.scale if self.scale is not None else 1 / _largest_eigenvalue(matvec, b)
        term, total = b, b
        for _ in range(self.terms):
            term = term - scale * matvec(term)
            total = total + term
        # A member of a population fails by its own hypergradient; where b is not finite, the series is not to blame.
        if b.dim() == 1 and bool(b.isfinite().all()) and not bool(total.isfinite().all()):
            raise FloatingPointError("The Neumann series diverged; decrease scale below 2 / the largest eigenvalue.")
        x = scale * total
        return _finish(x, _relative(b - matvec(x), b), self.terms + 1, self.tolerance, "more terms")


@dataclass(frozen=True)
class Nystrom(LinearSolver):
    """A rank-``rank`` approximation from products with random directions (Frangella, Tropp & Udell 2023).

    ``A ≈ U Λ Uᵀ`` and ``x = U (Λ + ρ)⁻¹ Uᵀ b + (b − U Uᵀ b)/ρ`` with ρ = ``shift`` (the damping outside the captured
    space). No iteration and no failure on indefinite ``A``: eigenvalues below zero are taken as zero. Exact when
    ``rank`` reaches the dimension, ``A`` is positive definite and ``shift`` is small. One problem at a time, not a
    population.
    """

    rank: int = 20
    shift: float = 1e-2
    seed: int = 0
    tolerance: float = 1e-1

    def __call__(self, matvec: MatVec, b: Tensor) -> LinearSolution:
        if b.dim() != 1:
            raise ValueError("Nystrom solves one problem at a time; use CG() or Neumann() for a population.")
        rank = min(self.rank, b.shape[0])
        generator = torch.Generator().manual_seed(self.seed)
        sketch = torch.randn(b.shape[0], rank, generator=generator, dtype=torch.float64).to(b)
        basis = torch.linalg.qr(sketch).Q
        image = torch.stack([matvec(column) for column in basis.unbind(1)], 1)
        core = basis.T @ image
        values, vectors = torch.linalg.eigh((core + core.T) / 2)
        keep = values > values.abs().max() * torch.finfo(b.dtype).eps * rank
        # A ≈ Y (ΩᵀY)⁺ Yᵀ, as F Fᵀ with F = Y V Λ^(-1/2); the part of negative curvature is left out.
        factor = image @ (vectors[:, keep] / values[keep].sqrt())
        u, s, _ = torch.linalg.svd(factor, full_matrices=False)
        inside = u.T @ b
        x = u @ (inside / (s.square() + self.shift))
        if u.shape[1] < b.shape[0]:  # otherwise nothing lies outside, and the difference would be rounding
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
    v = torch.randn(b.shape, generator=generator, dtype=torch.float64).to(b)
    for _ in range(steps):
        v = v / v.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(b.dtype).tiny)
        v = matvec(v)
    return 1.1 * v.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(b.dtype).tiny)  # power iteration comes from below


def _finish(x: Tensor, residual: Tensor, products: int, tolerance: float, remedy: str | None) -> LinearSolution:
    if remedy is None:  # nobody asked to hear of it
        return LinearSolution(x, residual, products, (residual <= tolerance).all())
    converged = bool((residual <= tolerance).all())
    if not converged:
        # The same words each time: Python then says them once, and not at every outer step.
        warnings.warn(
            f"The linear solve stopped before its relative residual was {tolerance:.0e}; try {remedy}.", stacklevel=3
        )
    return LinearSolution(x, residual, products, converged)
