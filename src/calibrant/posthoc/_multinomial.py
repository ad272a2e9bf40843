"""One penalised multinomial regression: the core of vector, matrix, structured and Dirichlet scaling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning

from calibrant.base.warning import warn
from calibrant.posthoc._base import Floats

# Largest entry of the gradient of the mean loss, for columns of unit mean square, at convergence.
_TOLERANCE = 1e-6
# Without a penalty, a mean log-loss below this means that the labels are separated and there is no minimum.
_SEPARATED = 1e-5


@dataclass(frozen=True)
class MultinomialProblem:
    """min over (W, b) of the mean log-loss of softmax(W x + b) plus Σ penalty · (coefficients - centre)².

    Coefficients are the (C, D + 1) matrix [W | b]. `free` marks those that are fitted; the others stay at `centre`.
    `lower` bounds them from below (-inf for no bound).
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


def objective(problem: MultinomialProblem, coefficients: Floats) -> float:
    """The function that `solve` minimises."""
    log_p = log_softmax(affine_logits(problem.design, coefficients), axis=1)
    share = problem.weights / problem.weights.sum()
    penalty = (problem.penalty * (coefficients - problem.centre) ** 2).sum()
    return float(penalty - share @ log_p[np.arange(len(log_p)), problem.labels])


class _Objective:
    """The objective in coordinates where every column of the design has mean square 1, with its derivatives."""

    def __init__(self, problem: MultinomialProblem) -> None:
        self.share = problem.weights / problem.weights.sum()
        design = np.column_stack([problem.design, np.ones(len(problem.design))])
        self.scale = np.sqrt(self.share @ design**2)  # root mean square of each column
        self.scale = np.where(self.scale > 0, self.scale, 1.0)
        self.design = design / self.scale
        self.centre, self.penalty = problem.centre * self.scale, problem.penalty / self.scale**2
        self.at_label = np.arange(len(design)), problem.labels

    def probs(self, full: Floats) -> tuple[Floats, Floats]:
        """Probabilities, and the log-loss of each row; in place if possible, since most time is spent here."""
        probs = self.design @ full.T
        label_logits = probs[self.at_label]
        highest = probs.max(axis=1)
        probs -= highest[:, None]
        np.exp(probs, out=probs)
        total = probs.sum(axis=1)
        probs /= total[:, None]
        return probs, np.log(total) + highest - label_logits

    def value_and_gradient(self, full: Floats) -> tuple[float, Floats]:
        error, losses = self.probs(full)
        moved = full - self.centre
        error[self.at_label] -= 1.0
        error *= self.share[:, None]
        value = self.share @ losses + (self.penalty * moved**2).sum()
        return float(value), error.T @ self.design + 2 * self.penalty * moved

    def hessian_product(self, full: Floats, direction: Floats) -> Floats:
        probs = self.probs(full)[0]
        change = probs * (self.design @ direction.T)
        change -= probs * change.sum(axis=1, keepdims=True)
        return (self.share[:, None] * change).T @ self.design + 2 * self.penalty * direction

    def class_blocks(self, full: Floats, columns: np.ndarray) -> Floats:
        """The Hessian of the log-loss in the coefficients of one class, for each class: (C, m, m)."""
        probs = self.probs(full)[0]
        spread = self.share[:, None] * probs * (1.0 - probs)
        blocks = np.empty((len(columns), columns.shape[1], columns.shape[1]))
        for k, class_columns in enumerate(columns):
            # Rows with a probability close to 0 or 1 for this class add almost nothing.
            rows = np.flatnonzero(spread[:, k] > 1e-3 * spread[:, k].max())
            part = self.design[np.ix_(rows, class_columns)]
            blocks[k] = (spread[rows, k, None] * part).T @ part
        return blocks


def class_curvature(problem: MultinomialProblem) -> Floats:
    """Blocks of the Hessian of the log-loss at the centre, for `solve` of problems with the same design and centre."""
    objective = _Objective(problem)
    columns = _free_columns(problem.free)
    units = objective.scale[columns]
    return objective.class_blocks(objective.centre, columns) * (units[:, :, None] * units[:, None, :])


def solve(
    problem: MultinomialProblem,
    start: Floats | None = None,
    name: str = "The regression",
    tolerance: float = _TOLERANCE,
    curvature: Floats | None = None,
) -> Floats:
    """Solve `problem` in float64: L-BFGS with the exact gradient, then Newton steps where it needs them.

    The scores of many classes are correlated, which makes plain L-BFGS slow. Therefore it works in coordinates u in
    which the Hessian block of each class, at the centre, is the identity; with lower bounds only the units change. The
    problem is convex, so a small gradient proves the solution. If it is not reached, there is a ConvergenceWarning.

    `curvature` is the result of `class_curvature`; pass it to solve several problems that differ in their penalty or
    leave out some rows. All positive blocks give the same solution, in more or fewer steps.
    """
    objective = _Objective(problem)
    columns = _free_columns(problem.free)
    rows = np.arange(len(columns))[:, None]
    units = objective.scale[columns]
    blocks = class_curvature(problem) if curvature is None else curvature
    blocks = blocks / (units[:, :, None] * units[:, None, :])
    moves = problem.free[rows, columns]
    diagonal = np.where(moves, 2 * objective.penalty[rows, columns], 1.0)
    blocks = np.where(moves[:, :, None] & moves[:, None, :], blocks, 0.0)
    blocks += np.eye(columns.shape[1]) * diagonal[:, :, None]
    bounded = problem.lower is not None
    basis, steepest = _basis(blocks, diagonal=bounded)
    middle = objective.centre[rows, columns]

    def full(u: Floats) -> Floats:
        matrix = objective.centre.copy()
        matrix[rows, columns] += np.where(moves, (basis @ u.reshape(*columns.shape, 1))[:, :, 0], 0.0)
        return matrix

    def pulled(gradient: Floats) -> Floats:
        return (np.where(moves, gradient[rows, columns], 0.0)[:, None, :] @ basis).ravel()

    def loss(u: Floats) -> tuple[float, Floats]:
        value, gradient = objective.value_and_gradient(full(u))
        return value, pulled(gradient)

    def hessian_product(u: Floats, direction: Floats) -> Floats:
        return pulled(objective.hessian_product(full(u), full(direction) - objective.centre))

    lower = np.full(problem.free.shape, -np.inf) if problem.lower is None else problem.lower * objective.scale
    lowest = np.where(moves, lower[rows, columns], -np.inf)

    def residual(u: Floats) -> float:
        """Largest entry of the gradient; at a bound, only entries that point inwards count."""
        matrix = full(u)
        gradient = np.where(moves, objective.value_and_gradient(matrix)[1][rows, columns], 0.0)
        at_bound = matrix[rows, columns] <= lowest + 1e-14
        return float(np.abs(np.where(at_bound, np.minimum(gradient, 0.0), gradient)).max())

    first = objective.centre if start is None else start * objective.scale
    u = np.linalg.solve(basis, (first[rows, columns] - middle)[:, :, None]).ravel()
    goal = 0.3 * tolerance / max(1.0, steepest)
    limits = ((lowest - middle) / np.einsum("kii->ki", basis)).ravel()
    u = minimize(
        loss,
        u,
        jac=True,
        method="L-BFGS-B",
        bounds=[(limit, np.inf) for limit in limits] if bounded else None,
        options={"maxiter": 1000, "maxfun": 2000, "maxcor": 20, "ftol": 0.0, "gtol": goal},
    ).x
    if residual(u) > tolerance and not bounded:
        u = minimize(
            lambda t: loss(t)[0],
            u,
            jac=lambda t: loss(t)[1],
            hessp=hessian_product,
            method="trust-ncg",
            options={"gtol": goal, "maxiter": 100},
        ).x
    separated = bool((objective.penalty[problem.free] == 0).any()) and loss(u)[0] < _SEPARATED
    _report(residual(u), separated, name, tolerance)
    return full(u) / objective.scale


def _free_columns(free: np.ndarray) -> np.ndarray:
    """Positions of the free coefficients of each class, (C, m); shorter lists are filled up with others."""
    return np.argsort(~free, axis=1, kind="stable")[:, : free.sum(axis=1).max()]


def _basis(blocks: Floats, diagonal: bool) -> tuple[Floats, float]:
    """B with Bᵀ H B = I for every block H (or its diagonal), and the root of H's largest eigenvalue."""
    values, vectors = np.linalg.eigh(blocks * np.eye(blocks.shape[1]) if diagonal else blocks)
    # A direction without curvature gets a unit similar to the others.
    values = np.maximum(values, 1e-8 * values.max(axis=1, keepdims=True))
    values = np.maximum(values, 1e-12)
    # Symmetric, so that a diagonal block gives a diagonal basis.
    return (vectors / np.sqrt(values)[:, None, :]) @ vectors.transpose(0, 2, 1), float(np.sqrt(values.max()))


def _report(gradient: float, separated: bool, name: str, tolerance: float) -> None:
    if separated:
        warn(
            f"{name} separates the calibration labels, so its coefficients grow without bound. "
            "Add regularisation, or use more calibration samples.",
            ConvergenceWarning,
        )
    elif gradient > tolerance:
        warn(
            f"{name} did not converge: the largest entry of the gradient is {gradient:.1e} instead of at most "
            f"{tolerance:.0e}. Add regularisation, or use more calibration samples.",
            ConvergenceWarning,
        )
