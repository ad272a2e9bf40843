"""Reading the predictions for `evaluate`: a matrix, logits, one binary score, or confidence with correctness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.base.inputs import Logits, check_confidence, check_logits, check_probs, two_columns
from calibrant.base.labels import class_names, classes_of_columns, column_names, one_dimension_hint
from calibrant.base.warning import warn
from calibrant.base.words import listed

FEWEST = 2
# Whole numbers up to here are exact in float64.
_EXACT = 2.0**53
# Fewer rows of a class do not show that a score belongs to the other one.
_ENOUGH_TO_SEE = 10


@dataclass(frozen=True)
class Sample:
    """Predictions of one model: pairs of confidence and correctness, and classes if they are known."""

    confidence: np.ndarray
    correct: np.ndarray
    probs: np.ndarray | None = None
    logits: np.ndarray | None = None
    labels: np.ndarray | None = None
    predicted: np.ndarray | None = None
    classes: tuple[str, ...] | None = None
    weight: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def keywords(self) -> dict[str, Any]:
        """The predictions as keywords of a metric of `calibrant.metrics`."""
        if self.probs is None:
            return self.pairs
        source = self.probs if self.logits is None else Logits(self.logits)
        return {"probs": source, "labels": self.labels, **self.weighting}

    @property
    def pairs(self) -> dict[str, Any]:
        """Confidence and correctness as keywords of a metric."""
        return {"confidence": self.confidence, "correct": self.correct, **self.weighting}

    @property
    def weighting(self) -> dict[str, Any]:
        """The weights of the rows as a keyword of a metric; nothing where all count the same."""
        return {} if self.weight is None else {"sample_weight": self.weight}

    def in_order_of(self, classes: tuple[str, ...] | None) -> Sample:
        """The same predictions with the columns in the order of these classes."""
        if self.classes == classes or self.classes is None or classes is None:
            return self
        if sorted(self.classes) != sorted(classes):
            raise ValueError(
                f"All models must have the same classes; got {listed(classes)} and {listed(self.classes)}."
            )
        assert self.probs is not None
        order = [self.classes.index(name) for name in classes]
        place = np.argsort(order)
        return replace(
            self,
            probs=self.probs[:, order],
            logits=None if self.logits is None else self.logits[:, order],
            labels=place[self.labels],
            predicted=place[self.predicted],
            classes=classes,
        )

    def name_of(self, column: int) -> str:
        """The name of a class."""
        return str(column) if self.classes is None else self.classes[column]


def read_pairs(confidence: Any, correct: Any) -> Sample:
    """Read confidence and correctness, one of each per row."""
    c, hits = check_confidence(confidence, correct)
    _enough(len(c))
    return Sample(c.double().cpu().numpy(), hits.cpu().numpy())


def read_matrix(
    probs: Any, labels: Any, from_logits: bool = False, classes: Sequence[Any] | None = None, predicted: Any = None
) -> Sample:
    """Probabilities or logits of shape (n, C), or (n,) for class 1 of two, and labels of any kind.

    ``predicted`` holds the column of the model's class where that is not always the one of largest probability.
    """
    logits = None
    if from_logits or isinstance(probs, Logits):
        matrix = check_logits(two_columns(probs, logits=True))
        logits = matrix.double().cpu().numpy()
        values = check_probs(matrix, from_logits=True)
    else:
        values = check_probs(two_columns(probs, logits=False))
    p = values.double().cpu().numpy()
    if p.shape[1] < 2:
        raise ValueError(
            "probs must have a column per class; got one column. Give one binary probability per row as a 1-D array."
        )
    _enough(len(p))
    if classes is None and (columns := column_names(probs)) is not None:
        classes = classes_of_columns(columns, class_names(labels).ravel())
    y, names = read_labels(labels, len(p), p.shape[1], classes)
    if np.ndim(probs.values if isinstance(probs, Logits) else probs) == 1:
        _warn_of_other_class(p[:, 1], y, names)
    chosen = p.argmax(axis=1) if predicted is None else _chosen(predicted, p.shape)
    confidence = p[np.arange(len(p)), chosen]
    return Sample(confidence, chosen == y, p, logits, y, chosen, names)


def _warn_of_other_class(score: np.ndarray, y: np.ndarray, names: tuple[str, ...]) -> None:
    """Warn if one score per row looks like the probability of the other class."""
    positive = y == 1
    if min(positive.sum(), (~positive).sum()) < _ENOUGH_TO_SEE:
        return
    inside, outside = score[positive], score[~positive]
    error = np.sqrt(inside.var() / len(inside) + outside.var() / len(outside))
    if inside.mean() < outside.mean() - 3 * error:
        warn(
            f"The scores are read as probabilities of {names[1]!r}, but they are lower for {names[1]!r} (mean "
            f"{inside.mean():.3g}) than for {names[0]!r} ({outside.mean():.3g}). If they are probabilities of "
            f"{names[0]!r}, pass classes=[{names[1]!r}, {names[0]!r}] (on the command line --positive {names[0]})."
        )


def _chosen(predicted: Any, shape: tuple[int, ...]) -> np.ndarray:
    chosen = class_names(predicted, "predicted")
    if chosen.shape != shape[:1] or chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= shape[1]:
        raise ValueError(
            f"predicted must hold {shape[0]} columns of probs, 0 to {shape[1] - 1}; got an array of {chosen.dtype} "
            f"with shape {chosen.shape}."
        )
    return chosen.astype(np.int64)


def read_labels(
    labels: Any, n: int, n_classes: int, classes: Sequence[Any] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The column of each label, and the names of the columns.

    `classes` names the columns in their order. Labels are then these names, or column numbers if no name is a number.
    Without it, labels that are whole numbers below C are column numbers.
    Other labels, for instance text, are assigned to the columns in sorted order if there are C different ones.
    """
    y = class_names(labels)
    if y.shape != (n,):
        hint = one_dimension_hint(y.shape)
        raise ValueError(f"labels must be 1-D with {n} entries, one per prediction; got shape {y.shape}.{hint}")
    if y.dtype == object:
        y = _plain(y)
    if y.dtype.kind == "f":
        if np.isnan(y).any():
            raise ValueError(f"labels must not have missing entries; got {int(np.isnan(y).sum())}. Drop these rows.")
        if (np.abs(y) <= _EXACT).all() and (y == np.floor(y)).all():
            y = y.astype(np.int64)
    if classes is not None:
        return _by_name(y, classes, n_classes)
    if _are_columns(y, n_classes):
        return y.astype(np.int64), tuple(str(k) for k in range(n_classes))
    values = np.unique(y)
    if len(values) != n_classes:
        examples = ", ".join(str(v) for v in values[:5].tolist()) + (", …" if len(values) > 5 else "")
        raise ValueError(
            f"labels must match the {n_classes} columns; got {len(values)} different labels ({examples}). "
            "Name the class of each column with classes=[…], in the order of the columns."
        )
    return np.searchsorted(values, y), tuple(str(v) for v in values.tolist())


def _are_columns(y: np.ndarray, n_classes: int) -> bool:
    """Whether the labels can be column numbers."""
    return y.dtype.kind in "biu" and len(y) > 0 and bool(y.min() >= 0 and y.max() < n_classes)


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _by_name(y: np.ndarray, classes: Sequence[Any], n_classes: int) -> tuple[np.ndarray, tuple[str, ...]]:
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise ValueError(
            f"classes must be a list of {n_classes} names, one per column; got {classes!r}. Pass ['cat', 'dog', …]."
        )
    names = [str(c) for c in classes]
    if len(names) != n_classes or len(set(names)) != n_classes:
        raise ValueError(f"classes must hold {n_classes} different names, one per column; got {names}.")
    if _are_columns(y, n_classes) and not any(is_number(name) or name in ("True", "False") for name in names):
        return y.astype(np.int64), tuple(names)
    place = {name: column for column, name in enumerate(names)}
    if y.dtype == bool and not place.keys() & {"False", "True"}:
        y = y.astype(np.int64)
    text = [str(v) for v in y.tolist()]
    unknown = sorted({name for name in text if name not in place})
    if unknown:
        raise ValueError(
            f"labels must be among the classes {', '.join(names[:10])}{', …' if len(names) > 10 else ''}; got "
            f"{unknown[0]!r}. Correct the labels or classes."
        )
    return np.array([place[name] for name in text]), tuple(names)


def _plain(y: np.ndarray) -> np.ndarray:
    missing = [i for i, v in enumerate(y.tolist()) if v is None or v != v]
    if missing:
        raise ValueError(f"labels must not have missing entries; got {len(missing)}, the first in row {missing[0]}.")
    values = y.tolist()
    return np.array(values if all(not isinstance(v, str) for v in values) else [str(v) for v in values])


def _enough(n: int) -> None:
    if n < FEWEST:
        raise ValueError(f"predictions must have at least {FEWEST} rows to be judged; got {n}.")
