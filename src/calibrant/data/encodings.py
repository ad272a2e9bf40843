"""How one column of a table becomes numbers: standardised, one-hot, or not at all.

An encoding is a frozen record of plain values, chosen from the training rows by :func:`choose` and applied to any rows
by its ``encode``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import numpy as np

from calibrant.data.columns import days, is_numeric, missing_count, numbers, strays, texts, without_strays

_FLOAT32_SAFE = 1e30
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T].*)?")


@dataclass(frozen=True)
class Numeric:
    """``(x − mean) / std``; a missing value becomes the mean, with an indicator beside it if training had any.

    ``text`` says that training had the numbers as text, where a slip of the pen counts as missing.
    """

    name: str
    mean: float
    std: float
    missing: bool
    dates: bool = False
    text: bool = False

    kind: ClassVar[str] = "numeric"

    @property
    def outputs(self) -> list[str]:
        return ([self.name] if self.std > 0 else []) + ([f"{self.name} missing"] if self.missing else [])

    def encode(self, column: np.ndarray) -> np.ndarray:
        values = (days if self.dates else numbers)(without_strays(column) if self.text else column, self.name)
        absent = np.isnan(values)
        pieces = []
        if self.std > 0:  # a constant that is sometimes missing has only the indicator
            scaled = (np.where(absent, self.mean, values) - self.mean) / self.std
            pieces.append(np.clip(scaled, -_FLOAT32_SAFE, _FLOAT32_SAFE))
        if self.missing:
            pieces.append(absent.astype(float))
        return np.stack(pieces, 1).astype(np.float32)


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
        return sorted({v for v in texts(column) if v is not None} - {*self.categories, *self.rare})

    def encode(self, column: np.ndarray) -> np.ndarray:
        values = texts(column)
        place: dict[str | None, int] = {value: k for k, value in enumerate(self.categories)}
        nowhere = len(self.outputs)
        other = len(place) if self.pooled else nowhere
        place[None] = nowhere - 1 if self.missing else nowhere
        positions = np.array([place.get(value, other) for value in values], dtype=int)
        encoded = np.zeros((len(values), nowhere + 1), dtype=np.float32)
        encoded[np.arange(len(values)), positions] = 1
        return encoded[:, :nowhere]


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
    if not codes and (others := strays(column)) is not None:
        return _nearly_numbers(name, column, others)
    values = texts(column)
    counts = Counter(v for v in values if v is not None)
    rows = counts.total()
    least = max(2, ceil(rare * len(values)))
    common = [value for value, count in counts.most_common(max_categories) if count >= least]
    differs = len(counts) > max_categories and 2 * len(counts) > rows
    dates = bool(counts) and all(map(_ISO_DATE.fullmatch, counts))
    if not codes and (differs or dates or (len(counts) > 1 and not common)):
        return _not_categories(name, column, len(counts), rows)
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
        encoding = replace(encoding, text=True)
    before, after = missing_count(column), missing_count(kept)
    named = ", ".join(map(repr, others[:3])) + (", …" if len(others) > 3 else "")
    what = f"{len(column) - after} of its {len(column) - before} values are; the others ({named}) count as missing"
    note = f"Column {name!r} is text and taken as numbers: {what if others else 'all of its values are'}."
    return encoding, f"{note} Name it in categorical if these are codes."


def _dates(name: str, column: np.ndarray) -> tuple[Encoding, str | None]:
    encoding = _numeric(name, days(column, name), dates=True)
    note = f"Column {name!r} holds dates and is taken as one number, the days since 1970 (or of a duration)."
    return encoding, None if isinstance(encoding, Dropped) else note


def _not_categories(name: str, column: np.ndarray, distinct: int, rows: int) -> tuple[Encoding, str | None]:
    """Text that differs from row to row: numbers or dates written as text, or else of no use to a classifier."""
    try:
        return _numeric(name, numbers(column, name), dates=False), None
    except ValueError:
        pass
    try:
        return _dates(name, column)
    except ValueError:
        pass
    note = (
        f"Column {name!r} is left out: {distinct} different texts in {rows} rows look like names or free text. "
        "Turn it into numbers or fewer categories if it matters."
    )
    return Dropped(name, "too many categories"), note
