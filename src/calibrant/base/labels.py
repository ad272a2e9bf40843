"""Validate labels: class indices, text that names the classes, and classes of any kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.base.inputs import Logits, as_rectangular, as_tensor, dtype_name
from calibrant.base.warning import warn
from calibrant.base.words import listed


def check_labels(
    labels: Any,
    n_rows: int,
    n_classes: int,
    device: torch.device | None = None,
    *,
    columns: Sequence[Any] | None = None,
) -> Tensor:
    """Return int64 labels in 0..C-1, one per row. Two classes can also be bool.

    Labels that are names of the `columns` are matched by name. Other text must name every class, and is numbered in
    sorted order, as in scikit-learn. Other integers are column numbers.
    """
    tensor = as_tensor(encode_names(labels, n_classes, columns)[0], "labels")
    if tensor.ndim != 1:
        shape = tuple(tensor.shape)
        raise ValueError(f"labels must be 1-D with {n_rows} entries; got shape {shape}.{one_dimension_hint(shape)}")
    if len(tensor) != n_rows:
        raise ValueError(f"labels must have one entry per row: expected {n_rows}, got {len(tensor)}.")
    if tensor.is_floating_point() or tensor.is_complex():
        kind = dtype_name(tensor)
        raise ValueError(f"labels must be integers from 0 to {n_classes - 1}; got {kind}. Cast them to int.")
    if tensor.dtype == torch.bool and n_classes != 2:
        raise ValueError(f"labels must be integers from 0 to {n_classes - 1} for {n_classes} classes; got bool.")
    tensor = tensor.to(device=device, dtype=torch.int64)
    low, high = (int(bound) for bound in torch.aminmax(tensor)) if n_rows else (0, 0)
    if low < 0 or high >= n_classes:
        raise ValueError(
            f"labels must lie in 0..{n_classes - 1} for {n_classes} classes; "
            f"got values from {low} to {high}. Encode the classes in the order of the columns."
        )
    return tensor


def one_dimension_hint(shape: tuple[int, ...]) -> str:
    """How to make labels of this shape 1-D, as the end of a message; empty if they are or nothing is known."""
    if len(shape) != 2:
        return ""
    return " Use labels[:, 0]." if shape[1] == 1 else " Use labels.argmax(axis=1) for one-hot labels."


def column_names(values: Any) -> list[Any] | None:
    """The names of a data frame's columns if they are different texts, integers or bools; None for anything else."""
    given = getattr(values.values if isinstance(values, Logits) else values, "columns", None)
    if given is None or callable(given):
        return None
    names = [name.item() if isinstance(name, np.generic) else name for name in given]
    alike = any(all(type(name) is kind for name in names) for kind in (str, int, bool))
    return names if alike and len(set(names)) == len(names) else None


def classes_of_columns(columns: Sequence[Any], labels: np.ndarray) -> list[str] | None:
    """The class of each column, without a common beginning such as ``prob_``; None if the labels are not among them."""
    given = [str(name) for name in columns]
    start = re.match(r".*?[_ .:-]", given[0]) if given else None
    shared = start is not None and all(name.startswith(start[0]) for name in given)
    labels = labels if labels.dtype == object else np.unique(labels)
    whole = _as_whole(labels)
    spellings = [{str(label) for label in own.tolist()} for own in (labels, whole) if own is not None]
    for names in (given, [name[start.end() :] if start and shared else name for name in given]):
        if len(set(names)) == len(names) and any(seen <= set(names) for seen in spellings):
            if whole is not None:
                _check_meaning(spellings[-1], names, columns)
            return names
    return None


def _as_whole(labels: np.ndarray) -> np.ndarray | None:
    """Bools and whole numbers as integers, because False is also 0, and 1.0 is also 1; None for other labels."""
    if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels == np.floor(labels)).all()):
        return None
    return labels.astype(np.int64) if labels.dtype.kind in "biuf" else None


def _check_meaning(labels: set[str], names: Sequence[str], columns: Sequence[Any]) -> None:
    """Raise an error if integer labels can be names of columns, and also the numbers of other columns."""
    numbers = {str(k) for k in range(len(names))}
    if set(names) == numbers or not labels <= numbers & set(names):
        return
    if any(names.index(label) != int(label) for label in labels):
        raise ValueError(
            f"The labels {listed(sorted(labels))} can be names of the columns {listed(columns)}, or column numbers, "
            "which start at 0. Pass frame.to_numpy(), without names, if they are numbers. Number the columns and the "
            "labels from 0 if they are names."
        )


def encode_names(labels: Any, n_classes: int, columns: Sequence[Any] | None = None) -> tuple[Any, np.ndarray | None]:
    """Number labels that name classes 0..C-1, and return the names in this order; others unchanged, with None.

    If `columns` are named like the labels (cat, or prob_cat), these are their numbers. Otherwise text is numbered in
    sorted order, and integers are column numbers.
    """
    if columns is None and isinstance(labels, Tensor):
        return labels, None
    given = class_names(labels)
    text = given.ndim == 1 and given.dtype.kind in "UOT" and all(isinstance(name, str) for name in given.tolist())
    if given.ndim != 1 or not (text or (columns is not None and given.dtype.kind in "biu")):
        return labels, None
    known, codes = np.unique(given.astype(str) if text else given, return_inverse=True)
    classes: Sequence[Any] | None = None if columns is None else classes_of_columns(columns, known)
    if classes is not None and not text:
        classes = _numbers(classes)
    if classes is not None:
        place = {name: number for number, name in enumerate(classes)}
        found = np.array([place[name] for name in known.tolist()], dtype=np.int64)[codes]
        return found, None if classes == list(range(n_classes)) else np.array(classes)
    if not text:
        return labels, None
    if len(known) != n_classes:
        raise ValueError(
            f"text labels must name every class; got {len(known)} classes for {n_classes} columns. The columns must be "
            "in the sorted order of the names. Otherwise, pass integers from 0."
        )
    return codes, known


def _numbers(names: Sequence[str]) -> list[int] | None:
    """Names that are integers or bools as such; None if one is not."""
    if set(names) == {"False", "True"}:
        return [name == "True" for name in names]
    return [int(name) for name in names] if all(re.fullmatch(r"-?\d+", name) for name in names) else None


def class_columns(y: Any, classes: Any, name: str = "y") -> np.ndarray:
    """Return the column of each entry of `y` in a model's output, given the model's `classes_`."""
    names, known = class_names(y, name), np.asarray(classes)
    if names.ndim != 1:
        raise ValueError(f"{name} must be 1-D, one class per row; got shape {names.shape}.")
    if names.dtype == object and any(value is None for value in names):
        raise ValueError(f"{name} must not have missing entries; got None. Leave these rows out.")
    order = np.argsort(known)
    columns = order[np.searchsorted(known, names, sorter=order).clip(max=len(order) - 1)]
    unknown = known[columns] != names
    if unknown.any():
        raise ValueError(
            f"{name} must hold classes that the model was trained on, {known.tolist()}; "
            f"got {names[unknown].tolist()[0]!r}, which the model does not know."
        )
    return columns


def class_names(labels: Any, name: str = "labels") -> np.ndarray:
    """Return class labels of any kind, strings included, as an array."""
    return labels.detach().cpu().numpy() if isinstance(labels, Tensor) else as_rectangular(labels, name)


def warn_of_other_order(first: Any, second: Any, names: str) -> None:
    """Warn if two pandas objects have the same index in different orders, because rows are paired by position."""
    one: Any = getattr(first, "index", None)
    other: Any = getattr(second, "index", None)
    if not (hasattr(one, "equals") and hasattr(other, "equals")) or len(one) != len(other) or one.equals(other):
        return
    try:
        permuted = one.sort_values().equals(other.sort_values())
    except TypeError:  # an index of several types has no order
        return
    if permuted:
        warn(
            f"{names} have the same index in different orders. Rows are paired by position, not by index; to pair them "
            "by index, use .loc[…] first."
        )
