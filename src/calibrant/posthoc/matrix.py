"""Affine maps of the log-probabilities: vector, matrix, structured matrix and Dirichlet scaling.

All four are penalised multinomial regressions (`_multinomial`). They differ in the free coefficients and the penalty.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from calibrant.posthoc._base import Calibrator, Floats, check_strength
from calibrant.posthoc._multinomial import MultinomialProblem, affine_logits, class_curvature, objective, solve
from calibrant.posthoc.temperature import bounded_temperature

# Strengths of ODIR for cross-validation, strongest first, so that each fit starts from a simpler one.
ODIR_GRID = (100.0, 10.0, 1.0, 0.1, 0.01, 0.001)


class _Affine(Calibrator):
    """softmax(W x + b), where x is `_design` of the scores."""

    def _design(self, scores: Floats) -> Floats:
        raise NotImplementedError

    def _predict(self, scores: Floats) -> Floats:
        return softmax(affine_logits(self._design(scores), self.coefficients_), axis=1)


class _Structured(_Affine):
    """Temperature scaling, followed by a map that is shrunk towards the identity."""

    def _design(self, scores: Floats) -> Floats:
        scaled = log_softmax(scores / self.temperature_, axis=1)
        return scaled - scaled.mean(axis=1, keepdims=True) if self.centred_ else scaled

    def _fit_structured(
        self,
        scores: Floats,
        labels: np.ndarray,
        weights: Floats,
        penalty: Floats,
        free: np.ndarray,
        try_centred: bool = False,
    ) -> None:
        self.temperature_ = bounded_temperature(scores, labels, weights)
        candidates = []
        for centred in (False, True) if try_centred else (False,):
            self.centred_ = centred
            centre = _identity(scores.shape[1])
            problem = MultinomialProblem(self._design(scores), labels, weights, centre, penalty / weights.sum(), free)
            coefficients = solve(problem, name=type(self).__name__)
            # Rows of mean zero must be better by C/n, Akaike's penalty for C parameters.
            value = objective(problem, coefficients) + centred * scores.shape[1] / weights.sum()
            candidates.append((value, centred, coefficients))
        _, self.centred_, self.coefficients_ = min(candidates, key=lambda candidate: candidate[0])


class Vector(_Structured):
    """Vector scaling: p = softmax(diag(v) x + b), with x the logits after temperature scaling.

    Section 4.2 of Guo et al. 2017, with the shrinkage of "structured vector scaling" (Berta, Holzmüller,
    Jordan and Bach, "Structured Matrix Scaling for Multi-Class Calibration", arXiv:2511.03685): the mean log-loss plus
    l2 · C / n · (‖v - 1‖² + ‖b‖²). Deviations from Guo et al.: they have no penalty. Without it (``l2=0``), a class
    that is missing in the calibration set has no finite solution. Their z is any vector of logits, but diag(v) z
    depends on the constant per row that a softmax ignores. Here x are log-probabilities, or rows of mean zero if these
    lower the penalised loss by more than C / n.

    Parameters
    ----------
    l2 : float
        Strength of the shrinkage towards v = 1, b = 0.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    temperature_ : float
        T of the first step.
    centred_ : bool
        Whether the rows of x have mean zero.
    coefficients_ : array of shape (C, C + 1)
        [diag(v) | b].
    """

    def __init__(self, l2: float = 1.0, *, from_probs: bool = False) -> None:
        self.l2 = l2
        self.from_probs = from_probs

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        check_strength("l2", self.l2)
        n_classes = scores.shape[1]
        free = np.column_stack([np.eye(n_classes, dtype=bool), np.ones(n_classes, dtype=bool)])
        penalty = np.full((n_classes, n_classes + 1), self.l2 * n_classes)
        self._fit_structured(scores, labels, weights, penalty, free, try_centred=True)


class StructuredMatrix(_Structured):
    """Structured matrix scaling: p = softmax((I + diag(v) + M) x + b), each part with its own shrinkage.

    Berta, Holzmüller, Jordan and Bach, "Structured Matrix Scaling for Multi-Class Calibration",
    arXiv:2511.03685. x are the log-probabilities after temperature scaling, M has no diagonal, and the mean
    log-loss is penalised by ::

        l2_bias · C/n · ‖b‖²  +  l2_diagonal · C/n · ‖v‖²  +  l2_off_diagonal · C(C-1)/n · ‖M‖².

    With few samples the map is plain temperature scaling; it approaches matrix scaling as n grows. These are the
    paper's ridge penalties with ρ = τ = 1. Deviation: L-BFGS and Newton steps replace the paper's SAGA solver on the
    same convex problem.

    Parameters
    ----------
    l2_bias, l2_diagonal, l2_off_diagonal : float
        Strengths of the three penalties.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    temperature_ : float
        T of the first step.
    coefficients_ : array of shape (C, C + 1)
        [I + diag(v) + M | b].
    """

    def __init__(
        self,
        l2_bias: float = 1.0,
        l2_diagonal: float = 1.0,
        l2_off_diagonal: float = 1.0,
        *,
        from_probs: bool = False,
    ) -> None:
        self.l2_bias = l2_bias
        self.l2_diagonal = l2_diagonal
        self.l2_off_diagonal = l2_off_diagonal
        self.from_probs = from_probs

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        for name in ("l2_bias", "l2_diagonal", "l2_off_diagonal"):
            check_strength(name, getattr(self, name))
        n_classes = scores.shape[1]
        matrix = np.full((n_classes, n_classes), self.l2_off_diagonal * n_classes * (n_classes - 1))
        np.fill_diagonal(matrix, self.l2_diagonal * n_classes)
        penalty = np.column_stack([matrix, np.full(n_classes, self.l2_bias * n_classes)])
        self._fit_structured(scores, labels, weights, penalty, np.ones_like(penalty, dtype=bool))


class _Odir(_Affine):
    """W and b free, with off-diagonal and intercept regularisation (ODIR), Kull et al. 2019."""

    def __init__(self, odir: float | None = None, folds: int = 3, *, from_probs: bool = False) -> None:
        self.odir = odir
        self.folds = folds
        self.from_probs = from_probs

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        design = self._design(scores)
        temperature = bounded_temperature(scores, labels, weights)
        if self.odir is None:
            self.odir_ = self._choose(design, labels, weights, temperature)
        else:
            check_strength("odir", self.odir)
            self.odir_ = float(self.odir)
        problem = _odir_problem(design, labels, weights, self.odir_, temperature)
        self.coefficients_ = solve(problem, name=type(self).__name__)

    def _choose(self, design: Floats, labels: np.ndarray, weights: Floats, temperature: float) -> float:
        """The strength with the smallest held-out log-loss; the strongest if there are too few rows to split.

        With two classes there are two or three effective parameters, and the weakest strength is used.
        """
        if self.folds < 2:
            raise ValueError(
                f"folds must be at least 2; got {self.folds}. Set odir to a number to avoid the cross-validation."
            )
        if len(labels) < 2 * self.folds:
            return ODIR_GRID[0]
        if design.shape[1] == 2:
            return ODIR_GRID[-1]
        split = list(KFold(self.folds, shuffle=True, random_state=0).split(design))
        starts: list[Floats | None] = [None] * self.folds
        # Folds and strengths share the curvature of the log-loss at the centre.
        curvature = class_curvature(_odir_problem(design, labels, weights, ODIR_GRID[0], temperature))
        losses: list[float] = []
        with warnings.catch_warnings():
            # Only the held-out loss of a fold matters.
            warnings.simplefilter("ignore", ConvergenceWarning)
            for odir in ODIR_GRID:
                losses.append(0.0)
                for fold, (inside, outside) in enumerate(split):
                    part = (design[inside], labels[inside], weights[inside])
                    problem = _odir_problem(*part, odir, temperature)
                    starts[fold] = coefficients = solve(problem, starts[fold], tolerance=1e-4, curvature=curvature)
                    log_p = log_softmax(affine_logits(design[outside], coefficients), axis=1)
                    losses[-1] -= float(weights[outside] @ log_p[np.arange(len(outside)), labels[outside]])
                if losses[-3:] == sorted(losses[-3:]) and len(losses) >= 3:
                    break  # two rises in a row: weaker strengths are slower and hardly help
        return ODIR_GRID[int(np.argmin(losses))]


class Matrix(_Odir):
    """Matrix scaling: p = softmax(W z + b), with off-diagonal and intercept regularisation.

    Section 4.2 of Guo et al. 2017; the penalty on the mean log-loss is ODIR of Kull, Perelló-Nieto,
    Kängsepp, Silva Filho, Song and Flach, "Beyond temperature scaling", NeurIPS 2019, ::

        λ / (C(C-1)) Σ_{i≠j} W_ij²  +  μ / C Σ_j b_j²,   here λ = odir · C²(C-1)²/n and μ = odir · C²/n.

    Deviations: λ and μ are tied to one number, in the units of `StructuredMatrix`, so that one range suits every C and
    n. It is chosen by cross-validation unless given. The row mean is subtracted from the logits first, since the
    softmax ignores it. The diagonal, which ODIR leaves free, is pulled to 1/T of temperature scaling by
    C / n · ‖T diag(W) - 1‖²; otherwise the entry of a class that the calibration set separates perfectly would be
    infinite.

    Parameters
    ----------
    odir : float, optional
        Strength of the penalty. None chooses it from 1e-3 … 1e2 by cross-validation (1e-3 for two classes, which have
        few parameters).
    folds : int
        Number of folds for that choice.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    odir_ : float
        The strength that was used.
    coefficients_ : array of shape (C, C + 1)
        [W | b].
    """

    def _design(self, scores: Floats) -> Floats:
        return scores - scores.mean(axis=1, keepdims=True)


class Dirichlet(_Odir):
    """Dirichlet calibration: p = softmax(W ln q + b), with q the model's probabilities.

    The linear parametrisation of Kull et al., "Beyond temperature scaling: Obtaining well-calibrated
    multi-class probabilities with Dirichlet calibration", NeurIPS 2019, with ODIR and the pull of the
    diagonal as in `Matrix`.

    Parameters and attributes are those of `Matrix`.
    """

    def _design(self, scores: Floats) -> Floats:
        return scores


def _identity(n_classes: int) -> Floats:
    return np.column_stack([np.eye(n_classes), np.zeros(n_classes)])


def _odir_problem(
    design: Floats, labels: np.ndarray, weights: Floats, odir: float, temperature: float
) -> MultinomialProblem:
    n_classes = design.shape[1]
    matrix = np.full((n_classes, n_classes), odir * n_classes * (n_classes - 1.0))
    np.fill_diagonal(matrix, temperature**2 * n_classes)
    penalty = np.column_stack([matrix, np.full(n_classes, odir * n_classes)]) / weights.sum()
    centre = _identity(n_classes) / temperature
    return MultinomialProblem(design, labels, weights, centre, penalty, np.ones_like(penalty, dtype=bool))
