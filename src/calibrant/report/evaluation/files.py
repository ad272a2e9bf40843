"""Reading predictions from CSV, TSV, Parquet, npz or npy files, with columns found by their names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.base.inputs import are_probs
from calibrant.base.warning import warn
from calibrant.data.columns import Notation
from calibrant.data.columns.values import texts
from calibrant.report.evaluation.arrays import first_row, read_file, read_label_file
from calibrant.report.evaluation.reading import is_number

LABELS = ("label", "labels", "y", "y_true", "target", "targets", "class", "true", "truth")
_SCORES = ("score", "prob", "proba", "probability", "y_prob", "y_score", "y_proba", "p", "probs", "logit", "logits")
_PREFIXED = re.compile(r"^(probability|proba|probs|prob|logits|logit|p)(?:[_ .:-]+(.+)|(\d+))$", re.IGNORECASE)
_PREDICTED = ("predicted", "prediction", "pred", "y_pred", "predicted_class", "predicted_label")
# A row sum this close to 1 needs no correction.
_SLACK = 1e-3
# A sum further from 1 than this is not corrected, even if rounding explains it.
_MOST = 0.05
_TRUE, _FALSE = ("true", "yes", "1", "right", "correct"), ("false", "no", "0", "wrong", "incorrect")


@dataclass(frozen=True)
class PredictionFile:
    """The content of a file of predictions.

    `kind` is "probs", "logits" (each with (n, C) `values`), "score" (the probability of one class of two), "logit"
    (its log-odds) or "pairs" (confidence; `labels` then says whether each prediction was right). `rows` holds the other
    columns, and `table` all columns as they were read.
    """

    path: Path
    kind: str
    values: np.ndarray = field(repr=False)
    labels: np.ndarray | None = field(repr=False)
    classes: tuple[str, ...] | None
    groups: np.ndarray | None = field(repr=False)
    weights: np.ndarray | None = field(repr=False)
    rows: dict[str, np.ndarray] = field(repr=False)
    table: dict[str, np.ndarray] = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def first_row(self) -> int:
        """The number of the first row: 1 below a header, 0 in arrays."""
        return first_row(self.path)

    @property
    def is_logits(self) -> bool:
        """Whether the values are logits."""
        return self.kind in ("logits", "logit")

    @property
    def predicted(self) -> list[str] | None:
        """The names of the predicted classes, if a column states them."""
        name = _named(self.table, _PREDICTED)
        return None if name is None else [_whole(value) for value in self.table[name].tolist()]


def read_predictions(
    path: str | os.PathLike[str],
    *,
    labels: str | None = None,
    group: str | None = None,
    weight: str | None = None,
    columns: Sequence[str] = (),
    logits: bool = False,
    need_labels: bool = True,
    decimal: str = ".",
    encoding: str = "utf-8",
) -> PredictionFile:
    """Read a file of predictions.

    Probabilities are columns named `prob_…`, `p_…` or `proba_…` and the class, logits `logit_…`, or columns named like
    the labels, or 0, 1, 2, …; `columns` names them otherwise. A single column `score`, `prob` or similar is the
    probability of the second of two classes; `confidence` with `correct`, or with `predicted` and labels, is the other
    form. Arrays of an npz file have the same names, with a matrix `probs` or `logits`. `labels` is a column, or a file
    with one entry per row. `decimal` is the decimal mark of a text file.
    """
    path = Path(path)
    notation = Notation(decimal, encoding=encoding)
    table = read_file(path, notation)
    if labels is not None and labels not in table and Path(labels).is_file():
        expected = len(next(iter(table.values())))
        table["label"] = read_label_file(Path(labels), LABELS, notation)
        if len(table["label"]) != expected:
            raise ValueError(f"{labels} must have {expected} labels, one per row of {path}; got {len(table['label'])}.")
        labels = "label"
    if len({len(column) for column in table.values()}) > 1:
        raise ValueError(f"The arrays in {path.name} must have one entry per prediction; got different lengths.")
    target = _named(table, LABELS) if labels is None else _required(table, labels, path)
    y = None if target is None else table[target]
    if need_labels and y is not None:
        missing = [row for row, label in enumerate(y.tolist()) if label is None or label != label]
        if missing:
            raise ValueError(
                f"Labels are missing in {len(missing):,} of {len(y):,} rows of {path.name}, first in row "
                f"{missing[0] + first_row(path)}. Drop these rows."
            )
    group_column, weight_column = _required(table, group, path), _required(table, weight, path)
    kind, used, values, classes = _find_values(table, columns, logits, y, target, path)
    if kind in ("probs", "score"):
        values = _check_values(values, path)
    elif kind == "logits":
        _check_logit_values(values, path)
    if kind == "pairs":
        y = _outcomes(table, y, path)
    if need_labels and y is None:
        raise ValueError(
            f"{path.name} has no column with the true classes; name it with --labels, or give a file of labels there. "
            f"Its columns are {_list(table)}."
        )
    rows = {name: column for name, column in table.items() if name not in used and name != target and column.ndim == 1}
    groups = None if group_column is None else table[group_column]
    weights = None if weight_column is None else _numbers(table, weight_column, path)
    return PredictionFile(path, kind, values, y, classes, groups, weights, rows, table)


def _required(table: Mapping[str, Any], name: str | None, path: Path) -> str | None:
    if name is not None and name not in table:
        raise ValueError(f"{path.name} has no column {name!r}. Name one of its columns: {_list(table)}.")
    return name


def _named(table: Mapping[str, Any], names: Sequence[str]) -> str | None:
    by_lower = {name.lower(): name for name in reversed(list(table))}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _find_values(
    table: Mapping[str, np.ndarray],
    columns: Sequence[str],
    logits: bool,
    y: np.ndarray | None,
    target: str | None,
    path: Path,
) -> tuple[str, set[str], np.ndarray, tuple[str, ...] | None]:
    """The kind of predictions, the columns that hold them, their values and the names of the classes."""
    if columns:
        for name in columns:
            _required(table, name, path)
        if len(columns) == 1:
            return "logit" if logits else "score", set(columns), _numbers(table, columns[0], path), None
        names = [_class_of(name) for name in columns]
        return "logits" if logits else "probs", set(columns), _matrix(table, columns, path), _classes(names, y)
    wide = [name for name, column in table.items() if column.ndim == 2]
    if wide:
        matrix_names = ("probs", "probabilities", "proba", "prob", "p", "logits", "logit")
        matrix = _named({name: table[name] for name in wide}, matrix_names) or wide[0]
        is_logits = logits or matrix.lower().startswith("logit")
        return "logits" if is_logits else "probs", {matrix}, _numbers(table, matrix, path), None
    prefixed = prefixed_columns(name for name in table if name != target)
    for prefix, group in prefixed.items():
        if len(group) > 1:
            is_logits = logits or prefix.startswith("logit")
            names = [_class_of(name) for name in group]
            return "logits" if is_logits else "probs", set(group), _matrix(table, group, path), _classes(names, y)
    if y is not None:
        labels = [name for name in dict.fromkeys(str(v) for v in np.unique(y.astype(str)).tolist()) if name in table]
        if len(labels) > 1 and len(labels) == len(np.unique(y)):
            return "logits" if logits else "probs", set(labels), _matrix(table, labels, path), tuple(labels)
    confidence = _named(table, ("confidence", "conf"))
    outcome = _named(table, ("correct",)) or (_named(table, _PREDICTED) if y is not None else None)
    if confidence is not None and (outcome or y is None):
        return "pairs", {confidence, outcome or ""}, _numbers(table, confidence, path), None
    single = next((group[0] for group in prefixed.values()), None) or _named(table, _SCORES)
    if single is not None and single != target:
        is_logit = logits or single.lower().startswith("logit")
        return "logit" if is_logit else "score", {single}, _numbers(table, single, path), None
    numbered = [name for name in map(str, range(len(table))) if name in table]
    if len(numbered) > 1 and numbered == [name for name in table if name.isdigit()]:
        return "logits" if logits else "probs", set(numbered), _matrix(table, numbered, path), _classes(numbered, y)
    if all(is_number(name) for name in table if name != target):
        raise ValueError(f"{path.name} has numbers in its first line; put a header such as prob_a,prob_b,label there.")
    raise ValueError(
        f"{path.name} has no predictions that can be recognised: expected columns prob_<class> or logit_<class>, one "
        "column score, or confidence with correct or predicted. Name them with --columns. Its columns are "
        f"{_list(table)}."
    )


def prefixed_columns(names: Iterable[str]) -> dict[str, list[str]]:
    """The names that begin like those of predictions, such as ``prob_cat``, by their beginning."""
    prefixed: dict[str, list[str]] = {}
    for name in names:
        match = _PREFIXED.match(name)
        if match:
            prefixed.setdefault(match[1].lower(), []).append(name)
    return prefixed


def _outcomes(table: Mapping[str, np.ndarray], y: np.ndarray | None, path: Path) -> np.ndarray | None:
    """Whether each prediction was right: the column `correct`, or whether the predicted class is the true one."""
    outcome = _named(table, ("correct",))
    if outcome is not None:
        return _as_correct(table[outcome], path)
    predicted = _named(table, _PREDICTED)
    if y is None or predicted is None:
        return None
    pairs = zip(y.tolist(), table[predicted].tolist(), strict=True)
    return np.array([_whole(label) == _whole(guess) for label, guess in pairs])


def _class_of(name: str) -> str:
    match = _PREFIXED.match(name)
    return name if match is None else match[2] or match[3]


def _classes(names: Sequence[str], y: np.ndarray | None) -> tuple[str, ...] | None:
    """The names of the columns; None if the labels are other numbers, which are assigned to the columns in order."""
    if y is not None and y.dtype.kind in "biuf":
        labels = [_whole(v) for v in np.unique(y).tolist()]
        columns = {str(k) for k in range(len(names))}
        if not set(labels) <= set(names) and (not set(labels) <= columns or any(map(is_number, names))):
            return None
    return tuple(names)


def _whole(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _matrix(table: Mapping[str, np.ndarray], names: Sequence[str], path: Path) -> np.ndarray:
    return np.column_stack([_numbers(table, name, path) for name in names])


def _numbers(table: Mapping[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    try:
        values = np.asarray(table[name], dtype=float)
    except (TypeError, ValueError):
        example = next((text for text in texts(table[name]) if text is not None and not is_number(text)), "text")
        raise ValueError(
            f"Column {name!r} of {path.name} must hold numbers; got {example!r}. Correct it, or pass --decimal , if "
            "its numbers have decimal commas."
        ) from None
    bad = np.flatnonzero(np.isnan(values).reshape(len(values), -1).any(axis=1))
    if len(bad):
        raise ValueError(
            f"Column {name!r} of {path.name} has no value in row {bad[0] + first_row(path)}. Drop such rows or fill "
            "them in."
        )
    return values


def _as_correct(column: np.ndarray, path: Path) -> np.ndarray:
    answers = [_whole(v).strip().lower() for v in column.tolist()]
    unknown = [answer for answer in answers if answer not in (*_TRUE, *_FALSE)]
    if unknown:
        raise ValueError(f"Column 'correct' of {path.name} must hold true/false or 1/0; got {unknown[0]!r}.")
    return np.array([answer in _TRUE for answer in answers])


def _list(table: Mapping[str, Any]) -> str:
    names = list(table)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _check_values(values: np.ndarray, path: Path) -> np.ndarray:
    """Return probabilities, (n, C) or (n,), whose rows sum to 1; an error says what else the numbers may be.

    Rows of rounded probabilities are divided by their sum, with a warning.
    """
    if len(values) == 0:
        return values
    low, high = float(values.min()), float(values.max())
    if low < -1e-6 or high > 1 + 1e-6:
        percent = values.ndim == 2 and low >= 0 and np.allclose(values.sum(axis=1), 100, rtol=0, atol=5)
        advice = "These are percentages: divide them by 100." if percent else "Use --logits if these are logits."
        raise ValueError(
            f"The probabilities of {path.name} must lie in [0, 1]; got values from {low:.6g} to {high:.6g}. {advice}"
        )
    if values.ndim == 1:
        return values
    sums = values.sum(axis=1)
    gaps = np.abs(sums - 1)
    worst = int(gaps.argmax())
    if gaps[worst] <= _SLACK:
        return values
    digits = _digits(values)
    if digits is None or gaps[worst] > min(_MOST, values.shape[1] * 0.5 * 10.0**-digits + 1e-9):
        raise ValueError(
            f"Each row of probabilities of {path.name} must sum to 1; got {sums[worst]:.6g} in row "
            f"{worst + first_row(path)}. Use --logits if these are logits, and --columns if a column is missing."
        )
    warn(
        f"The probabilities of {path.name} are rounded to {digits} decimals, so their sums differ from 1 by up to "
        f"{gaps[worst]:.2g}. Each row is divided by its sum."
    )
    return np.asarray(values / sums[:, None])


def _check_logit_values(values: np.ndarray, path: Path) -> None:
    """Raise an error if the logits of a file are probabilities."""
    if values.ndim == 2 and are_probs(torch.from_numpy(np.ascontiguousarray(values, dtype=float))):
        raise ValueError(
            f"The logits of {path.name} are probabilities: each row lies in [0, 1] and sums to 1. Leave out --logits, "
            "and name the columns prob_<class>, not logit_<class>."
        )


def _digits(values: np.ndarray) -> int | None:
    """The number of decimals that the values are rounded to; None if it is more than 4."""
    return next((d for d in range(1, 5) if np.abs(values - values.round(d)).max() < 1e-9), None)
