"""The linear member of the pool: logistic regression with its regularisation chosen by held-out loss."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from calibrant.methods.members import Rows, held_out_loss, scores_of, unseen

_NEWTON = 400
"""Up to this many coefficients, Newton's method is used, which needs few steps; above, L-BFGS."""


@dataclass(frozen=True)
class Line:
    """Logits ``x·Wᵀ + b``."""

    weight: np.ndarray
    bias: np.ndarray

    def check(self, features: int, n_classes: int) -> None:
        """Raise an error if the arrays have the wrong shape."""
        if self.weight.shape != (n_classes, features) or self.bias.shape != (n_classes,):
            raise ValueError(f"a line must have {features} coefficients for each of {n_classes} classes")

    def scores(self, inputs: np.ndarray, sparse: csr_array | None = None) -> np.ndarray:
        """Logits, (n, C), of the sparse columns if there are any."""
        return np.asarray((inputs if sparse is None else sparse) @ self.weight.T + self.bias)


@dataclass(frozen=True)
class LinePath:
    """Linear models from strong to weak regularisation."""

    losses: np.ndarray
    lines: tuple[Line, ...]

    def at(self, place: int) -> Line:
        """The model at one place, or the last one for places beyond the end."""
        return self.lines[min(place, len(self.lines) - 1)]


@dataclass(frozen=True)
class Linear:
    """Multinomial logistic regression with an L2 penalty.

    Parameters
    ----------
    inverse_penalties : ``C`` of scikit-learn, from strong to weak regularisation. Each fit starts from the previous
        one, and a path ends when the held-out loss rises
    steps : the maximum number of iterations of one fit
    """

    inverse_penalties: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
    steps: int = 50

    def path(self, train: Rows, held: Rows, seed: int) -> LinePath:
        """Fit with decreasing penalties until the held-out loss rises."""
        present, inputs = np.unique(train.labels), train.inputs if train.sparse is None else train.sparse
        if len(present) < 2:
            line = _line(np.zeros((1, inputs.shape[1])), np.zeros(1), present, train)
            return LinePath(np.array([held_out_loss(scores_of(line, held), held)]), (line,))
        small = inputs.shape[1] * (1 if len(present) == 2 else len(present)) <= _NEWTON
        model = LogisticRegression(
            solver="newton-cholesky" if small else "lbfgs", max_iter=self.steps, tol=1e-3, warm_start=True
        )
        weights = None if train.sample_weight is None else train.sample_weight / train.sample_weight.mean()
        losses: list[float] = []
        lines: list[Line] = []
        for c in self.inverse_penalties:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # an unfinished fit is judged by its loss
                model.set_params(C=c).fit(inputs, train.labels, weights)
            lines.append(_line(model.coef_.copy(), model.intercept_.copy(), present, train))
            losses.append(held_out_loss(scores_of(lines[-1], held), held))
            if len(losses) > 1 and losses[-1] > losses[-2]:
                break
        return LinePath(np.array(losses), tuple(lines))

    def mean(self, models: Sequence[Line]) -> Line:
        """The linear model with the mean coefficients."""
        return Line(np.mean([m.weight for m in models], axis=0), np.mean([m.bias for m in models], axis=0))


def _line(coef: np.ndarray, intercept: np.ndarray, present: np.ndarray, train: Rows) -> Line:
    """A linear model for all classes. Of two classes, the first has the logit 0; absent classes have a low constant."""
    weight, bias = np.zeros((train.n_classes, coef.shape[1])), np.full(train.n_classes, unseen(train))
    bias[present] = 0.0
    columns = present if len(coef) == len(present) and len(present) != 1 else present[1:]
    weight[columns], bias[columns] = coef[: len(columns)], intercept[: len(columns)]
    return Line(weight, bias)
