"""One penalised multinomial regression: the core of vector, matrix, structured and Dirichlet scaling."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp
from sklearn.exceptions import ConvergenceWarning

from calibrant.posthoc._base import Floats

# Largest entry of the gradient of the mean loss, for columns of unit mean square, at convergence.
_TOLERANCE = 1e-6
# Without a penalty, a mean log-loss below this means that the labels are separated and there is no minimum.
_SEPARATED = 1e-5


@dataclass(frozen=True)
class Problem:
    """min over (W, b) of the mean log-loss of softmax(W x + b) plus Σ penalty · (coefficients - centre)².

    Coefficients are the (C, D + 1) matrix [W | b]; `free` marks those that move, the others stay at `centre`;
    `lower` bounds them from below (-inf for none).
    """

    design: Floats
    labels: np.ndarray
    weights: Floats
    centre: Floats
    penalty: Floats
    free: np.ndarray
    lower: Floats | None = None


def affine_logits(design: Floats, coefficients: Floats) -> Floats:
    """W x + b for every row x."""
    return design @ coefficients[:, :-1].T + coefficients[:, -1]


def objective(problem: Problem, coefficients: Floats) -> float:
    """What `solve` minimises."""
    log_p = log_softmax(affine_logits(problem.design, coefficients), axis=1)
    share = problem.weights / problem.weights.sum()
    penalty = (problem.penalty * (coefficients - problem.centre) ** 2).sum()
    return float(penalty - share @ log_p[np.arange(len(log_p)), problem.labels])


def solve(
    problem: Problem,
    start: Floats | None = None,
    name: str = "The regression",
    tolerance: float = _TOLERANCE,
) -> Floats:
    """Solve `problem` in float64: L-BFGS with the exact gradient, then Newton steps where it needs them.

    The problem is convex, so a small gradient is a proof; where it is not reached, a ConvergenceWarning
    says so. Columns are scaled to unit mean square inside, which leaves the solution as it is.
    """
    n_classes = problem.centre.shape[0]
    design = np.column_stack([problem.design, np.ones(len(problem.design))])
    share = problem.weights / problem.weights.sum()
    scale = np.sqrt(share @ design**2)
    scale[scale == 0] = 1.0
    design = design / scale
    centre, penalty = problem.centre * scale, problem.penalty / scale**2
    free = problem.free
    lower = np.full(free.sum(), -np.inf) if problem.lower is None else (problem.lower * scale)[free]
    rows = np.arange(len(design))
    one_hot = (np.arange(n_classes) == problem.labels[:, None]).astype(float)

    def coefficients(theta: Floats) -> Floats:
        full = centre.copy()
        full[free] = theta
        return full

    def loss(theta: Floats) -> tuple[float, Floats]:
        full = coefficients(theta)
        eta = design @ full.T
        total = logsumexp(eta, axis=1)
        moved = full - centre
        value = share @ (total - eta[rows, problem.labels]) + (penalty * moved**2).sum()
        error = np.exp(eta - total[:, None]) - one_hot
        gradient = (share[:, None] * error).T @ design + 2 * penalty * moved
        return float(value), gradient[free]

    def hessian_product(theta: Floats, direction: Floats) -> Floats:
        full = np.zeros_like(centre)
        full[free] = direction
        probs = np.exp(log_softmax(design @ coefficients(theta).T, axis=1))
        change = probs * (design @ full.T)
        change -= probs * change.sum(axis=1, keepdims=True)
        return ((share[:, None] * change).T @ design + 2 * penalty * full)[free]

    def residual(theta: Floats) -> float:
        """Largest entry of the gradient; at a bound, only of what points inwards."""
        gradient = loss(theta)[1]
        return float(np.abs(np.where(theta <= lower, np.minimum(gradient, 0.0), gradient)).max())

    first = (problem.centre if start is None else start) * scale
    found = minimize(
        loss,
        first[free],
        jac=True,
        method="L-BFGS-B",
        bounds=[(low, np.inf) for low in lower],
        options={"maxiter": 1000, "maxfun": 2000, "maxcor": 20, "ftol": 0.0, "gtol": 0.1 * tolerance},
    )
    theta = found.x
    if residual(theta) > tolerance and problem.lower is None:
        polished = minimize(
            lambda t: loss(t)[0],
            theta,
            jac=lambda t: loss(t)[1],
            hessp=hessian_product,
            method="trust-ncg",
            options={"gtol": 0.1 * tolerance, "maxiter": 100},
        )
        theta = polished.x
    separated = bool((penalty[free] == 0).any()) and loss(theta)[0] < _SEPARATED
    _report(residual(theta), separated, name, tolerance)
    return coefficients(theta) / scale


def _report(gradient: float, separated: bool, name: str, tolerance: float) -> None:
    if separated:
        warnings.warn(
            f"{name} separates the calibration labels, so its coefficients grow without bound. "
            "Add regularisation, or use more calibration samples.",
            ConvergenceWarning,
            stacklevel=2,
        )
    elif gradient > tolerance:
        warnings.warn(
            f"{name} did not converge: the largest entry of the gradient is {gradient:.1e}, expected at most "
            f"{tolerance:.0e}. Add regularisation, or use more calibration samples.",
            ConvergenceWarning,
            stacklevel=2,
        )
