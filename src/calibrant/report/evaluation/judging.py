"""Judge files of predictions: side by side, and before and after recalibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from calibrant.base.inputs import Logits, two_columns
from calibrant.base.words import listed
from calibrant.posthoc import Calibrator, confidence_calibrator, make_calibrator
from calibrant.report.evaluation.evaluate import evaluate
from calibrant.report.evaluation.files import PredictionFile
from calibrant.report.evaluation.reading import read_labels
from calibrant.report.evaluation.result import Evaluation

_Columns: TypeAlias = tuple[np.ndarray, np.ndarray, tuple[str, ...] | None]
"""Values, the column of each label, and the names of the columns."""


def judge_files(
    files: Sequence[PredictionFile],
    *,
    recalibrate: str | None = None,
    positive: str | None = None,
    rows: bool = True,
    seed: int = 0,
    **options: Any,
) -> tuple[Evaluation, dict[str, Calibrator]]:
    """Evaluate files that predict the same rows; also returns the calibrators by model.

    `recalibrate` names a calibrator, or "auto". It is fitted on half of the rows, and everything is measured on the
    other half. Classes are spread evenly over the halves.
    """
    names = _names(files)
    _same_rows(files)
    columns = [_columns(file, positive) for file in files]
    columns[1:] = [_in_order_of(files[0], columns[0], *pair) for pair in zip(files[1:], columns[1:], strict=True)]
    judged = np.arange(len(files[0]))
    if recalibrate is not None:
        judged, fitting = halves(columns[0][1], seed)
    weights = _weights(files[0])
    models: dict[str, Any] = {}
    outcomes: dict[str, np.ndarray] = {}
    answers: dict[str, np.ndarray] = {}  # predicted classes, which do not always have the largest probability
    fitted: dict[str, Calibrator] = {}
    for name, file, (values, labels, classes) in zip(names, files, columns, strict=True):
        models[name] = Logits(values[judged]) if file.is_logits else values[judged]
        outcomes[name] = labels[judged]
        predicted = file.predicted
        if predicted is not None and classes is not None and set(predicted) <= set(classes):
            answers[name] = np.array([classes.index(predicted[row]) for row in judged])
        if recalibrate is not None:
            calibrator = _new_calibrator(recalibrate, file)
            fitted[name] = calibrator.fit(
                values[fitting], labels[fitting], None if weights is None else weights[fitting]
            )
            after, combined = calibrator.predict_proba(values[judged]), f"{name} + {recalibrate}"
            models[combined] = after[:, 1] if values.ndim == 1 else after
            outcomes[combined] = labels[judged]
            answers[combined] = np.asarray(calibrator.predict(values[judged]))
    part = files[0].take(judged)
    shared: dict[str, Any] = {"groups": part.groups, "rows": part.rows if rows else None, **options}
    shared["row_numbers"] = judged + files[0].first_row
    shared["sample_weight"] = None if weights is None else weights[judged]
    if files[0].kind == "pairs":
        return evaluate(confidence=models, correct=outcomes, **shared), fitted
    names_of_classes = list(columns[0][2] or ())
    shared |= {"predicted": answers, "classes": names_of_classes}
    return evaluate(models, np.array(names_of_classes)[outcomes[names[0]]], **shared), fitted


def _weights(file: PredictionFile) -> np.ndarray | None:
    """The weights of the rows as numbers."""
    if file.weights is None:
        return None
    try:
        return np.asarray(file.weights, dtype=np.float64)
    except (ValueError, TypeError):
        raise ValueError(f"The column of weights in {file.path.name} must hold numbers only; got text.") from None


def fit_file(file: PredictionFile, name: str, positive: str | None = None) -> Calibrator:
    """Fit a calibrator to all rows of a file; it remembers the classes and the kind of the predictions."""
    values, labels, classes = _columns(file, positive)
    if len(values) < 2:
        raise ValueError(
            f"{file.path.name} must have more than one row to fit a calibrator; got {len(values)}. A few hundred are "
            "useful."
        )
    calibrator = _new_calibrator(name, file).fit(values, labels)
    calibrator.class_names_ = list(classes or ())
    calibrator.kind_ = file.kind
    return calibrator


def _new_calibrator(name: str, file: PredictionFile) -> Calibrator:
    return confidence_calibrator(name) if file.kind == "pairs" else make_calibrator(name, from_probs=not file.is_logits)


def _columns(file: PredictionFile, positive: str | None) -> _Columns:
    """Values, the column of each label, and the names of the columns."""
    assert file.labels is not None
    if file.kind == "pairs":
        return file.values, file.labels.astype(int), None
    n_classes = 2 if file.values.ndim == 1 else file.values.shape[1]
    classes: Sequence[str] | None = file.classes
    if positive is not None and file.values.ndim == 1:
        label_names = sorted({str(v) for v in file.labels.tolist()})
        if positive not in label_names or len(label_names) > 2:
            raise ValueError(f"--positive must be one of the two labels {label_names[:5]}; got {positive!r}.")
        classes = [next((v for v in label_names if v != positive), "other"), positive]
    try:
        labels, names = read_labels(file.labels, len(file), n_classes, classes)
    except ValueError as error:
        raise ValueError(f"{file.path.name}: {error}") from None
    return file.values, labels, names


def _in_order_of(first: PredictionFile, reference: _Columns, file: PredictionFile, columns: _Columns) -> _Columns:
    """The columns of a file in the order of the classes in the first file."""
    (_, labels, expected), (values, _, names) = reference, columns
    if names == expected or names is None or expected is None:
        return columns
    if set(names) != set(expected):
        raise ValueError(
            f"{first.path.name} and {file.path.name} must have the same classes; got {listed(expected)} and "
            f"{listed(names)}."
        )
    matrix = np.asarray(two_columns(values, logits=file.is_logits))
    return matrix[:, [names.index(name) for name in expected]], labels, expected


def halves(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two halves of the rows, each class divided evenly if possible; each half in the order of the file."""
    if len(labels) < 4:
        raise ValueError(f"--recalibrate needs at least 4 rows to fit on some and report on others; got {len(labels)}.")
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return np.sort(order[::2]), np.sort(order[1::2])


def _names(files: Sequence[PredictionFile]) -> list[str]:
    stems = [file.path.stem for file in files]
    return stems if len(set(stems)) == len(stems) else [str(file.path) for file in files]


def _same_rows(files: Sequence[PredictionFile]) -> None:
    first = files[0]
    for other in files[1:]:
        names = f"{first.path.name} and {other.path.name}"
        if len(other) != len(first):
            raise ValueError(f"{names} must predict the same rows; got {len(first)} and {len(other)} rows.")
        if (other.kind == "pairs") != (first.kind == "pairs"):
            raise ValueError(f"{names} must hold the same kind of predictions; give class probabilities in both.")
        if first.kind == "pairs":
            continue
        assert first.labels is not None
        assert other.labels is not None
        if not np.array_equal(first.labels.astype(str), other.labels.astype(str)):
            raise ValueError(f"{names} must have the same labels; sort both files by the same row number.")
