"""The encoder of a table, what it inferred about the columns, and notes on odd columns before training."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.base.words import count, listed
from calibrant.data.columns.encoder import TableEncoder
from calibrant.data.columns.encoding import Categorical, Dropped, Used
from calibrant.data.columns.values import Columns, days, is_numeric, missing_count, numbers
from calibrant.data.free_text import FreeText
from calibrant.tables.cases import repeated_cases, value_codes, words_of
from calibrant.tables.model import encoded
from calibrant.tables.order import Order
from calibrant.tables.read import Labelled, dates_of, time_text
from calibrant.tables.split import TableParts

FEWEST_FOR_HINTS = 50
"""With fewer rows, a column can have only distinct values, or determine all labels, by chance."""
_SAMPLED = 20_000

DateRanges = Mapping[str, tuple[float, float]]
"""The earliest and latest date of columns of dates, in days since 1970."""


@dataclass(frozen=True)
class TableDescription:
    """What the encoder inferred about the columns, and notes."""

    encoder: TableEncoder
    """Fitted to the training rows."""
    plain: bool
    """Whether all columns that are used hold plain numbers, so that the classifier needs no encoder."""
    dates: DateRanges
    notes: tuple[str, ...]

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each column that is used: numbers, dates, categories (7) or text (4,000 words)."""
        return {e.name: _kind(e) for e in self.encoder.columns_ if not isinstance(e, Dropped)}

    def inputs(self, part: Labelled) -> Any:
        """Return what the classifier reads."""
        return encoded(part.columns, self.kinds, None if self.plain else self.encoder)

    def sentences(self) -> list[str]:
        """Return what was inferred, one line per kind."""
        by_kind: dict[str, list[str]] = {}
        for name, kind in self.kinds.items():
            head, _, detail = kind.partition(" ")
            by_kind.setdefault(head, []).append(f"{name} {detail}".strip())
        sentences = [f"{kind.capitalize()}: {listed(names, 20)}." for kind, names in by_kind.items()]
        if dropped := [f"{name} ({reason})" for name, reason in self.encoder.dropped_.items()]:
            sentences.append(f"Left out: {listed(dropped, 20)}.")
        return sentences


def describe(parts: TableParts, order: Order) -> TableDescription:
    """Fit the encoder to the training rows. Dates of test rows are compared with theirs, unless drawn at random."""
    train, test = parts.train, parts.test
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are in notes_
        try:
            encoder = TableEncoder(output="sparse", categorical=order.categorical, text=order.text).fit(train.columns)
        except ValueError as error:
            raise ValueError(f"{train.file}: {error}") from None
    used = [e for e in encoder.columns_ if not isinstance(e, Dropped)]
    plain = all(_kind(e) == "numbers" and train.columns[e.name].dtype.kind in "biuf" for e in used)
    dates = date_ranges(train.columns, [e.name for e in used if _kind(e) == "dates"])
    notes = [*encoder.notes_, *_odd_columns(train, used)]
    if order.time is not None or not isinstance(order.test, float):  # drawn rows are outside only by chance
        notes += date_notes(outside_dates(test.columns, dates), dates, len(test), "test row")
    return TableDescription(encoder, plain, dates, tuple(notes))


def _kind(encoding: Used) -> str:
    if isinstance(encoding, Categorical):
        return f"categories ({len(encoding.categories) + len(encoding.rare)})"
    if isinstance(encoding, FreeText):
        return f"text ({len(encoding.words):,} words)"
    return "dates" if encoding.dates else "numbers"


def _odd_columns(table: Labelled, used: Sequence[Used]) -> Iterator[str]:
    """Notes on columns that may not be what they seem, or whose values need attention."""
    for name in identifiers(table.columns, [e.name for e in used]):
        yield (
            f"Column {name!r} looks like a row number or an identifier: {len(table):,} rows, all different whole "
            f"numbers. If it is one, leave it out with --drop {shlex.quote(name)}."
        )
    cases = repeated_cases(table) if table.groups is None else {}
    for name, number in cases.items():
        yield (
            f"Column {name!r} has {number:,} values in {len(table):,} rows, and rows of one value are alike. If these "
            f"are rows of one person or case, keep them together with --groups {shlex.quote(name)}; otherwise the "
            "results below may be too good."
        )
    for name in leaks(table, [e for e in used if e.name not in cases]):
        yield (
            f"Column {name!r} alone determines the class of every training row. If it is known only after the outcome, "
            f"the results below are too good to be true; leave it out with --drop {shlex.quote(name)}."
        )


def identifiers(columns: Columns, names: Iterable[str]) -> Iterator[str]:
    """Whole numbers, all different, that either count the rows or have a name like "id"."""
    for name in names:
        column = columns[name]
        if len(column) < FEWEST_FOR_HINTS or not is_numeric(column) or missing_count(column):
            continue
        values = np.unique(numbers(column, name))
        if len(values) == len(column) and np.all(values == np.rint(values)):
            counts = values[-1] - values[0] <= 2 * len(values)  # some are missing, because their rows are elsewhere
            if counts or {"id", "uuid", "key", "index", "number", "no", "nr"} & set(words_of(name)):
                yield name


def leaks(table: Labelled, used: Iterable[Used]) -> Iterator[str]:
    """Columns that alone determine every row's class, by a few ranges of numbers or by repeated categories."""
    if len(table) < FEWEST_FOR_HINTS:
        return
    rows = np.random.default_rng(0).permutation(len(table))[:_SAMPLED]
    classes, labels = np.unique(table.labels[rows], return_inverse=True)
    for encoding in used:
        column = table.columns[encoding.name][rows]
        ordered = _kind(encoding) == "numbers" and not missing_count(column)
        values = numbers(column, encoding.name) if ordered else value_codes(column)
        _, first, places = np.unique(values, return_index=True, return_inverse=True)
        label_of_value = labels[first]
        ranges = 1 + np.count_nonzero(np.diff(label_of_value))
        few = ranges <= 2 * len(classes) if ordered else 5 * len(first) <= len(rows)
        if few and np.all(label_of_value[places] == labels):
            yield encoding.name


def date_ranges(columns: Columns, names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return the earliest and the latest date of columns; durations have no range."""
    values = {name: days(columns[name], name) for name in names if columns[name].dtype.kind != "m"}
    return {name: (float(np.nanmin(column)), float(np.nanmax(column))) for name, column in values.items()}


def outside_dates(columns: Columns, ranges: DateRanges) -> dict[str, int]:
    """Count the dates of each column that are outside its range."""
    values = {name: days(columns[name], name) for name in ranges}
    return {name: int(((values[name] < low) | (values[name] > high)).sum()) for name, (low, high) in ranges.items()}


def date_notes(outside: Mapping[str, int], ranges: DateRanges, rows: int, noun: str) -> Iterator[str]:
    """A note for each column that has dates outside its range."""
    for name, number in outside.items():
        low, high = map(time_text, dates_of(ranges[name]))
        if number:
            yield (
                f"Column {name!r} has a date outside the training rows' range ({low} to {high}) in {number:,} of "
                f"{count(rows, noun)}. The model has seen no such dates, so its confidence there may be wrong."
            )
