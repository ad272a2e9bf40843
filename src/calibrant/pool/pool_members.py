"""Members of the pool other than the networks: kinds of classifiers that are cross-fitted on the networks' folds.

For each fold, a kind fits a *path* of models from simple to complex: with more trees, or with less regularisation. One
place on the path is chosen for all folds by their mean held-out loss. Only this one number is fitted to the labels that
the pool is fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_array
from scipy.special import log_softmax


class Rows(NamedTuple):
    """Samples as arrays: inputs (n, d), class indices (n,), weights (n,) or None, and the number of classes.

    If the inputs hold a projection of many columns, ``sparse`` holds all columns for the kinds that can use them.
    """

    inputs: np.ndarray
    labels: np.ndarray
    sample_weight: np.ndarray | None
    n_classes: int
    sparse: csr_array | None = None

    def take(self, rows: np.ndarray) -> Rows:
        """Some of the samples."""
        weights = None if self.sample_weight is None else self.sample_weight[rows]
        columns = None if self.sparse is None else self.sparse[rows]
        return Rows(self.inputs[rows], self.labels[rows], weights, self.n_classes, columns)


class Model(Protocol):
    """A trained member."""

    def scores(self, inputs: np.ndarray, sparse: csr_array | None = None) -> np.ndarray:
        """Logits, (n, C); of the sparse columns if there are any and this kind uses them."""
        ...

    def check(self, features: int, n_classes: int, sparse: int | None = None) -> None:
        """Raise a ValueError if arrays that were read from a file are inconsistent.

        ``features`` and ``sparse`` are the numbers of columns of the two inputs of :meth:`scores`; ``sparse`` is None
        if no column is sparse.
        """
        ...

    def onnx(self, graph: Any, inputs: str) -> str:
        """Write the logits of the dense columns to a :class:`calibrant.export.graph.Graph`, and return their name."""
        ...


class Path(Protocol):
    """The models of one fold, from simple to complex."""

    @property
    def losses(self) -> np.ndarray:
        """The held-out loss at each place of the path, in order. A path that stopped early is shorter."""
        ...

    def at(self, place: int) -> Any:
        """The model at one place; the last one for places beyond the end."""
        ...


@dataclass(frozen=True)
class ModelPath:
    """A path whose models are all kept."""

    losses: np.ndarray
    models: tuple[Any, ...]

    def at(self, place: int) -> Any:
        """The model at one place, or the last one for places beyond the end."""
        return self.models[min(place, len(self.models) - 1)]


class MemberKind(Protocol):
    """A kind of member.

    To add a member, write a file of this folder and a row of ``KINDS`` in :mod:`calibrant.methods.blend`; members that
    are used by default are in ``MEMBERS`` there. Files and ONNX graphs need nothing else: they ask the trained models.
    """

    model: ClassVar[type[Any]]
    """The class of its trained models, a dataclass of arrays, which files hold."""

    def path(self, train: Rows, held: Rows, seed: int) -> Path:
        """Train on some rows; the held-out rows evaluate each place of the path."""
        ...

    def mean(self, models: Sequence[Any]) -> Model:
        """One model whose logits are the mean of the models' logits."""
        ...


@dataclass(frozen=True)
class CrossFittedMember:
    """A cross-fitted member: the predictions of the fold models for held-out rows, and the mean of these models."""

    held_out: np.ndarray
    """Log-probabilities, (n, C); NaN for rows that no fold held out."""
    model: Model
    place: int
    """The place on the path that was chosen for all folds."""


Judge = Callable[[np.ndarray, np.ndarray], bool]
Folds = Sequence[tuple[np.ndarray, np.ndarray]]
"""Training rows and held-out rows of each fold."""


def cross_fit(
    kind: MemberKind,
    rows: Rows,
    folds: Folds,
    seed: int,
    promising: Judge | None = None,
) -> CrossFittedMember | None:
    """Train one kind on every fold. Return None if the first fold shows that it cannot help.

    Parameters
    ----------
    folds : training rows and held-out rows of each fold
    promising : callable, optional
        Takes the held-out rows of the first fold and their log-probabilities, and returns whether to continue.
    """
    paths: list[Path] = []
    for train, held in folds:
        paths.append(kind.path(rows.take(train), rows.take(held), seed))
        if promising and len(paths) == 1 and len(folds) > 1:
            scores = scores_of(paths[0].at(best_place(paths)), rows.take(held))
            if not promising(held, log_softmax(scores, axis=1)):
                return None
    place = best_place(paths)
    models = [path.at(place) for path in paths]
    total, count = np.zeros((len(rows.labels), rows.n_classes)), np.zeros((len(rows.labels), 1))
    for model, (_, held) in zip(models, folds, strict=True):
        total[held] += scores_of(model, rows.take(held))
        count[held] += 1
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return CrossFittedMember(log_softmax(mean, axis=1), kind.mean(models), place)


def scores_of(model: Model, rows: Rows) -> np.ndarray:
    """A model's logits for some rows, (n, C)."""
    return model.scores(rows.inputs) if rows.sparse is None else model.scores(rows.inputs, rows.sparse)


def best_place(paths: Sequence[Path]) -> int:
    """The place with the lowest mean loss. A path that ended earlier keeps its last loss."""
    length = max(len(path.losses) for path in paths)
    curves = [np.pad(path.losses, (0, length - len(path.losses)), mode="edge") for path in paths]
    return int(np.argmin(np.mean(curves, axis=0)))


def held_out_loss(scores: np.ndarray, held: Rows) -> float:
    """The mean log-loss of logits; infinite if it is NaN."""
    losses = -log_softmax(scores, axis=1)[np.arange(len(held.labels)), held.labels]
    loss = float(np.average(losses, weights=held.sample_weight)) if len(losses) else 0.0
    return loss if np.isfinite(loss) else float("inf")


def logit_scale(held: Rows) -> float:
    """Return the factor with the lowest loss that turns decision values into logits, within a factor of 100."""
    scores = held.inputs
    unit = max(float(np.abs(scores - scores.mean(axis=1, keepdims=True)).mean()), 1e-12)
    best = minimize_scalar(
        lambda v: held_out_loss(np.exp(v) / unit * scores, held), bounds=(np.log(0.1), np.log(10.0)), method="bounded"
    )
    return float(np.exp(best.x) / unit)


def unseen(train: Rows) -> float:
    """The log-odds of a class that is absent from the n training rows: log(0.5/n)."""
    return float(np.log(0.5 / max(len(train.labels), 1)))
