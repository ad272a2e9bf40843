"""Shape-restricted polynomial regression: a smooth, non-decreasing map."""

from __future__ import annotations

from numbers import Real

import numpy as np
from scipy.linalg import qr, solve_triangular
from scipy.optimize import nnls
from scipy.special import comb, expit
from sklearn.exceptions import ConvergenceWarning

from calibrant.base.settings import shown
from calibrant.base.warning import warn
from calibrant.posthoc._base import Floats
from calibrant.posthoc._one_vs_rest import Map, OneVsRest

# The constraints use this multiple of the degree; a higher one admits more monotone polynomials.
_ELEVATION = 4
# Weight, in samples, of the pull towards the identity, which decides what the data leave open.
_RIDGE = 0.01


class ShapeRestrictedPolynomial(OneVsRest):
    """Least-squares fit of a polynomial that is non-decreasing on [0, 1] and stays within it, per class.

    Wang, Li and Dang, "Calibrating Classification Probabilities with Shape-Restricted Polynomial
    Regression", IEEE TPAMI 41(8), 2019: min Σ w (f(q) - [y = k])² over polynomials f of a degree d with f'
    ≥ 0 on [0, 1], 0 ≤ f ≤ 1.

    Deviations: the paper writes f' ≥ 0 as semidefinite constraints. Here f is written in the Bernstein
    basis of degree 4 d, where increasing coefficients are sufficient for f' ≥ 0 (and, as that degree grows, necessary
    for f' > 0). This is a quadratic program, solved exactly by non-negative least squares (Lawson and Hanson, "Solving
    Least Squares Problems", 1974, chapter 23), without a semidefinite solver. The bounds are 1/(2n + 2) inside 0 and 1,
    so that unseen samples have a finite log-loss.

    Parameters
    ----------
    degree : int
        The degree d.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    maps_ : list of dict
        One dict per class (for two classes: class 1 alone) with "coefficients", (4 d + 1,), non-decreasing.
    """

    def __init__(self, degree: int = 16, *, from_probs: bool = False) -> None:
        self.degree = degree
        self.from_probs = from_probs

    def _fit_map(self, odds: Floats, target: Floats, weights: Floats) -> Map:
        if not isinstance(self.degree, Real) or self.degree < 1 or self.degree % 1:
            raise ValueError(f"degree must be a whole number, 1 or above; got {shown(self.degree)}.")
        return {"coefficients": fit_monotone_polynomial(expit(odds), target, weights, int(self.degree))}

    def _apply_map(self, fitted: Map, odds: Floats) -> Floats:
        coefficients = fitted["coefficients"]
        return bernstein(expit(odds), len(coefficients) - 1) @ coefficients


def bernstein(x: Floats, degree: int) -> Floats:
    """The Bernstein polynomials of this degree at x, one column each; they are positive and sum to 1."""
    j = np.arange(degree + 1)
    return comb(degree, j) * x[:, None] ** j * (1.0 - x[:, None]) ** (degree - j)


def fit_monotone_polynomial(x: Floats, target: Floats, weights: Floats, degree: int) -> Floats:
    """Least-squares non-decreasing polynomial on [0, 1]: its coefficients in the elevated Bernstein basis."""
    margin = 1.0 / (2.0 * weights.sum() + 2.0)
    identity = np.linspace(0.0, 1.0, degree + 1)
    root = np.sqrt(weights)[:, None]
    design = np.vstack([root * bernstein(x, degree), np.sqrt(_RIDGE) * np.eye(degree + 1)])
    response = np.concatenate([root[:, 0] * target, np.sqrt(_RIDGE) * identity])
    elevate = _elevation(degree, _ELEVATION * degree)
    # Rows: increasing elevated coefficients, first at least `margin`, last at most 1 - margin.
    constraints = np.vstack([np.diff(elevate, axis=0), elevate[:1], -elevate[-1:]])
    limits = np.concatenate([np.zeros(len(elevate) - 1), [margin, margin - 1.0]])
    fitted = elevate @ _constrained_least_squares(design, response, constraints, limits)
    # Remove violations that rounding left, so that the map is monotone for every input.
    return np.clip(np.maximum.accumulate(fitted), margin, 1.0 - margin)


def _elevation(degree: int, elevated: int) -> Floats:
    """Matrix from Bernstein coefficients of a degree to those of the same polynomial at a higher degree."""
    i = np.arange(elevated + 1)[:, None]
    j = np.arange(degree + 1)
    inside = (i - j >= 0) & (i - j <= elevated - degree)
    return np.where(inside, comb(degree, j) * comb(elevated - degree, i - j) / comb(elevated, i), 0.0)


def _constrained_least_squares(design: Floats, response: Floats, constraints: Floats, limits: Floats) -> Floats:
    """Minimise ‖design c - response‖ subject to constraints c ≥ limits, as a least-distance problem."""
    q, r = qr(design, mode="economic")
    centre = q.T @ response
    moved = solve_triangular(r, constraints.T, trans="T").T
    slack = limits - moved @ centre
    stacked = np.vstack([moved.T, slack])
    unit = np.zeros(len(stacked))
    unit[-1] = 1.0
    dual, _ = nnls(stacked, unit, maxiter=50 * len(slack))
    residual = stacked @ dual - unit
    distance = -residual[:-1] / residual[-1]
    if (moved @ distance - slack).min() < -1e-6:
        warn(
            "The shape-restricted polynomial did not reach its constraints to 1e-6; they are enforced after "
            "the fit. Lower the degree, or use more calibration samples.",
            ConvergenceWarning,
        )
    return solve_triangular(r, centre + distance)
