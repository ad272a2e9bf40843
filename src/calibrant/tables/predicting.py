"""Predictions for a table of any size, in pieces; `calibrant predict` calls this."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from calibrant.base.settings import check_fraction
from calibrant.base.words import listed
from calibrant.data.columns.labels import as_labels
from calibrant.data.columns.read import read_chunks
from calibrant.data.columns.values import Columns, each, is_missing
from calibrant.data.columns.write import table_writer
from calibrant.data.free_text import FreeText
from calibrant.metrics.streaming import StreamingECE
from calibrant.tables.describe import date_notes, outside_dates
from calibrant.tables.model import TableModel, load_model
from calibrant.tables.read import need_column

CHUNK = 20_000
SHOWN = 5
"""The largest number of categories named in a note."""


@dataclass
class Summary:
    """The number of predictions, and their scores if the table has labels."""

    rows: int = 0
    withheld: int | None = None
    labelled: int = 0
    correct: int = 0
    kept: int = 0
    kept_correct: int = 0
    ece: float = float("nan")
    labels: str | None = None
    """The name that `keep` gives the column of labels in the output; None if no labels were compared."""
    notes: list[str] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """The share of right predictions among the labelled rows."""
        return self.correct / self.labelled if self.labelled else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values for JSON; scores are None if the table has no labels."""
        scored = bool(self.labelled)
        return {
            "rows": self.rows,
            "withheld": self.withheld,
            "labelled": self.labelled,
            "accuracy": self.accuracy if scored else None,
            "kept_accuracy": self.kept_correct / self.kept if self.kept else None,
            "ece": self.ece if scored else None,
            "notes": list(self.notes),
        }


def predict(
    model: TableModel | str | os.PathLike[str],
    table: str | os.PathLike[str],
    out: str | os.PathLike[str] | TextIO,
    *,
    chunk: int = CHUNK,
    set_coverage: float | None = None,
    keep: Sequence[str] = (),
    score: bool = True,
    encoding: str | None = None,
) -> Summary:
    """Predict the rows of a file in chunks, and write one output row for each.

    Parameters
    ----------
    model : TableModel or path
        The model, or the file that holds it.
    table : path
        CSV, TSV or Parquet file; columns are matched by name, and unknown columns are ignored.
    out : path or text stream
        The file to write (.csv, .tsv, .parquet), complete or not at all; or an open text stream for CSV.
    chunk : int
        How many rows are in memory at a time.
    set_coverage : float, optional
        Add a column ``set`` of classes that contains the true class with this probability.
    keep : sequence of str
        Columns of the table to copy, such as an identifier; "row (table)" is the table's own column "row".
    score : bool
        Compare with the labels if the table has the target column.
    encoding : str, optional
        The encoding of a text file; by default, that of the training table.

    Returns
    -------
    Summary
        The number of predictions, and their scores if the table has labels.
    """
    loaded = model if isinstance(model, TableModel) else load_model(model)
    table = Path(table)
    if isinstance(out, str | os.PathLike) and table.exists() and Path(out).exists() and os.path.samefile(table, out):
        raise ValueError(f"The output file must not be the table itself, which would be lost; got {out} for both.")
    rule = None
    if set_coverage is not None:
        if not hasattr(loaded.classifier, "set_rule"):
            raise ValueError(
                "Prediction sets need a cross-fitted classifier; train with --method self-calibrated instead of "
                f"{loaded.about.get('method', type(loaded.classifier).__name__)}."
            )
        rule = loaded.classifier.set_rule(check_fraction(set_coverage, "--set-coverage"))
    summary, errors = Summary(withheld=None if loaded.rule is None else 0), StreamingECE()
    warning_texts: dict[str, None] = {}
    unseen: dict[str, dict[str, None]] = {}
    encodings = [] if loaded.encoder is None else loaded.encoder.columns_
    wordless = [encoding for encoding in encodings if isinstance(encoding, FreeText)]
    date_ranges, outside = loaded.about.get("dates", {}), Counter[str]()
    used = {*loaded.features, *([loaded.target] if score else [])}
    formats = {name: form for name, form in loaded.formats.items() if name in used}
    with table_writer(out) as write:
        for columns in read_chunks(table, chunk, formats, encoding or loaded.encoding):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                probs = loaded.probs(columns, table.name)
            warning_texts |= dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning))
            for name, values in loaded.unseen(columns).items():
                unseen.setdefault(name, {}).update(dict.fromkeys(values[:SHOWN]))
            wordless = [text for text in wordless if not text.terms(columns[text.name]).nnz]
            outside.update(outside_dates(columns, date_ranges))
            output = loaded.predictions(probs)
            if rule is not None:
                output["set"] = _sets(loaded.classes, rule.apply(probs))
            if score and loaded.target in columns:
                _add_scores(summary, errors, loaded, columns, output, probs, table.name)
            output = {"row": summary.rows + 1 + np.arange(len(probs)), **output}
            if summary.labelled and loaded.target is not None:
                summary.labels = _copied_name(loaded.target, output)
            write(_with_copied(columns, keep, table.name, output))
            summary.rows += len(probs)
            if summary.withheld is not None:
                summary.withheld += int(output["withheld"].sum())
    if summary.labelled:
        summary.ece = errors.compute()
    summary.notes += warning_texts
    summary.notes += [
        f"Column {name!r} holds categories that training did not see ({listed(values, SHOWN)}), which count as rare."
        for name, values in unseen.items()
    ]
    summary.notes += [
        f"Column {text.name!r} has no text, or no word or group of letters that training saw. All rows count as empty."
        for text in wordless
    ]
    summary.notes += date_notes(outside, date_ranges, summary.rows, "row")
    return summary


def _with_copied(columns: Columns, keep: Sequence[str], file: str, output: dict[str, Any]) -> dict[str, Any]:
    """Insert copied columns behind the row number; one with the name of another output is called "name (table)"."""
    for name in keep:
        need_column(columns, name, file)
    copied = {_copied_name(name, output): columns[name] for name in keep}
    return {"row": output["row"], **copied, **output}


def _copied_name(name: str, output: Collection[str]) -> str:
    return f"{name} (table)" if name in output else name


def _sets(classes: list[str], members: np.ndarray) -> np.ndarray:
    """Return the classes of each set as text, separated by bars."""
    return np.array(["|".join(c for c, inside in zip(classes, row, strict=True) if inside) for row in members], object)


def _add_scores(
    summary: Summary,
    errors: StreamingECE,
    model: TableModel,
    columns: Columns,
    output: dict[str, Any],
    probs: np.ndarray,
    file: str,
) -> None:
    """Count the correct predictions among the rows that have a label."""
    assert model.target is not None
    column = columns[model.target]
    labelled_rows = np.flatnonzero(~np.array(each(is_missing, column), dtype=bool))
    if not len(labelled_rows):
        return
    labels = [str(value) for value in as_labels(column[labelled_rows], name=model.target).tolist()]
    place = {name: k for k, name in enumerate(model.classes)}
    if unknown := [label for label in labels if label not in place]:
        raise ValueError(
            f"{file} holds {unknown[0]!r} in {model.target!r}, a class that the model does not know; it knows "
            f"{listed(model.classes)}. Correct it, or predict without comparing (--no-score)."
        )
    codes = np.array([place[label] for label in labels])
    correct = probs[labelled_rows].argmax(axis=1) == codes
    errors.update(confidence=output["confidence"][labelled_rows], correct=correct)
    summary.labelled += len(labelled_rows)
    summary.correct += int(correct.sum())
    accepted = ~output["withheld"][labelled_rows] if "withheld" in output else np.ones(len(labelled_rows), dtype=bool)
    summary.kept += int(accepted.sum())
    summary.kept_correct += int(correct[accepted].sum())
