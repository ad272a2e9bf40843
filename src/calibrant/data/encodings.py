"""Encodings of one column of a table: a quantity, the code of a category, free text, or nothing.

An encoding is a frozen record of plain values. :func:`calibrant.data.choosing.choose` chooses it from the training
rows, and its ``encode`` applies it to any rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from sklearn.preprocessing import OrdinalEncoder

from calibrant._warnings import warn
from calibrant.data.columns import (
    TRUTH,
    days,
    missing_count,
    numbers,
    others_than_numbers,
    texts,
    without_strays,
)
from calibrant.data.free_text import FreeText
from calibrant.data.scaling import UNSEEN


@dataclass(frozen=True)
class Numeric:
    """A quantity. ``mean`` and ``std`` scale it; ``std`` is 0 for a constant that is sometimes missing.

    ``missing`` says that training had missing values. ``text`` says that training had the numbers as text. Entries that
    are not numbers then count as missing; ``strays`` are those of training. New ones cause a warning, or an error if
    they are most of a column.
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
    """The number of categories."""

    @property
    def outputs(self) -> list[str]:
        return ([self.name] if self.std > 0 else []) + ([f"{self.name} missing"] if self.missing else [])

    def encode(self, column: np.ndarray) -> np.ndarray:
        """The numbers as float64, NaN for missing ones."""
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
        warn(
            f"Column {self.name!r} is numeric, but {len(new)} of the {present} values are not numbers "
            f"({listed(list(dict.fromkeys(new)))}); they count as missing."
        )


@dataclass(frozen=True)
class Categorical:
    """A category as its position in ``categories``; ``rare`` ones share the next code if ``pooled``.

    A category that was not in the training rows counts as rare. Without rare categories its code is ``UNSEEN``.
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
        """The codes as float64, NaN for missing categories."""
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
        """scikit-learn's encoder, fitted on two rows of each category and one of rare ones, which then share a code."""
        rows = [*self.categories, *self.categories, *self.rare]
        return ordinal_encoder(min_frequency=2).fit(np.array(rows, dtype=object)[:, None])

    @cached_property
    def _known(self) -> set[str]:
        return {*self.categories, *self.rare}

    def _texts(self, column: np.ndarray) -> list[str | None]:
        """The column as text. Truth values are spelled as in training: true becomes True if only True is known."""
        known = self._known
        spelled = {value.lower(): value for value in sorted(known) if value.lower() in TRUTH}
        found = texts(column)
        return [v if v is None or v in known else spelled.get(v.lower(), v) for v in found] if spelled else found


@dataclass(frozen=True)
class Dropped:
    """A column that is left out, and why."""

    name: str
    why: str

    kind: ClassVar[str] = "dropped"

    @property
    def outputs(self) -> list[str]:
        return []


Used = Numeric | Categorical | FreeText
Encoding = Used | Dropped


def ordinal_encoder(**pooling: int) -> OrdinalEncoder:
    """scikit-learn's encoder, with ``UNSEEN`` for categories that it has not seen."""
    return OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=UNSEEN, **pooling)


def listed(others: list[str]) -> str:
    """The first few values, for messages."""
    return ", ".join(map(repr, others[:3])) + (", …" if len(others) > 3 else "")


def distinct(names: list[str]) -> list[str]:
    """The names in order; a repeated name gets the next free number."""
    counts, found = Counter(names), dict[str, None]()
    for name in names:
        number, unique = 1, name
        while unique in found or (number > 1 and unique in counts):
            number += 1
            unique = f"{name} ({number})"
        found[unique] = None
    return list(found)
