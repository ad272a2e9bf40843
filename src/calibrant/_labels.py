"""Validate labels: class indices, text that names the classes, and classes of any kind."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._inputs import Logits, as_tensor, dtype_name


def check_labels(
    labels: Any,
    n_rows: int,
    n_classes: int,
    device: torch.device | None = None,
    *,
    columns: Sequence[str] | None = None,
) -> Tensor:
    """Return int64 labels in 0..C-1, one per row. Two classes can also be bool.

    Text labels must be among the names of the `columns`, or name every class; they are then numbered in sorted order,
    as in scikit-learn.
    """
    tensor = as_tensor(encode_text(labels, n_classes, columns)[0], "labels")
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


def column_names(values: Any) -> list[str] | None:
    """The names of a data frame's columns if they are different texts; None for anything else."""
    given = getattr(values.values if isinstance(values, Logits) else values, "columns", None)
    if given is None or callable(given):
        return None
    names = list(given)
    return names if all(isinstance(name, str) for name in names) and len(set(names)) == len(names) else None


def classes_of_columns(columns: Sequence[str], labels: set[str]) -> list[str] | None:
    """The class of each column, without a common beginning such as ``prob_``; None if the labels are not among them."""
    start = re.match(r".*?[_ .:-]", columns[0]) if columns else None
    shared = start is not None and all(name.startswith(start[0]) for name in columns)
    for names in (list(columns), [name[start.end() :] if start and shared else name for name in columns]):
        if labels <= set(names) and len(set(names)) == len(names):
            return names
    return None


def encode_text(labels: Any, n_classes: int, columns: Sequence[str] | None = None) -> tuple[Any, np.ndarray | None]:
    """Number text labels 0..C-1, and return the names in this order; return other labels unchanged, with None.

    If `columns` are named like the labels (cat, or prob_cat), these are their numbers. Otherwise the order is sorted.
    """
    if isinstance(labels, Tensor):
        return labels, None
    names = np.asarray(labels)
    if names.ndim != 1 or names.dtype.kind not in "UOT" or not all(isinstance(name, str) for name in names.tolist()):
        return labels, None
    known, codes = np.unique(names.astype(str), return_inverse=True)
    classes = None if columns is None else classes_of_columns(columns, set(known.tolist()))
    if classes is not None:
        place = {name: number for number, name in enumerate(classes)}
        return np.array([place[name] for name in known.tolist()], dtype=np.int64)[codes], np.array(classes)
    if len(known) != n_classes:
        raise ValueError(
            f"text labels must name every class; got {len(known)} classes for {n_classes} columns. The columns must be "
            "in the sorted order of the names. Otherwise, pass integers from 0."
        )
    return codes, known


def class_columns(y: Any, classes: Any) -> np.ndarray:
    """Return the column of each entry of `y` in a model's output, given the model's `classes_`."""
    names, known = class_names(y), np.asarray(classes)
    if names.ndim != 1:
        raise ValueError(f"y must be 1-D, one class per row; got shape {names.shape}.")
    order = np.argsort(known)
    columns = order[np.searchsorted(known, names, sorter=order).clip(max=len(order) - 1)]
    unknown = known[columns] != names
    if unknown.any():
        raise ValueError(
            f"y must hold classes that the model was trained on, {known.tolist()}; "
            f"got {names[unknown].tolist()[0]!r}, which the model does not know."
        )
    return columns


def class_names(labels: Any) -> np.ndarray:
    """Return class labels of any kind, strings included, as an array."""
    return labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)


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
        warnings.warn(
            f"{names} have the same index in different orders. Rows are paired by position, not by index; to pair them "
            "by index, use .loc[…] first.",
            stacklevel=3,
        )
