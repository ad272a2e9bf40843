"""Descriptions of the columns of a table: their kinds, and warnings about them before training."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from calibrant.base.words import listed
from calibrant.data.columns import Columns, is_numeric, missing_count, numbers, texts
from calibrant.data.columns.encoder import TableEncoder
from calibrant.data.columns.encoding import Categorical, Dropped, Numeric
from calibrant.data.free_text import FreeText
from calibrant.tables.dates import date_notes, date_ranges, outside_dates
from calibrant.tables.grouping import repeated_cases
from calibrant.tables.order import Order
from calibrant.tables.parts import TableParts
from calibrant.tables.reading import Labelled

FEWEST_FOR_HINTS = 50
"""With fewer rows, a column can have only distinct values, or determine all labels, by chance."""
_SAMPLED = 20_000


@dataclass(frozen=True)
class TableDescription:
    """The kind of each used column, the reason for each dropped column, and warnings."""

    kinds: dict[str, str]
    """"numbers", "dates", "categories (7)" or "text (4,000 words)" for each column that is used."""
    dropped: dict[str, str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """The encoder's notes, which the classifier's encoder will repeat."""
    dates: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The earliest and latest date of each column of dates, in days since 1970."""

    @property
    def used(self) -> list[str]:
        """The columns that the classifier learns from."""
        return list(self.kinds)

    def sentences(self) -> list[str]:
        """Return what was inferred, one line per kind."""
        by_kind: dict[str, list[str]] = {}
        for name, kind in self.kinds.items():
            head, _, detail = kind.partition(" ")
            by_kind.setdefault(head, []).append(f"{name} {detail}".strip())
        sentences = [f"{kind.capitalize()}: {listed(names, 20)}." for kind, names in by_kind.items()]
        if self.dropped:
            reasons = [f"{name} ({reason})" for name, reason in self.dropped.items()]
            sentences.append(f"Left out: {listed(reasons, 20)}.")
        return sentences


def describe(parts: TableParts, order: Order) -> TableDescription:
    """Infer what the columns of the training rows hold. Dates of test rows are compared with theirs, unless drawn."""
    table = parts.train
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are in notes_
        try:
            encoder = TableEncoder(output="sparse", categorical=order.categorical, text=order.text).fit(table.columns)
        except ValueError as error:
            raise ValueError(f"{table.file}: {error}") from None
    kinds, dropped = {}, {}
    for encoding in encoder.columns_:
        if isinstance(encoding, Dropped):
            dropped[encoding.name] = encoding.why
        elif isinstance(encoding, Categorical):
            kinds[encoding.name] = f"categories ({len(encoding.categories) + len(encoding.rare)})"
        elif isinstance(encoding, FreeText):
            kinds[encoding.name] = f"text ({len(encoding.words):,} words)"
        elif isinstance(encoding, Numeric):
            kinds[encoding.name] = "dates" if encoding.dates else "numbers"
    notes = [*encoder.notes_]
    notes += [
        f"Column {name!r} looks like a row number or an identifier: {len(table):,} rows, all different whole numbers. "
        f"If it is one, leave it out with --drop {shlex.quote(name)}."
        for name in identifiers(table.columns, list(kinds))
    ]
    cases = repeated_cases(table) if table.groups is None else {}
    notes += [
        f"Column {name!r} has {values:,} values in {len(table):,} rows, and rows of one value are alike. If these "
        f"are rows of one person or case, keep them together with --groups {shlex.quote(name)}; otherwise the results "
        "below may be too good."
        for name, values in cases.items()
    ]
    notes += [
        f"Column {name!r} alone determines the class of every training row. If it is known only after the outcome, the "
        f"results below are too good to be true; leave it out with --drop {shlex.quote(name)}."
        for name in leaks(table, kinds)
        if name not in cases
    ]
    categories = {e.name: [*e.categories, *e.rare] for e in encoder.columns_ if isinstance(e, Categorical)}
    notes += [
        f"Column {name!r} has values that differ only in upper and lower case ({listed(spellings)}). They count as "
        "different; write them in the same way if they mean the same."
        for name, values in {table.target: list(table.classes), **categories}.items()
        if (spellings := respelled(values))
    ]
    dates = date_ranges(table.columns, [name for name, kind in kinds.items() if kind == "dates"])
    if order.time is not None or not isinstance(order.test, float):  # drawn rows are outside only by chance
        notes += date_notes(outside_dates(parts.test.columns, dates), dates, len(parts.test), "test row")
    return TableDescription(kinds, dropped, tuple(notes), tuple(encoder.notes_), dates)


def respelled(values: Iterable[str]) -> list[str]:
    """Return the first values that differ only in upper and lower case; none if all differ otherwise too."""
    spelled: dict[str, list[str]] = {}
    for value in values:
        spelled.setdefault(value.casefold(), []).append(value)
    return next((sorted(spellings) for spellings in spelled.values() if len(spellings) > 1), [])


def identifiers(columns: Columns, names: list[str]) -> list[str]:
    """Return integer columns with distinct values that either count the rows or have a name like "id"."""
    names_of_ids = []
    for name in names:
        column = columns[name]
        if len(column) < FEWEST_FOR_HINTS or not is_numeric(column) or missing_count(column):
            continue
        values = np.unique(numbers(column, name))
        if len(values) < len(column) or np.any(values != np.rint(values)):
            continue
        # Some numbers are missing from the count, because their rows are in other parts.
        counts = values[-1] - values[0] <= 2 * len(values)
        if counts or _called_id(name):
            names_of_ids.append(name)
    return names_of_ids


def _called_id(name: str) -> bool:
    name_parts = "".join(c.lower() if c.isalnum() else " " for c in name).split()
    return bool({"id", "uuid", "key", "index", "number", "no", "nr"} & set(name_parts)) or name.endswith(("Id", "ID"))


def leaks(table: Labelled, kinds: dict[str, str]) -> list[str]:
    """Return columns that alone determine every row's class, by a few ranges of numbers or by repeated categories."""
    if len(table) < FEWEST_FOR_HINTS:
        return []
    rows = np.random.default_rng(0).permutation(len(table))[:_SAMPLED]
    codes = np.unique(table.labels[rows], return_inverse=True)[1]
    classes = int(codes.max()) + 1
    leaking = []
    for name, kind in kinds.items():
        column = table.columns[name][rows]
        values = numbers(column, name) if kind == "numbers" else None
        if values is not None and not np.isnan(values).any():
            determined = _runs(values, codes) <= 2 * classes
        else:
            determined = _determines_class(texts(column), codes)
        if determined:
            leaking.append(name)
    return leaking


def _runs(values: np.ndarray, codes: np.ndarray) -> float:
    """Count the ranges of values that have one class; infinite if equal values have different classes."""
    order = np.lexsort((codes, values))
    values, codes = values[order], codes[order]
    changes = codes[1:] != codes[:-1]
    if np.any(changes & (values[1:] == values[:-1])):
        return np.inf
    return float(changes.sum()) + 1


def _determines_class(values: list[str | None], codes: np.ndarray) -> bool:
    """Whether each category has one class, and categories repeat often enough for this to be meaningful."""
    places = np.unique([f"={v}" if v is not None else "" for v in values], return_inverse=True)[1]
    pairs = np.unique(np.stack([places, codes]), axis=1)
    count = int(places.max()) + 1
    return pairs.shape[1] == count and 5 * count <= len(values)
