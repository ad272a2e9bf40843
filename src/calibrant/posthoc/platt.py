"""Parametric maps of a class's own score: Platt scaling and beta calibration."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.exceptions import ConvergenceWarning

from calibrant.base.warning import warn
from calibrant.posthoc._base import Calibrator, Floats, Map, OneVsRest, check_strength, log_complement, log_odds
from calibrant.posthoc._multinomial import MultinomialProblem, solve


class Platt(OneVsRest):
    """Platt scaling: p = σ(a s + b) for each class against the rest, with s its score.

    Platt, "Probabilistic Outputs for Support Vector Machines and Comparisons to Regularized Likelihood
    Methods", 1999, with his targets (N₊ + 1)/(N₊ + 2) and 1/(N₋ + 2). Deviations: s is not the margin of a support
    vector machine. For two classes it is the log-odds of the model's probability, for more classes the logarithm of
    that probability (log-odds give a higher log-loss there). As in the original, a may be negative, which reverses a
    model that is worse than guessing.

    Parameters
    ----------
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    maps_ : list of dict
        One dict per class (for two classes: class 1 alone) with "coefficients", (a, b).
    """

    def _columns(self, scores: Floats) -> Floats:
        return log_odds(scores) if scores.shape[1] == 2 else scores

    def _fit_map(self, column: Floats, target: Floats, weights: Floats) -> Map:
        # With these targets the optimum is finite, even if the classes are separated or one of them is absent.
        positives, total = float(weights @ target), float(weights.sum())
        soft = np.where(target > 0, (positives + 1) / (positives + 2), 1 / (total - positives + 2))
        share = weights / total
        scale = float(np.sqrt(share @ column**2)) or 1.0
        design = np.column_stack([column / scale, np.ones_like(column)])

        def loss(c: Floats) -> tuple[float, Floats]:
            eta = design @ c
            value = share @ (np.logaddexp(0.0, eta) - soft * eta)
            return float(value), design.T @ (share * (expit(eta) - soft))

        options = {"maxiter": 1000, "ftol": 0.0, "gtol": 1e-9}
        optimum = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", options=options)
        gradient = np.abs(loss(optimum.x)[1]).max()
        if gradient > 1e-6:
            warn(
                f"Platt scaling did not converge: the largest entry of the gradient is {gradient:.1e} instead of at "
                "most 1e-06. Use more calibration samples.",
                ConvergenceWarning,
            )
        return {"coefficients": optimum.x / np.array([scale, 1.0])}

    def _apply_map(self, fitted: Map, column: Floats) -> Floats:
        a, b = fitted["coefficients"]
        return expit(a * column + b)


class Beta(Calibrator):
    """Beta calibration: p = softmax_k(a_k ln q_k - b_k ln(1 - q_k) + c_k) with a, b ≥ 0.

    Kull, Silva Filho and Flach, "Beta calibration: a well-founded and easily implemented improvement on
    logistic calibration for binary classifiers", AISTATS 2017. For two classes this is the paper's map, the logistic
    function of a ln q - b ln(1 - q) + c, with a = a₁ + b₀ and b = b₁ + a₀; a, b ≥ 0 keeps it monotone. Deviations: for
    more classes the paper fits one against the rest; here all classes are fitted together, to one log-loss. The paper
    drops a feature with a negative coefficient and fits again; here the constrained problem is solved. A weak pull to
    the identity, l2 · C / n · (‖a - 1‖² + ‖b‖² + ‖c‖²), keeps the optimum finite on separated labels.

    Parameters
    ----------
    l2 : float
        Strength of the pull to the identity.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    coefficients_ : array of shape (C, 3)
        A row (a, b, c) per class.
    """

    def __init__(self, l2: float = 0.1, *, from_probs: bool = False) -> None:
        self.l2 = l2
        self.from_probs = from_probs

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        check_strength("l2", self.l2)
        n_classes = scores.shape[1]
        diagonal, none = np.eye(n_classes), np.zeros((n_classes, n_classes))
        design = np.column_stack([scores, -log_complement(scores)])
        free = np.column_stack([diagonal, diagonal, np.ones(n_classes)]).astype(bool)
        identity = np.column_stack([diagonal, none, np.zeros(n_classes)])
        penalty = np.full(free.shape, self.l2 * n_classes / weights.sum())
        lower = np.column_stack([none, none, np.full(n_classes, -np.inf)])
        problem = MultinomialProblem(design, labels, weights, identity, penalty, free, lower)
        full = solve(problem, name="Beta calibration")
        parts = [np.diag(full[:, :n_classes]), np.diag(full[:, n_classes : 2 * n_classes]), full[:, -1]]
        self.coefficients_ = np.column_stack(parts)

    def _predict(self, scores: Floats) -> Floats:
        a, b, c = self.coefficients_.T
        return softmax(a * scores - b * log_complement(scores) + c, axis=1)
