"""The columns of the probabilities that a set rule is fitted on and applied to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibrant.base.inputs import Logits, as_tensor
from calibrant.base.labels import column_names
from calibrant.base.words import listed


def check_columns(probs: Any, n_classes: int, columns: Sequence[Any] | None = None) -> Any:
    """Return `probs`; an error for another number of columns, or for a data frame without these columns in order."""
    values = probs.values if isinstance(probs, Logits) else probs
    shape = as_tensor(values, "probs").shape
    if len(shape) == 2 and shape[1] != n_classes:
        raise ValueError(
            f"probs must have {n_classes} columns, one for each class that the rule was fitted with; got {shape[1]}."
        )
    names = column_names(probs)
    # Names of another type, such as the numbers of a frame made from an array, are not the names of classes.
    if columns and names and type(names[0]) is type(columns[0]) and names != list(columns):
        raise ValueError(
            f"probs must have the columns {listed(columns)} in this order, because the rule has a limit for each "
            f"class; got {listed(names)}. Select the columns in the order of the rule first."
        )
    return probs


def columns_by_class(probs: Any, by_class: bool) -> tuple[Any, ...] | None:
    """The names of a data frame's columns, which a rule by class must find again; None for a rule of all classes."""
    names = column_names(probs) if by_class else None
    return None if names is None else tuple(names)
