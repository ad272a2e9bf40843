"""Predictions for a table of any size, in pieces; `calibrant predict` calls this."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from calibrant.base.settings import check_fraction
from calibrant.base.words import listed
from calibrant.data.columns.encoding import Categorical
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
    rule = None if set_coverage is None else _set_rule(loaded, set_coverage)
    target = loaded.target if score else None
    summary, errors, notes = Summary(withheld=None if loaded.rule is None else 0), StreamingECE(), _Notes(loaded)
    formats = {name: form for name, form in loaded.formats.items() if name in {*loaded.features, target}}
    with table_writer(out) as write:
        for columns in read_chunks(table, chunk, formats, encoding or loaded.about.get("encoding", "utf-8")):
            for name in keep:
                need_column(columns, name, table.name)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                probs = loaded.probs(columns, table.name)
            notes.add(columns, caught)
            output = {"row": summary.rows + 1 + np.arange(len(probs)), **loaded.predictions(probs)}
            if rule is not None:
                output["set"] = _sets(loaded.classes, rule.apply(probs))
            if target in columns:
                _add_scores(summary, errors, loaded, columns[target], output, table.name)
                summary.labels = _copied_name(target, output) if summary.labelled else None
            copied = {_copied_name(name, output): columns[name] for name in keep}
            write({"row": output["row"], **copied, **output})
            summary.rows += len(probs)
            if summary.withheld is not None:
                summary.withheld += int(output["withheld"].sum())
    if summary.labelled:
        summary.ece = errors.compute()
    summary.notes += notes.sentences(summary.rows)
    return summary


class _Notes:
    """Notes on the rows of a table, which is read in pieces: what training did not see."""

    def __init__(self, model: TableModel) -> None:
        self.warnings: dict[str, None] = {}
        self.unseen: dict[str, dict[str, None]] = {}
        self.dates, self.outside = model.about.get("dates", {}), Counter[str]()
        encodings = model.classifier.encoder_.columns_ if model.classifier.encoder_ else []
        self.categories = [encoding for encoding in encodings if isinstance(encoding, Categorical)]
        self.wordless = [encoding for encoding in encodings if isinstance(encoding, FreeText)]

    def add(self, columns: Columns, caught: Iterable[warnings.WarningMessage]) -> None:
        self.warnings |= dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning))
        for category in self.categories:
            if unseen := category.unseen(columns[category.name]):
                self.unseen.setdefault(category.name, {}).update(dict.fromkeys(unseen[:SHOWN]))
        self.wordless = [text for text in self.wordless if not text.terms(columns[text.name]).nnz]
        self.outside.update(outside_dates(columns, self.dates))

    def sentences(self, rows: int) -> Iterator[str]:
        yield from self.warnings
        for name, values in self.unseen.items():
            yield (
                f"Column {name!r} holds categories that training did not see ({listed(values, SHOWN)}), which count as "
                "rare."
            )
        for text in self.wordless:
            yield (
                f"Column {text.name!r} has no text, or no word or group of letters that training saw. All rows count "
                "as empty."
            )
        yield from date_notes(self.outside, self.dates, rows, "row")


def _set_rule(model: TableModel, coverage: float) -> Any:
    if not hasattr(model.classifier, "set_rule"):
        raise ValueError(
            "Prediction sets need a cross-fitted classifier; train with --method self-calibrated instead of "
            f"{model.about.get('method', type(model.classifier).__name__)}."
        )
    return model.classifier.set_rule(check_fraction(coverage, "--set-coverage"))


def _copied_name(name: str, output: Collection[str]) -> str:
    return f"{name} (table)" if name in output else name


def _sets(classes: list[str], members: np.ndarray) -> np.ndarray:
    """Return the classes of each set as text, separated by bars."""
    return np.array(["|".join(c for c, inside in zip(classes, row, strict=True) if inside) for row in members], object)


def _add_scores(
    summary: Summary, errors: StreamingECE, model: TableModel, column: np.ndarray, output: dict[str, Any], file: str
) -> None:
    """Count the correct predictions among the rows that have a label."""
    labelled = ~np.array(each(is_missing, column), dtype=bool)
    if not labelled.any():
        return
    labels = as_labels(column[labelled], name=str(model.target)).astype(str)
    if (unknown := np.setdiff1d(labels, model.classes)).size:
        raise ValueError(
            f"{file} holds {str(unknown[0])!r} in {model.target!r}, a class that the model does not know; it knows "
            f"{listed(model.classes)}. Correct it, or predict without comparing (--no-score)."
        )
    correct = output["predicted"][labelled] == labels
    errors.update(confidence=output["confidence"][labelled], correct=correct)
    accepted = ~output.get("withheld", np.zeros(len(column), dtype=bool))[labelled]
    summary.labelled += len(labels)
    summary.correct += int(correct.sum())
    summary.kept += int(accepted.sum())
    summary.kept_correct += int(correct[accepted].sum())
