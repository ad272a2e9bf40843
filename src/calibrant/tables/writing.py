"""Writing the tables of predictions and of suspect labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibrant.data.columns.write import table_writer
from calibrant.tables.model import TableModel
from calibrant.tables.reading import Labelled


def prediction_columns(model: TableModel, probs: np.ndarray) -> dict[str, np.ndarray]:
    """Return predicted class, confidence, a probability per class, and whether the prediction is withheld."""
    names = np.array(model.classes, dtype=object)
    best = probs.argmax(axis=1)
    confidence = probs[np.arange(len(probs)), best]
    columns = {"predicted": names[best], "confidence": confidence}
    columns |= {f"prob_{name}": probs[:, k] for k, name in enumerate(names)}
    accepted = model.accepts(confidence)
    return columns if accepted is None else columns | {"withheld": ~accepted}


def write_predictions(path: Path, model: TableModel, test: Labelled, probs: np.ndarray) -> None:
    """Write the held-out rows: row number, label and prediction."""
    labels = np.array([str(v) for v in test.labels.tolist()], dtype=object)
    with table_writer(path) as write:
        write({"row": test.numbers, "label": labels} | prediction_columns(model, probs))


def suspects(model: TableModel, train: Labelled) -> list[dict[str, Any]]:
    """Return training rows whose label is less likely than another class, most suspect first."""
    rows, scores = model.classifier.suspects(return_scores=True)
    if not len(rows):
        return []
    probs = _unseen_probs(model, train, rows)
    classes, labels = model.classes, [str(v) for v in train.labels[rows].tolist()]
    suspect_rows = []
    for row, score, label, row_probs in zip(rows.tolist(), scores.tolist(), labels, probs, strict=True):
        likely = classes[int(row_probs.argmax())]
        if likely != label:
            entry = {"row": int(train.numbers[row]), "label": label, "likely": likely, "suspicion": score}
            suspect_rows.append(entry | {"probability_of_label": float(row_probs[classes.index(label)])})
    return suspect_rows


def _unseen_probs(model: TableModel, train: Labelled, rows: np.ndarray) -> np.ndarray:
    """Return out-of-fold probabilities of the rows if there are any, else the model's predictions."""
    out_of_fold = getattr(model.classifier, "oof_proba_", None)
    if out_of_fold is not None and np.isfinite(out_of_fold[rows]).all():
        return np.asarray(out_of_fold[rows])
    return model.probs({name: column[rows] for name, column in train.columns.items()}, train.file)


def write_suspects(path: Path, entries: list[dict[str, Any]], train: Labelled, *, rows: bool) -> None:
    """Write the suspects; with the values of their rows if `rows` is True."""
    names = ("row", "label", "likely", "suspicion", "probability_of_label")
    columns: dict[str, Any] = {name: [entry[name] for entry in entries] for name in names}
    if rows:
        place = {number: k for k, number in enumerate(train.numbers.tolist())}
        index = np.array([place[entry["row"]] for entry in entries], dtype=int)
        for name, column in train.columns.items():
            columns[name if name not in names else f"{name} (table)"] = column[index]
    with table_writer(path) as write:
        write(columns)
