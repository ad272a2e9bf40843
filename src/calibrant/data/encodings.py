"""How one column of a table becomes numbers: standardised, one-hot, or not at all.

An encoding is a frozen record of plain values, chosen from the training rows by :func:`choose` and applied to any rows
by its ``encode``.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import numpy as np

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

_FLOAT32_SAFE = 1e30
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T].*)?")


@dataclass(frozen=True)
class Numeric:
    """``(x − mean) / std``; a missing value becomes the mean, with an indicator beside it if training had any.

    ``text`` says that training had the numbers as text, where a slip of the pen counts as missing; ``strays`` are those
    of training. New ones are told in a warning, and are an error where they are most of a column.
    """

    name: str
    mean: float
    std: float
    missing: bool
    dates: bool = False
    text: bool = False
    strays: tuple[str, ...] = ()

    kind: ClassVar[str] = "numeric"

    @property
    def outputs(self) -> list[str]:
        return ([self.name] if self.std > 0 else []) + ([f"{self.name} missing"] if self.missing else [])

    def encode(self, column: np.ndarray) -> np.ndarray:
        if self.text:
            self._tell_strays(column)
            column = without_strays(column)
        values = (days if self.dates else numbers)(column, self.name)
        absent = np.isnan(values)
        pieces = []
        if self.std > 0:  # a constant that is sometimes missing has only the indicator
            scaled = (np.where(absent, self.mean, values) - self.mean) / self.std
            pieces.append(np.clip(scaled, -_FLOAT32_SAFE, _FLOAT32_SAFE))
        if self.missing:
            pieces.append(absent.astype(float))
        return np.stack(pieces, 1).astype(np.float32)

    def _tell_strays(self, column: np.ndarray) -> None:
        known = set(self.strays)
        new = [text for text in others_than_numbers(column) if text not in known]
        if not new:
            return
        present = len(column) - missing_count(column)
        if 2 * len(new) > present:
            raise ValueError(
                f"Column {self.name!r} is one of numbers, and {new[0]!r} is none: {len(new)} of the {present} values "
                "could not be read. Write them as in the training table, or leave them empty (missing)."
            )
        warnings.warn(
            f"Column {self.name!r} is one of numbers, and {len(new)} of the {present} values are none "
            f"({_named(list(dict.fromkeys(new)))}); they count as missing.",
            stacklevel=5,  # the caller of transform
        )


@dataclass(frozen=True)
class Categorical:
    """One 0/1 output per category, one for the pooled rare ones, one for missing values if training had any.

    A category that training never saw counts as a rare one; where there are none, all outputs are 0.
    """

    name: str
    categories: tuple[str, ...]
    pooled: bool
    missing: bool
    rare: tuple[str, ...] = ()

    kind: ClassVar[str] = "categorical"

    @property
    def outputs(self) -> list[str]:
        special = (["(rare)"] if self.pooled else []) + (["(missing)"] if self.missing else [])
        return [f"{self.name}={value}" for value in (*self.categories, *special)]

    def unseen(self, column: np.ndarray) -> list[str]:
        """The categories in ``column`` that training did not see."""
        return sorted({v for v in self._texts(column) if v is not None} - {*self.categories, *self.rare})

    def encode(self, column: np.ndarray) -> np.ndarray:
        values = self._texts(column)
        place: dict[str | None, int] = {value: k for k, value in enumerate(self.categories)}
        nowhere = len(self.outputs)
        other = len(place) if self.pooled else nowhere
        place[None] = nowhere - 1 if self.missing else nowhere
        positions = np.array([place.get(value, other) for value in values], dtype=int)
        encoded = np.zeros((len(values), nowhere + 1), dtype=np.float32)
        encoded[np.arange(len(values)), positions] = 1
        return encoded[:, :nowhere]

    def _texts(self, column: np.ndarray) -> list[str | None]:
        """The column as text, truth values as training wrote them: true is True where only one of these is known."""
        known = {*self.categories, *self.rare}
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


Encoding = Numeric | Categorical | Dropped


def choose(
    name: str, column: np.ndarray, *, rare: float, max_categories: int, codes: bool = False
) -> tuple[Encoding, str | None]:
    """The encoding for a training column (``codes``: surely of categories), and a sentence if a user should know."""
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
    least = max(2, ceil(rare * len(values)))
    common = [value for value, count in counts.most_common(max_categories) if count >= least]
    differs = len(counts) > max_categories and 2 * len(counts) > rows
    dates = not coded and bool(counts) and all(map(_ISO_DATE.fullmatch, counts))
    if not codes and (differs or dates or (len(counts) > 1 and not common)):
        return _not_categories(name, column, len(counts), rows, codes=coded)
    pooled = tuple(sorted(set(counts) - set(common)))
    encoding = Categorical(name, tuple(sorted(common)), bool(pooled), len(values) > rows, pooled)
    if len(encoding.outputs) < 2:
        return Dropped(name, "constant" if counts else "empty"), None
    note = (
        f"Column {name!r} has {len(counts)} categories: the {len(common)} commonest keep an input of their own, the "
        "others share one."
    )
    return encoding, note if len(counts) > max_categories else None


def _numeric(name: str, values: np.ndarray, *, dates: bool) -> Encoding:
    present = values[~np.isnan(values)]
    if not present.size:
        return Dropped(name, "empty")
    missing = present.size < values.size
    varies = present.min() < present.max()  # the deviation of equal numbers need not be 0 in floating point
    encoding = Numeric(name, float(present.mean()), float(present.std()) if varies else 0.0, missing, dates)
    return encoding if encoding.outputs else Dropped(name, "constant")


def _nearly_numbers(name: str, column: np.ndarray, others: list[str]) -> tuple[Encoding, str]:
    """A column of text that holds numbers, and perhaps a few ``others``, which count as missing."""
    kept = without_strays(column)
    encoding = _numeric(name, numbers(kept, name), dates=False)
    if isinstance(encoding, Numeric):
        encoding = replace(encoding, text=True, strays=tuple(others))
    before, after = missing_count(column), missing_count(kept)
    read, present = len(column) - after, len(column) - before
    what = f"{read} of its {present} values are; the others ({_named(others)}) count as missing"
    note = f"Column {name!r} is text and taken as numbers: {what if others else 'all of its values are'}."
    return encoding, f"{note} Name it in categorical if these are codes."


def _named(others: list[str]) -> str:
    return ", ".join(map(repr, others[:3])) + (", …" if len(others) > 3 else "")


def _dates(name: str, column: np.ndarray) -> tuple[Encoding, str | None]:
    encoding = _numeric(name, days(column, name), dates=True)
    note = f"Column {name!r} holds dates and is taken as one number, the days since 1970 (or of a duration)."
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
