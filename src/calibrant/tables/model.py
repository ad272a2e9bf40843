"""Models of tables in one file: encoder, classifier, rejection rule, and facts about the training."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.base.words import listed
from calibrant.data.columns import ColumnFormat
from calibrant.data.columns.column_format import formats_from_json
from calibrant.data.columns.encoder import EncodedTable, TableEncoder
from calibrant.data.columns.parquet import need_pandas
from calibrant.data.columns.values import Columns, numbers
from calibrant.estimators import load_classifier
from calibrant.selective import RejectionRule

ABOUT = "table_"
"""The classifier's fitted attribute with the facts that `calibrant train` stores about the table."""


@dataclass(frozen=True)
class TableModel:
    """A fitted classifier, its rejection rule, and facts about its training.

    ``classifier`` predicts data frames with the columns ``features``, ``rule`` says when predictions are withheld, and
    ``about`` holds the target, the classes, the columns and how their values were written.
    """

    classifier: Any
    rule: RejectionRule | None
    about: dict[str, Any]

    @property
    def target(self) -> str | None:
        """The column that it predicts."""
        return self.about.get("target")

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the probabilities."""
        return [str(value) for value in self.classifier.classes_.tolist()]

    @property
    def features(self) -> list[str]:
        """The columns that a table needs."""
        return [str(name) for name in getattr(self.classifier, "feature_names_in_", ())]

    @property
    def formats(self) -> dict[str, ColumnFormat]:
        """How values were written in the columns of the training table; empty for a classifier saved from Python."""
        return formats_from_json(self.about.get("formats", {}))

    def probs(self, columns: Columns, file: str) -> np.ndarray:
        """Return class probabilities for the rows of a table."""
        if absent := [name for name in self.features if name not in columns]:
            raise ValueError(
                f"{file} lacks columns that the model was trained on: {listed(absent, 5)}. Its columns are "
                f"{listed(columns)}. Add the missing ones, or correct their names; values may be empty."
            )
        probs: np.ndarray = self.classifier.predict_proba(encoded(columns, self.features, self.classifier.encoder_))
        return probs

    def predictions(self, probs: np.ndarray) -> dict[str, np.ndarray]:
        """Return predicted class, confidence, a probability per class, and whether the prediction is withheld."""
        names, best, confidence = np.array(self.classes, dtype=object), probs.argmax(axis=1), probs.max(axis=1)
        columns = {"predicted": names[best], "confidence": confidence}
        columns |= {f"prob_{name}": probs[:, k] for k, name in enumerate(names)}
        if self.rule is None:
            return columns
        accepted = self.rule.accepts(confidence) if self.rule.found else np.zeros(len(confidence), dtype=bool)
        return columns | {"withheld": ~accepted}


def encoded(columns: Columns, names: Iterable[str], encoder: TableEncoder | None) -> Any:
    """Return what a classifier reads: the numbers of the encoder, or a data frame of plain numbers without one."""
    if encoder is not None:
        return EncodedTable(encoder.transform(columns), encoder)
    return need_pandas().DataFrame({name: numbers(columns[name], name) for name in names})


def save_model(model: TableModel, path: str | os.PathLike[str]) -> None:
    """Write the model to one file, complete or not at all.

    `calibrant.estimators.load_classifier` reads only the classifier.
    """
    rule = None if model.rule is None else model.rule.to_json()
    setattr(model.classifier, ABOUT, {**model.about, "rule": rule})
    model.classifier.save(path)


def load_model(path: str | os.PathLike[str]) -> TableModel:
    """Read a model of `calibrant train`, or a classifier saved from Python that was fitted on named columns."""
    classifier = load_classifier(path)
    about = dict(getattr(classifier, ABOUT, {}))
    rule = about.pop("rule", None)
    model = TableModel(classifier, None if rule is None else RejectionRule.from_json(rule), about)
    if not model.features:
        raise ValueError(
            f"{path} holds a classifier that was trained without column names, so a table cannot be matched to it. "
            "Train it with `calibrant train`, or on a data frame."
        )
    return model
