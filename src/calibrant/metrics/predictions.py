"""Reading the arguments of a metric: probabilities with labels, or (confidence, correct) pairs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, Unpack, get_args, get_type_hints, overload

import numpy as np
import torch
from torch import Tensor

from calibrant.base.inputs import (
    Logits,
    as_tensor,
    check_confidence,
    check_logits,
    check_probs,
    check_weights,
    top_label,
    two_columns,
)
from calibrant.base.labels import check_labels, class_names, column_names
from calibrant.base.settings import check_choice, shown

Binary = Literal["positive", "predicted"]
_P = ParamSpec("_P")


class InputKeywords(TypedDict, total=False):
    """Keywords that describe predictions; see `calibrant.metrics.ece`."""

    confidence: Any
    correct: Any
    from_logits: bool
    binary: Binary | None
    sample_weight: Any


class MetricKeywords(InputKeywords, total=False):
    """The keywords that every metric takes."""

    groups: Any


@dataclass(frozen=True)
class Predictions:
    """Validated predictions: pairs, and the probabilities and labels that they came from, if any.

    `logits` is kept beside `probs`, so that logarithms do not depend on a softmax that underflows. Without `probs` it
    is 1-D, the log-odds of `confidence`.
    """

    confidence: Tensor
    correct: Tensor
    weight: Tensor | None = None
    probs: Tensor | None = None
    labels: Tensor | None = None
    logits: Tensor | None = None

    def __len__(self) -> int:
        return len(self.confidence)

    def take(self, rows: Tensor) -> Predictions:
        """Return the predictions of the given rows."""
        parts = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: value[rows] for name, value in parts.items()})

    def mean(self, values: Tensor) -> float:
        """(Weighted) mean over the samples, in float64."""
        values = values.double()
        if self.weight is None:
            return values.mean().item()
        # A weight of zero removes a sample even if its value is infinite.
        return (torch.where(self.weight > 0, self.weight * values, 0.0).sum() / self.weight.sum()).item()


def read(
    probs: Any,
    labels: Any,
    confidence: Any = None,
    correct: Any = None,
    *,
    from_logits: bool = False,
    binary: Binary | None = None,
    sample_weight: Any = None,
    matrix_only: bool = False,
) -> Predictions:
    """Read `(probs, labels)` or `(confidence=, correct=)`, exactly one of the two.

    One-dimensional `probs` are the probability of class 1 of two. `binary` says what is judged: "positive" judges that
    probability itself (confidence p, correct y = 1, over all of [0, 1]), "predicted" the predicted class (confidence
    max(p, 1 - p)). The two give different numbers. Without `binary` the columns 1 - p and p are judged like any matrix.
    """
    if check_form(probs, labels, confidence, correct):
        if matrix_only:
            raise ValueError("This metric needs class probabilities; give probs of shape (n, C) and labels.")
        if from_logits or binary is not None or isinstance(confidence, Logits):
            raise ValueError("from_logits, Logits(...) and binary describe probs, not confidence. Leave them out.")
        result = Predictions(*check_confidence(confidence, correct))
    elif binary is not None:
        if matrix_only:
            raise ValueError("This metric needs one column per class; give probs of shape (n, C), without binary=.")
        result = _read_binary(probs, labels, from_logits, binary)
    else:
        result = _read_matrix(probs, labels, from_logits)
    if sample_weight is None:
        return result
    return replace(result, weight=check_weights(sample_weight, len(result), result.confidence.device))


def check_form(probs: Any, labels: Any, confidence: Any, correct: Any) -> bool:
    """Whether predictions are given as confidence and correctness; an error unless exactly one form is complete."""
    pairs = confidence is not None or correct is not None
    if pairs == (probs is not None or labels is not None):
        raise ValueError(
            f"Give either probs and labels, or confidence= and correct=; got {'both' if pairs else 'neither'} of these."
        )
    if (confidence is None or correct is None) if pairs else (probs is None or labels is None):
        names = "confidence= and correct=" if pairs else "probs and labels"
        raise ValueError(f"{names} must be given together; got only one of them.")
    return pairs


def _read_matrix(probs: Any, labels: Any, from_logits: bool) -> Predictions:
    columns, is_logits = column_names(probs), from_logits or isinstance(probs, Logits)
    values = two_columns(probs, logits=is_logits)
    logits = check_logits(values).double() if is_logits else None
    matrix = check_probs(values) if logits is None else torch.softmax(logits, dim=1)
    targets = check_labels(labels, len(matrix), matrix.shape[1], matrix.device, columns=columns)
    return Predictions(*top_label(matrix, targets), probs=matrix, labels=targets, logits=logits)


def _read_binary(probs: Any, labels: Any, from_logits: bool, binary: Binary) -> Predictions:
    check_choice("binary", binary, get_args(Binary))
    is_logits = from_logits or isinstance(probs, Logits)
    p = as_tensor(probs.values if isinstance(probs, Logits) else probs, "probs")
    if p.ndim != 1:
        raise ValueError(
            f"probs must be 1-D, the probability of class 1, with binary={binary!r}; got shape {tuple(p.shape)}. "
            "Leave out binary for a matrix with one column per class."
        )
    z = None
    if is_logits:
        z = check_logits(torch.stack([torch.zeros_like(p), p], dim=1)).double()[:, 1]
        p = torch.sigmoid(z)
        z = z if bool(z.isfinite().all()) else None  # -inf is a probability of exactly 0
    p, positive = check_confidence(p, check_labels(labels, len(p), 2, p.device).bool())
    if binary == "positive":
        return Predictions(p, positive, logits=z)
    # max(p, 1 - p); at p = 1/2 the first class wins, as in a two-column matrix
    return Predictions(torch.maximum(p, 1 - p), (p > 0.5) == positive, logits=None if z is None else z.abs())


def without_zero_weights(p: Predictions) -> Predictions:
    """Drop the rows that do not count."""
    return p if p.weight is None or bool((p.weight > 0).all()) else p.take(p.weight.nonzero()[:, 0])


class MetricFunction(Protocol[_P]):
    """A metric: a number, or one for each of the `groups`."""

    __name__: str
    top_label: bool
    signed: bool
    predicted_only: bool

    @overload
    def __call__(self, *args: Any, average: None, **kwargs: Any) -> Any: ...
    @overload
    def __call__(self, *args: Any, groups: None, **kwargs: Any) -> float: ...
    @overload
    def __call__(self, *args: Any, groups: Any, **kwargs: Any) -> Grouped: ...
    @overload
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> float: ...


def metric(
    *, top_label: bool = False, signed: bool = False, predicted_only: bool = False
) -> Callable[[Callable[_P, Any]], MetricFunction[_P]]:
    """Give a metric written with `**keywords` its full signature, and reject unknown keywords.

    `top_label` marks a metric that uses only (confidence, correct), so that pairs can be resampled. `signed` marks one
    that can be negative, `predicted_only` one that is not defined for binary="positive".
    """

    def wrap(function: Callable[_P, Any]) -> MetricFunction[_P]:
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False if name == "from_logits" else None)
            for name in get_type_hints(MetricKeywords)
        ]
        full = signature.replace(parameters=parameters + shared)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in full.parameters:
                    raise TypeError(
                        f"{function.__name__}() has no argument {name!r}. Use one of {', '.join(full.parameters)}."
                    )
            if predicted_only and kwargs.get("binary") == "positive":
                raise ValueError(f"binary must be 'predicted' for {function.__name__}; got 'positive'.")
            return function(*args, **kwargs)

        marked: Any = checked
        marked.__signature__ = full
        marked.top_label, marked.signed, marked.predicted_only = top_label, signed, predicted_only
        return marked

    return wrap


@dataclass(frozen=True)
class Grouped(Mapping[Any, float]):
    """A metric per group: a mapping from group to value, with the size of each group and the overall value."""

    overall: float
    values_by_group: Mapping[Any, float] = field(repr=False)
    counts: Mapping[Any, int] = field(repr=False)

    def __getitem__(self, group: Any) -> float:
        return self.values_by_group[group]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values_by_group)

    def __len__(self) -> int:
        return len(self.values_by_group)

    @property
    def spread(self) -> float:
        """Largest minus smallest value over the groups."""
        return max(self.values()) - min(self.values())

    def __repr__(self) -> str:
        rows = ", ".join(f"{shown(group)}: {value:.4g} (n={self.counts[group]})" for group, value in self.items())
        return f"Grouped(overall={self.overall:.4g}, {{{rows}}})"


def evaluate(
    core: Callable[[Predictions], float],
    probs: Any,
    labels: Any,
    *,
    matrix_only: bool = False,
    groups: Any = None,
    **keywords: Unpack[InputKeywords],
) -> float | Grouped:
    """Read the predictions and apply `core` to them; with `groups`, also to each group."""
    predictions = read(probs, labels, matrix_only=matrix_only, **keywords)
    return core(predictions) if groups is None else _per_group(core, predictions, groups)


def _per_group(core: Callable[[Predictions], float], predictions: Predictions, groups: Any) -> Grouped:
    names = class_names(groups, "groups")
    if names.shape != (len(predictions),):
        raise ValueError(f"groups must be 1-D with {len(predictions)} entries; got shape {names.shape}.")
    # NaN and NaT differ from themselves; None in an object array needs its own check.
    if (names != names).any() or (names.dtype == object and any(name is None for name in names)):
        raise ValueError("groups must have an entry for each row; got missing entries. Give them a name.")
    unique, index, counts = np.unique(names, return_inverse=True, return_counts=True)
    if predictions.weight is not None:
        totals = np.bincount(index, weights=predictions.weight.cpu().numpy())
        if (totals == 0).any():
            empty = shown(unique[totals == 0][0])
            raise ValueError(f"sample_weight must be positive somewhere in each group; got none in group {empty}.")
    rows = np.split(np.argsort(index, kind="stable"), np.cumsum(counts)[:-1])
    device = predictions.confidence.device
    keys = unique.tolist()
    return Grouped(
        core(predictions),
        {key: core(predictions.take(torch.from_numpy(r).to(device))) for key, r in zip(keys, rows, strict=True)},
        dict(zip(keys, counts.tolist(), strict=True)),
    )
