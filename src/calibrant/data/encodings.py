"""How one column of a table becomes numbers: as a quantity, as the code of a category, or not at all.

An encoding is a frozen record of plain values. :func:`choose` chooses it from the training rows, and its ``encode``
applies it to any rows.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import ClassVar

import numpy as np
from sklearn.preprocessing import OrdinalEncoder

from calibrant.data.columns import (
    TRUTH,
    days,
    holds_codes,
    is_numeric,
    missing_count,
    numbers,
    others_than_numbers,
    strays,
    texts,
    without_strays,
)
from calibrant.data.scaling import UNSEEN, column_scale

_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T].*)?")


@dataclass(frozen=True)
class Numeric:
    """A quantity. ``mean`` and ``std`` scale it; ``std`` is 0 for a constant that is sometimes missing.

    ``missing`` says that training had missing values. ``text`` says that training had the numbers as text, where an
    entry that is not a number counts as missing; ``strays`` are those of training. New ones cause a warning, or an
    error where they are most of a column.
    """

    name: str
    mean: float
    std: float
    missing: bool
    dates: bool = False
    text: bool = False
    strays: tuple[str, ...] = ()

    kind: ClassVar[str] = "numeric"
    size: ClassVar[int] = 0
    """The number of categories: none."""

    @property
    def outputs(self) -> list[str]:
        return ([self.name] if self.std > 0 else []) + ([f"{self.name} missing"] if self.missing else [])

    def encode(self, column: np.ndarray) -> np.ndarray:
        """The numbers as float64, NaN where one is missing."""
        if self.text:
            self._warn_of_strays(column)
            column = without_strays(column)
        return (days if self.dates else numbers)(column, self.name)

    def _warn_of_strays(self, column: np.ndarray) -> None:
        known = set(self.strays)
        new = [text for text in others_than_numbers(column) if text not in known]
        if not new:
            return
        present = len(column) - missing_count(column)
        if 2 * len(new) > present:
            raise ValueError(
                f"Column {self.name!r} is numeric, but {new[0]!r} is not a number: {len(new)} of the {present} values "
                "could not be read. Write them as in the training table, or leave them empty (missing)."
            )
        warnings.warn(
            f"Column {self.name!r} is numeric, but {len(new)} of the {present} values are not numbers "
            f"({_listed(list(dict.fromkeys(new)))}); they count as missing.",
            stacklevel=5,
        )


@dataclass(frozen=True)
class Categorical:
    """A category, as its position in ``categories``; the ``rare`` ones share the next code if ``pooled``.

    A category that training never saw counts as a rare one; without rare ones its code is ``UNSEEN``.
    """

    name: str
    categories: tuple[str, ...]
    pooled: bool
    missing: bool
    rare: tuple[str, ...] = ()

    kind: ClassVar[str] = "categorical"

    @property
    def size(self) -> int:
        """The number of codes."""
        return len(self.categories) + self.pooled

    @property
    def outputs(self) -> list[str]:
        special = (["(rare)"] if self.pooled else []) + (["(missing)"] if self.missing else [])
        return [f"{self.name}={value}" for value in (*self.categories, *special)]

    def unseen(self, column: np.ndarray) -> list[str]:
        """The categories in ``column`` that training did not see."""
        return sorted({v for v in self._texts(column) if v is not None} - self._known)

    def encode(self, column: np.ndarray) -> np.ndarray:
        """The codes as float64, NaN where the category is missing."""
        values = np.array(self._texts(column), dtype=object)
        present = np.array([v is not None for v in values], dtype=bool)
        codes = np.full(len(values), np.nan)
        if present.any():
            codes[present] = self._ordinal.transform(values[present, None])[:, 0]
        if self.pooled:
            codes[codes == UNSEEN] = len(self.categories)
        return codes

    @cached_property
    def _ordinal(self) -> OrdinalEncoder:
        """scikit-learn's encoder, fitted on each category: twice, and once if it is rare, so that rare ones share."""
        rows = [*self.categories, *self.categories, *self.rare]
        return _encoder(min_frequency=2).fit(np.array(rows, dtype=object)[:, None])

    @cached_property
    def _known(self) -> set[str]:
        return {*self.categories, *self.rare}

    def _texts(self, column: np.ndarray) -> list[str | None]:
        """The column as text. Truth values are spelled as in training: true is True where only one of them is known."""
        known = self._known
        spelled = {value.lower(): value for value in sorted(known) if value.lower() in TRUTH}
        return [v if v is None or v in known else spelled.get(v.lower(), v) for v in texts(column)]


@dataclass(frozen=True)
class Dropped:
    """A column that is left out, and why."""

    name: str
    why: str

    kind: ClassVar[str] = "dropped"

    @property
    def outputs(self) -> list[str]:
        return []


Used = Numeric | Categorical
Encoding = Used | Dropped


def choose(
    name: str, column: np.ndarray, *, rare: float, max_categories: int, codes: bool = False
) -> tuple[Encoding, str | None]:
    """The encoding of a training column (``codes``: it holds categories), and a sentence if a user should know."""
    if column.dtype.kind in "Mm":
        return _dates(name, column)
    if is_numeric(column) and not codes:
        return _numeric(name, numbers(column, name), dates=False), None
    coded = codes or holds_codes(column)
    if not coded and (others := strays(column)) is not None:
        return _nearly_numbers(name, column, others)
    values = texts(column)
    counts = Counter(v for v in values if v is not None)
    rows = counts.total()
    if not counts:
        return Dropped(name, "empty"), None
    differs = len(counts) > max_categories and 2 * len(counts) > rows
    dates = not coded and all(map(_ISO_DATE.fullmatch, counts))
    alone = len(counts) > 1 and counts.most_common(1)[0][1] < _least(rare, len(values))
    if not codes and (differs or dates or alone):
        return _not_categories(name, column, len(counts), rows, codes=coded)
    common, pooled = _pooled(values, least=_least(rare, len(values)), most=max_categories)
    encoding = Categorical(name, common, bool(pooled), len(values) > rows, pooled)
    if len(encoding.outputs) < 2:
        return Dropped(name, "constant"), None
    note = (
        f"Column {name!r} has {len(counts)} categories: the {len(common)} most frequent have their own input, the "
        "others share one."
    )
    return encoding, note if len(counts) > max_categories else None


def _least(rare: float, rows: int) -> int:
    """The number of rows that a category needs for an input of its own."""
    return max(2, ceil(rare * rows))


def _pooled(values: list[str | None], *, least: int, most: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The frequent and the infrequent categories, as scikit-learn's encoder tells them apart."""
    present = np.array([v for v in values if v is not None], dtype=object)
    fitted = _encoder(min_frequency=least, max_categories=most).fit(present[:, None])
    pooled = fitted.infrequent_categories_[0]
    rare = dict.fromkeys([] if pooled is None else pooled.tolist())
    return tuple(v for v in fitted.categories_[0].tolist() if v not in rare), tuple(rare)


def _encoder(**pooling: int) -> OrdinalEncoder:
    return OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=UNSEEN, **pooling)


def _numeric(name: str, values: np.ndarray, *, dates: bool) -> Encoding:
    present = values[~np.isnan(values)]
    if not present.size:
        return Dropped(name, "empty")
    varies = present.min() < present.max()  # the deviation of equal numbers need not be 0 in floating point
    mean, std = column_scale(present) if varies else (float(present[0]), 0.0)
    missing = present.size < values.size
    encoding = Numeric(name, mean, std if np.isfinite(std) else 0.0, missing, dates)
    return encoding if encoding.outputs else Dropped(name, "constant")


def _nearly_numbers(name: str, column: np.ndarray, others: list[str]) -> tuple[Encoding, str]:
    """A column of text that holds numbers, and perhaps a few ``others``, which count as missing."""
    kept = without_strays(column)
    encoding = _numeric(name, numbers(kept, name), dates=False)
    if isinstance(encoding, Numeric):
        encoding = replace(encoding, text=True, strays=tuple(others))
    before, after = missing_count(column), missing_count(kept)
    read, present = len(column) - after, len(column) - before
    what = f"{read} of its {present} values are; the others ({_listed(others)}) count as missing"
    note = f"Column {name!r} is text and taken as numbers: {what if others else 'all of its values are'}."
    return encoding, f"{note} Name it in categorical if these are codes."


def _listed(others: list[str]) -> str:
    return ", ".join(map(repr, others[:3])) + (", …" if len(others) > 3 else "")


def _dates(name: str, column: np.ndarray) -> tuple[Encoding, str | None]:
    encoding = _numeric(name, days(column, name), dates=True)
    note = f"Column {name!r} holds dates and is taken as one number: days since 1970, or days of a duration."
    return encoding, None if isinstance(encoding, Dropped) else note


def _not_categories(
    name: str, column: np.ndarray, distinct: int, rows: int, *, codes: bool
) -> tuple[Encoding, str | None]:
    """Text that differs from row to row: numbers or dates written as text, or else of no use to a classifier."""
    if not codes:
        with suppress(ValueError):
            return _numeric(name, numbers(column, name), dates=False), None
        with suppress(ValueError):
            return _dates(name, column)
    note = (
        f"Column {name!r} is left out: {distinct} different texts in {rows} rows look like names or free text. "
        "Turn it into numbers or fewer categories if it matters."
    )
    return Dropped(name, "too many categories"), note
