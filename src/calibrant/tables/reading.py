"""Reading a table with labels: drop rows without a label, check column names, and count classes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.base.words import count, listed
from calibrant.data.columns import Columns, days, each, is_missing, is_numeric, numbers, set_of, texts
from calibrant.data.columns.column_format import ColumnFormat, Notation
from calibrant.data.columns.labels import as_labels
from calibrant.data.columns.parquet import need_pandas
from calibrant.data.columns.read import NAMELESS, read_formatted
from calibrant.data.columns.values import holds_codes

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
    roles: dict[str, str] = field(default_factory=dict)
    """The columns that are not inputs, by their use: "groups", "time" and "weight"."""
    unlabelled: int = 0
    notation: Notation = field(default_factory=Notation, repr=False)
    formats: dict[str, ColumnFormat] = field(default_factory=dict, repr=False)
    """How the values of the columns are written, by the name of the column."""
    remarks: tuple[str, ...] = ()
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
    def classes(self) -> dict[str, int]:
        """The number of rows of each class, the most frequent first."""
        return dict(Counter(map(str, self.labels.tolist())).most_common())

    @property
    def declared_formats(self) -> str:
        """The formats that the user declared, with the columns that have them; empty if there are none."""
        by_format: dict[str, list[str]] = {}
        for name, form in self.formats.items():
            if name in self.columns and form != ColumnFormat(form.kind):
                by_format.setdefault(str(form), []).append(name)
        return "; ".join(f"{form} ({listed(names)})" for form, names in by_format.items())

    def frame(self, names: Sequence[str], categorical: Collection[str] = ()) -> Any:
        """Return some columns as a data frame for a classifier."""
        return as_frame(self.columns, names, categorical)


def as_frame(columns: Columns, names: Sequence[str], categorical: Collection[str] = ()) -> Any:
    """Return columns as a data frame; those in ``categorical`` and columns of codes get pandas' category type."""
    frame = need_pandas().DataFrame({name: columns[name] for name in names})
    codes = [name for name in names if name in categorical or holds_codes(columns[name])]
    return frame.astype(dict.fromkeys(codes, "category"))


def read_labelled(
    path: str | os.PathLike[str],
    target: str,
    *,
    groups: str | None = None,
    time: str | None = None,
    weight: str | None = None,
    drop: Collection[str] = (),
    as_text: Collection[str] = (),
    notation: Notation | None = None,
    like: Labelled | None = None,
) -> Labelled:
    """Read a table and split off labels, groups, times and weights; a ValueError says why a table is not suitable.

    Columns have the formats of the training table ``like``, if it is given; its column of groups may then be absent.
    Otherwise the file is written as declared by ``notation``, and columns in ``as_text`` hold categories or free text.
    Rows without a label or of weight zero are left out.
    """
    path = Path(path)
    if like is None:
        file = read_formatted(path, notation or Notation(), text=as_text)
    else:
        used = {*like.columns, target, *like.roles.values()}
        formats = {name: form for name, form in like.formats.items() if name in used}
        file = read_formatted(path, like.notation, formats)
    columns = file.columns
    if like is not None and groups not in columns:
        groups = None
    columns_by_use = {"groups": groups, "time": time, "weight": weight}
    roles = {use: name for use, name in columns_by_use.items() if name is not None}
    dropped = [name for name in drop if name not in NAMELESS]  # row numbers are left out in any case
    for name in (target, *roles.values(), *dropped):
        need_column(columns, name, path.name)
    if target in drop:
        raise ValueError(f"{target!r} is the column to predict; leave it out of --drop.")
    if use := next((use for use, name in roles.items() if name == target), None):
        raise ValueError(f"{target!r} is the column to predict; name another column for the {use}.")
    labelled = ~np.array(each(is_missing, columns[target]), dtype=bool)
    labels = _labels(columns[target], labelled, target, path.name)
    inputs = {n: c[labelled] for n, c in columns.items() if n not in {target, *roles.values(), *drop}}
    if not inputs:
        raise ValueError(f"{path.name} has no column besides {target!r} to predict it from; add some.")
    for name in as_text:
        need_column(inputs, name, path.name)
    group_names = None if groups is None else _groups(columns[groups][labelled])
    if like is None and group_names is not None and len(np.unique(group_names)) < 2:
        raise ValueError(f"Column {groups!r} of {path.name} holds one group only; leave --groups out.")
    table = Labelled(
        path.name,
        target,
        inputs,
        labels,
        np.flatnonzero(labelled) + 1,
        group_names,
        None if time is None else _times(columns[time][labelled], time, path.name),
        None if weight is None else _weights(columns[weight][labelled], weight, path.name),
        roles,
        int((~labelled).sum()),
        notation or Notation(),
        file.formats,
        tuple(note for name, note in file.notes.items() if name not in (groups, *drop)),
    )
    if table.weights is None or table.weights.all():
        return table
    without = count(int((table.weights == 0).sum()), "row")
    remarks = (*table.remarks, f"{without} of weight 0 in {weight!r}: left out.")
    return replace(table.take(np.flatnonzero(table.weights)), remarks=remarks)


def need_column(columns: Collection[str], name: str, file: str) -> None:
    """Raise an error that suggests similar names if a table lacks a column."""
    if name in columns:
        return
    near = similar(name, columns)
    hint = f"Did you mean {near}?" if near else f"Its columns are {listed(columns)}."
    raise ValueError(f"{file} has no column {name!r}. {hint}")


def similar(name: str, columns: Collection[str]) -> str:
    """Return similar names in quotes; an empty string if there are none."""
    by_lower = {column.lower().strip(): column for column in columns}
    cleaned = name.lower().strip()
    matches = [cleaned] if cleaned in by_lower else get_close_matches(cleaned, by_lower, n=3, cutoff=0.7)
    return " or ".join(repr(by_lower[column]) for column in matches)


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
    values = [] if present.dtype.kind not in "fO" or not is_numeric(present) else present.astype(float)
    fractions = {v for v in list(values) if v != round(v)} if np.isfinite(values).all() else set()
    if fractions:
        raise ValueError(
            f"Column {target!r} of {file} holds numbers with fractions ({min(fractions):g} is one), so it is a "
            "quantity and not a class. Name another column, or turn this one into classes (low, medium, high)."
        )
    try:
        check_classes(present, target, file)
    except ValueError as error:
        if not absent:
            raise
        raise ValueError(f"{error} {absent:,} rows have no label; empty, NA, None and ? count as missing.") from None
    try:
        labels = as_labels(present, name=target)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
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
