"""Judge files of predictions: side by side, and before and after recalibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from calibrant.posthoc import Calibrator, confidence_calibrator, make_calibrator
from calibrant.posthoc.auto import stratified_folds
from calibrant.report.evaluation.evaluate import judge_samples
from calibrant.report.evaluation.files import PredictionFile
from calibrant.report.evaluation.numbers import Settings
from calibrant.report.evaluation.reading import Sample, read_labels, read_matrix, read_pairs
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
    level: float = 0.95,
    bins: int = 15,
) -> tuple[Evaluation, dict[str, Calibrator]]:
    """Evaluate files that predict the same rows; also returns the calibrators by model.

    `recalibrate` names a calibrator, or "auto". It is fitted on half of the rows, and everything is measured on the
    other half. Classes are spread evenly over the halves.
    """
    names = _names(files)
    _same_rows(files)
    columns = [_columns(file, positive) for file in files]
    judged = np.arange(len(files[0]))
    if recalibrate is not None:
        judged, fitting = halves(columns[0][1], seed)
    weights = files[0].weights
    samples: dict[str, Sample] = {}
    fitted: dict[str, Calibrator] = {}
    for name, file, (values, labels, classes) in zip(names, files, columns, strict=True):
        predicted = None
        if file.predicted is not None and classes is not None and set(file.predicted) <= set(classes):
            predicted = np.array([classes.index(file.predicted[row]) for row in judged])
        samples[name] = _sample(values[judged], labels[judged], classes, file.is_logits, predicted)
        if recalibrate is not None:
            calibrator = _new_calibrator(recalibrate, file)
            shares = None if weights is None else weights[fitting]
            fitted[name] = calibrator.fit(values[fitting], labels[fitting], shares)
            after, kept = calibrator.predict_proba(values[judged]), np.asarray(calibrator.predict(values[judged]))
            after = after[:, 1] if values.ndim == 1 else after
            samples[f"{name} + {recalibrate}"] = _sample(after, labels[judged], classes, False, kept)
    groups = None if files[0].groups is None else files[0].groups[judged]
    weights = None if weights is None else weights[judged]
    row_values = {name: column[judged] for name, column in files[0].rows.items()} if rows else None
    numbers, settings = judged + files[0].first_row, Settings(level, bins, seed=seed)
    return judge_samples(samples, groups, weights, row_values, numbers, settings), fitted


def _sample(
    values: np.ndarray, labels: np.ndarray, classes: tuple[str, ...] | None, is_logits: bool, predicted: Any
) -> Sample:
    """Predictions and the column of each label; a confidence, and whether it was right, where there are no classes."""
    if classes is None:
        return read_pairs(values, labels)
    return read_matrix(values, np.array(classes)[labels], is_logits, classes, predicted)


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


def halves(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two halves of the rows, each class divided evenly if possible; each half in the order of the file."""
    if len(labels) < 4:
        raise ValueError(f"--recalibrate needs at least 4 rows to fit on some and report on others; got {len(labels)}.")
    fold = stratified_folds(labels, 2, seed)
    return np.flatnonzero(fold == 0), np.flatnonzero(fold == 1)


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
