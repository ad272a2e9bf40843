"""Reading the tables of `calibrant train`: inputs, labels, groups, times and weights, with the format of each column.

A ValueError says why a table is not suitable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.base.words import count, listed
from calibrant.data.columns import ColumnFormat
from calibrant.data.columns.labels import as_labels
from calibrant.data.columns.parquet import need_pandas
from calibrant.data.columns.read import NAMELESS, FileTable, read_formatted
from calibrant.data.columns.values import Columns, days, each, is_missing, is_number, is_numeric, numbers, set_of, texts
from calibrant.tables.order import Order

MOST_CLASSES = 1000
MANY_CLASSES = 20
"""Up to this many classes are accepted regardless of how many rows each has."""
FEWEST_ROWS_PER_CLASS = 5
ALONE = "row "
"""How the group of a row without a group begins; the names of other groups begin with an equals sign."""
MOST_UNLABELLED = 0.5
"""The largest share of rows without a label that is dropped silently; more are likely a mistake."""


@dataclass(frozen=True)
class Labelled:
    """Rows with labels. ``numbers`` are row numbers in the file: 1 is the first row below the header."""

    file: str
    target: str
    columns: Columns = field(repr=False)
    labels: np.ndarray = field(repr=False)
    numbers: np.ndarray = field(repr=False)
    groups: np.ndarray | None = field(default=None, repr=False)
    times: np.ndarray | None = field(default=None, repr=False)
    """Dates or numbers that order the rows."""
    weights: np.ndarray | None = field(default=None, repr=False)
    """How much each row counts; all are positive."""
    formats: Mapping[str, ColumnFormat] = field(default_factory=dict, repr=False)
    """How the values of the columns of the file are written."""
    notes: tuple[str, ...] = ()
    """Notes on how the file was read."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> Labelled:
        """Return some of the rows, in the given order."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        arrays = {name: getattr(self, name) for name in ("labels", "numbers", "groups", "times", "weights")}
        arrays_of_rows = {name: values[rows] for name, values in arrays.items() if values is not None}
        return replace(self, columns=columns, **arrays_of_rows)

    @property
    def label_names(self) -> np.ndarray:
        """The label of each row as text."""
        return self.labels.astype(str)

    @property
    def classes(self) -> dict[str, int]:
        """The number of rows of each class, the most frequent first."""
        return dict(Counter(self.label_names.tolist()).most_common())

    @property
    def declared_formats(self) -> str:
        """The formats that the user declared, with the columns that have them; empty if there are none."""
        by_format: dict[str, list[str]] = {}
        for name, form in self.formats.items():
            if name in self.columns and form != ColumnFormat(form.kind):
                by_format.setdefault(str(form), []).append(name)
        return "; ".join(f"{form} ({listed(names)})" for form, names in by_format.items())

    @property
    def frame(self) -> Any:
        """The inputs as a data frame."""
        return need_pandas().DataFrame(self.columns)


def read(order: Order) -> Labelled:
    """The rows of the table. Rows without a label or of weight zero are left out."""
    file = read_formatted(order.table, order.notation, text=(*order.categorical, *order.text))
    roles = {"groups": order.groups, "time": order.time, "weight": order.weight}
    dropped = [name for name in order.drop if name not in NAMELESS]  # row numbers are left out in any case
    for name in (order.target, *filter(None, roles.values()), *dropped):
        need_column(file.columns, name, order.table.name)
    if order.target in order.drop:
        raise ValueError(f"{order.target!r} is the column to predict; leave it out of --drop.")
    if use := next((use for use, name in roles.items() if name == order.target), None):
        raise ValueError(f"{order.target!r} is the column to predict; name another column for the {use}.")
    table = _labelled(order, order.table, file, order.groups, order.time)
    for name in (*order.categorical, *order.text):
        need_column(table.columns, name, table.file)
    if table.groups is not None and len(np.unique(table.groups)) < 2:
        raise ValueError(f"Column {order.groups!r} of {table.file} holds one group only; leave --groups out.")
    notes = [note for name, note in file.notes.items() if name not in (order.groups, *order.drop)]
    return replace(table, notes=(*notes, *table.notes))


def read_part(order: Order, path: Path, table: Labelled) -> Labelled:
    """The rows of a validation or test file, in the formats of the table, whose columns and classes it must have.

    It may lack the column of groups.
    """
    used = {*table.columns, order.target, order.groups, order.weight}
    file = read_formatted(path, order.notation, {name: form for name, form in table.formats.items() if name in used})
    for name in (order.target, *filter(None, [order.weight])):
        need_column(file.columns, name, path.name)
    part = _labelled(order, path, file, order.groups if order.groups in file.columns else None, None)
    for name in table.columns:
        need_column(part.columns, name, part.file)
    classes = {str(value): value for value in np.unique(table.labels).tolist()}
    unknown = [name for name in part.classes if name not in classes]
    if unknown:
        raise ValueError(
            f"{part.file} holds the class {unknown[0]!r} in {order.target!r}, which {table.file} does not have; its "
            f"classes are {listed(classes)}. Correct it, or remove these rows."
        )
    labels = np.array([classes[str(value)] for value in part.labels.tolist()], dtype=table.labels.dtype)
    return replace(part, columns={name: part.columns[name] for name in table.columns}, labels=labels)


def need_column(columns: Collection[str], name: str, file: str) -> None:
    """Raise an error that suggests similar names if a table lacks a column."""
    if name in columns:
        return
    by_lower = {column.lower().strip(): column for column in columns}
    cleaned = name.lower().strip()
    near = [cleaned] if cleaned in by_lower else get_close_matches(cleaned, by_lower, n=3, cutoff=0.7)
    meant = " or ".join(repr(by_lower[column]) for column in near)
    hint = f"Did you mean {meant}?" if near else f"Its columns are {listed(columns)}."
    raise ValueError(f"{file} has no column {name!r}. {hint}")


def check_classes(labels: np.ndarray, target: str, file: str) -> None:
    """Raise an error if the labels have one class, or too many values to be classes."""
    values = set_of(labels)
    n_values, rows = len(values), len(labels)
    if n_values == 1:
        raise ValueError(
            f"Column {target!r} of {file} must hold at least two classes; got one class only, {str(values[0])!r}."
        )
    if n_values > MOST_CLASSES or (n_values > MANY_CLASSES and rows < FEWEST_ROWS_PER_CLASS * n_values):
        guess = "a quantity or a number of rows" if is_numeric(labels) else "names or free text"
        raise ValueError(
            f"Column {target!r} of {file} holds {n_values:,} different values in {rows:,} rows, which look like "
            f"{guess} and not like classes. Name another column, or turn this one into at most {MOST_CLASSES:,} "
            f"classes with at least {FEWEST_ROWS_PER_CLASS} rows each."
        )


def _labelled(order: Order, path: Path, file: FileTable, groups: str | None, time: str | None) -> Labelled:
    """The rows of a file that have a label and a weight above zero."""
    columns, target, weight = file.columns, order.target, order.weight
    labelled = ~np.array(each(is_missing, columns[target]), dtype=bool)
    labels = _labels(columns[target], labelled, target, path.name)
    others = {target, order.groups, order.time, weight, *order.drop}
    inputs = {name: column[labelled] for name, column in columns.items() if name not in others}
    if not inputs:
        raise ValueError(f"{path.name} has no column besides {target!r} to predict it from; add some.")
    table = Labelled(
        path.name,
        target,
        inputs,
        labels,
        np.flatnonzero(labelled) + 1,
        None if groups is None else _groups(columns[groups][labelled]),
        None if time is None else _times(columns[time][labelled], time, path.name),
        None if weight is None else _weights(columns[weight][labelled], weight, path.name),
        file.formats,
    )
    notes = []
    if absent := int((~labelled).sum()):
        notes.append(f"{count(absent, 'row')} without a value in {target!r}: left out.")
    if table.weights is not None and (without := int((table.weights == 0).sum())):
        notes.append(f"{count(without, 'row')} of weight 0 in {weight!r}: left out.")
        table = table.take(np.flatnonzero(table.weights))
    return replace(table, notes=tuple(notes))


def _labels(column: np.ndarray, labelled: np.ndarray, target: str, file: str) -> np.ndarray:
    absent = int((~labelled).sum())
    if absent > MOST_UNLABELLED * len(labelled):
        raise ValueError(
            f"{absent:,} of the {len(labelled):,} rows of {file} have no value in {target!r}. Name another column, or "
            "remove the rows without a label. Empty, NA, None and ? count as missing; give a class with such a name "
            "another one."
        )
    present = column[labelled]
    if len(present) < 2:
        raise ValueError(f"{file} has one row with a label; give a table with some hundreds of rows.")
    try:
        labels = as_labels(present, name=target)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    try:
        check_classes(labels, target, file)
    except ValueError as error:
        if not absent:
            raise
        raise ValueError(f"{error} {absent:,} rows have no label; empty, NA, None and ? count as missing.") from None
    return labels


def _groups(column: np.ndarray) -> np.ndarray:
    """Return the group of each row as text; a row without a group forms its own group."""
    return np.array([f"{ALONE}{row}" if value is None else f"={value}" for row, value in enumerate(texts(column))])


def _times(column: np.ndarray, name: str, file: str) -> np.ndarray:
    """Return the dates or numbers of a column that orders the rows."""
    try:
        is_number = is_numeric(column)
        values = numbers(column, name) if is_number else days(column, name)
    except ValueError:
        example = next(text for text in texts(column) if text is not None)
        raise ValueError(
            f"Column {name!r} of {file} must hold dates such as 2024-12-31, or numbers, to be the --time of the rows; "
            f"got values such as {example!r}. Declare their format with --dates, or name another column."
        ) from None
    if absent := int(np.isnan(values).sum()):
        raise ValueError(
            f"Column {name!r} of {file} must have a value in every row to be the --time of the rows; got "
            f"{absent:,} rows without one. Fill them in, or remove these rows."
        )
    return values if is_number else dates_of(values)


def _weights(column: np.ndarray, name: str, file: str) -> np.ndarray:
    """Return the weights of rows, which must be numbers that are not negative."""
    unreadable = [] if is_numeric(column) else [v for v in texts(column) if v is not None and not is_number(v)]
    if unreadable:
        raise ValueError(
            f"Column {name!r} of {file} must hold numbers to be the --weight of the rows; got values such as "
            f"{unreadable[0]!r}. Correct them, or name another column."
        )
    try:
        weights = numbers(column, name)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    wrong = np.isnan(weights) | (weights < 0)
    if wrong.any() or not weights.any():
        bad_rows = f"{count(int(wrong.sum()), 'row')} without one or with a negative one"
        raise ValueError(
            f"Column {name!r} of {file} must hold a weight of at least 0 in every row, and some above 0; got "
            f"{bad_rows if wrong.any() else 'zeros only'}. Correct these rows, or remove them."
        )
    return weights


def dates_of(days_since_1970: Any) -> Any:
    """Return days since 1970 as NumPy dates."""
    return (np.asarray(days_since_1970) * 86_400e6).astype("datetime64[us]")


def time_text(value: Any) -> str:
    """Return a date without its time of day, or a number, as text."""
    return str(value.astype("datetime64[D]")) if isinstance(value, np.datetime64) else f"{value:.15g}"
