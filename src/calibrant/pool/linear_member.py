"""The linear member of the pool: logistic regression with its regularisation chosen by held-out loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from calibrant.pool.pool_members import (
    CrossFittedMember,
    Folds,
    ModelPath,
    Rows,
    cross_fit,
    held_out_loss,
    logit_scale,
    scores_of,
    unseen,
)
from calibrant.posthoc import StructuredMatrix

_NEWTON = 400
"""Up to this many coefficients, Newton's method is used, which needs few steps; above, L-BFGS."""

MANY_CLASSES = 50
"""With more classes, a full matrix has too many entries to be worth fitting."""


@dataclass(frozen=True)
class Line:
    """Logits ``x·Wᵀ + b``, or an affine map of their log-softmax."""

    weight: np.ndarray
    bias: np.ndarray
    link: np.ndarray | None = None
    """The matrix and the constants of the map, (C, C + 1)."""

    def check(self, features: int, n_classes: int, sparse: int | None = None) -> None:
        """Raise an error if the arrays have the wrong shape."""
        columns = features if sparse is None else sparse
        if self.weight.shape != (n_classes, columns) or self.bias.shape != (n_classes,):
            raise ValueError(f"a line must have {columns} coefficients for each of {n_classes} classes")
        if self.link is not None and self.link.shape != (n_classes, n_classes + 1):
            raise ValueError(f"the link of a line must be an affine map of {n_classes} logits")

    def scores(self, inputs: np.ndarray, sparse: csr_array | None = None) -> np.ndarray:
        """Logits, (n, C), of the sparse columns if there are any."""
        logits = np.asarray((inputs if sparse is None else sparse) @ self.weight.T, dtype=np.float64) + self.bias
        return logits if self.link is None else linked(logits, self.link)

    def onnx(self, graph: Any, inputs: str) -> str:
        """Write the logits of dense columns, which have no link, to a graph."""
        product = graph.add("MatMul", graph.cast(inputs, np.float64), np.ascontiguousarray(self.weight.T))
        return str(graph.add("Add", product, self.bias))


def linked(logits: np.ndarray, link: np.ndarray) -> np.ndarray:
    """An affine map of log-probabilities; the last column of the link holds the constants."""
    return np.asarray(log_softmax(logits, axis=1) @ link[:, :-1].T + link[:, -1])


@dataclass(frozen=True)
class Linear:
    """Multinomial logistic regression with an L2 penalty.

    Parameters
    ----------
    inverse_penalties : ``C`` of scikit-learn, from strong to weak regularisation. Each fit starts from the previous
        one, and a path ends when the held-out loss rises
    steps : the maximum number of iterations of one fit
    """

    model: ClassVar[type[Line]] = Line
    inverse_penalties: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
    steps: int = 50

    def path(self, train: Rows, held: Rows, seed: int) -> ModelPath:
        """Fit with decreasing penalties until the held-out loss rises."""
        present, inputs = np.unique(train.labels), train.inputs if train.sparse is None else train.sparse
        if len(present) < 2:
            line = _line(np.zeros((1, inputs.shape[1])), np.zeros(1), present, train)
            return ModelPath(np.array([held_out_loss(scores_of(line, held), held)]), (line,))
        small = inputs.shape[1] * (1 if len(present) == 2 else len(present)) <= _NEWTON
        model = LogisticRegression(
            solver="newton-cholesky" if small else "lbfgs", max_iter=self.steps, tol=1e-3, warm_start=True
        )
        weights = None if train.sample_weight is None else train.sample_weight / train.sample_weight.mean()
        return _penalty_path(model, self.inverse_penalties, train, weights, held, lambda scores: scores)

    def mean(self, models: Sequence[Line]) -> Line:
        """The linear model with the mean coefficients."""
        return Line(np.mean([m.weight for m in models], axis=0), np.mean([m.bias for m in models], axis=0))


@dataclass(frozen=True)
class Margins(Linear):
    """Linear support vector machines, one for each class against the others; their scores are not logits yet.

    Parameters
    ----------
    inverse_penalties : ``C`` of scikit-learn, from strong to weak regularisation. A path ends when the held-out loss
        rises, with each loss at the best factor for the scores
    """

    inverse_penalties: tuple[float, ...] = (1e-3, 1e-2, 1e-1)

    def path(self, train: Rows, held: Rows, seed: int) -> ModelPath:
        """Fit with decreasing penalties until the held-out loss rises."""
        if len(np.unique(train.labels)) < 2:
            return Linear().path(train, held, seed)
        model = LinearSVC(random_state=seed)

        def calibrated(scores: np.ndarray) -> np.ndarray:
            return logit_scale(held._replace(inputs=scores)) * scores

        return _penalty_path(model, self.inverse_penalties, train, train.sample_weight, held, calibrated)


def cross_fit_sparse(rows: Rows, folds: Folds, seed: int, judged: Callable[[np.ndarray], Rows]) -> CrossFittedMember:
    """The linear member for sparse columns: the mean of logistic regression and support vector machines.

    Both are cross-fitted. Each gets the factor with the lowest held-out loss. Their mean is then corrected by
    structured matrix scaling, which is fitted to held-out rows: with many classes, it learns which of them are often
    confused. With few rows, it is nearly the identity. With more than ``MANY_CLASSES`` classes, it is left out.

    Parameters
    ----------
    judged : takes log-probabilities of all rows, and returns those of the held-out rows that may be used, with labels
        and the weights that these rows have as evidence
    """
    lines: list[Line] = []
    scores: list[np.ndarray] = []
    for kind in (Linear(), Margins()):
        member = cross_fit(kind, rows, folds, seed)
        assert member is not None
        assert isinstance(member.model, Line)
        factor = logit_scale(judged(member.held_out))
        lines.append(Line(factor * member.model.weight, factor * member.model.bias))
        scores.append(factor * member.held_out)
        place = member.place
    line, held_out = Linear().mean(lines), np.mean(scores, axis=0)
    if rows.n_classes <= MANY_CLASSES:
        sample = judged(held_out)
        map = StructuredMatrix().fit(sample.inputs, sample.labels, sample.sample_weight)
        line = Line(line.weight / map.temperature_, line.bias / map.temperature_, map.coefficients_)
        held_out = linked(held_out / map.temperature_, map.coefficients_)
    return CrossFittedMember(log_softmax(held_out, axis=1), line, place)


def _penalty_path(
    model: Any,
    inverse_penalties: Sequence[float],
    train: Rows,
    weights: np.ndarray | None,
    held: Rows,
    as_logits: Callable[[np.ndarray], np.ndarray],
) -> ModelPath:
    """Fit a linear model of scikit-learn with decreasing penalties until the held-out loss of its logits rises."""
    inputs = train.inputs if train.sparse is None else train.sparse
    losses: list[float] = []
    lines: list[Line] = []
    for c in inverse_penalties:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # an unfinished fit is judged by its loss
            model.set_params(C=c).fit(inputs, train.labels, weights)
        lines.append(_line(model.coef_.copy(), model.intercept_.copy(), np.unique(train.labels), train))
        losses.append(held_out_loss(as_logits(scores_of(lines[-1], held)), held))
        if len(losses) > 1 and losses[-1] > losses[-2]:
            break
    return ModelPath(np.array(losses), tuple(lines))


def _line(coef: np.ndarray, intercept: np.ndarray, present: np.ndarray, train: Rows) -> Line:
    """A linear model for all classes. Of two classes, the first has the logit 0; absent classes have a low constant."""
    precision = np.float64 if train.sparse is None else np.float32  # there can be millions of coefficients
    weight = np.zeros((train.n_classes, coef.shape[1]), dtype=precision)
    bias = np.full(train.n_classes, unseen(train))
    bias[present] = 0.0
    columns = present if len(coef) == len(present) and len(present) != 1 else present[1:]
    weight[columns], bias[columns] = coef[: len(columns)], intercept[: len(columns)]
    return Line(weight, bias)
