"""Encodings of one column of a table: a quantity, the code of a category, free text, or nothing.

An encoding is a frozen record of plain values. :func:`choose` chooses it from the training rows, and its ``encode``
applies it to any rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from math import ceil
from typing import Any, ClassVar

import numpy as np

from calibrant.base.files import Arrays
from calibrant.data.columns.hints import looks_like
from calibrant.data.columns.values import TRUTH, days, holds_codes, is_iso_date, is_number, is_numeric, numbers, texts
from calibrant.data.free_text import FreeText, fit_free_text, is_free_text
from calibrant.data.scaling import UNSEEN, column_scale


@dataclass(frozen=True)
class Numeric:
    """A quantity. ``mean`` and ``std`` scale it; ``std`` is 0 for a constant that is sometimes missing.

    ``missing`` says that training had missing values, and ``dates`` that the numbers are days.
    """

    name: str
    mean: float
    std: float
    missing: bool
    dates: bool = False

    kind: ClassVar[str] = "numeric"
    size: ClassVar[int] = 0
    """The number of categories."""

    @property
    def outputs(self) -> list[str]:
        return ([self.name] if self.std > 0 else []) + ([f"{self.name} missing"] if self.missing else [])

    def encode(self, column: np.ndarray) -> np.ndarray:
        """The numbers as float64, NaN for missing ones."""
        return (days if self.dates else numbers)(column, self.name)


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
        return sorted({v for v in self._texts(column) if v is not None} - self._categories_seen)

    def encode(self, column: np.ndarray) -> np.ndarray:
        """The codes as float64, NaN for missing categories."""
        codes: dict[str | None, float] = {None: np.nan, **{name: code for code, name in enumerate(self.categories)}}
        other = len(self.categories) if self.pooled else UNSEEN
        return np.array([codes.get(value, other) for value in self._texts(column)], dtype=float)

    @cached_property
    def _categories_seen(self) -> set[str]:
        return {*self.categories, *self.rare}

    def _texts(self, column: np.ndarray) -> list[str | None]:
        """The column as text. Truth values are spelled as in training: true becomes True if only True is known."""
        categories = self._categories_seen
        spelled = {value.lower(): value for value in sorted(categories) if value.lower() in TRUTH}
        values = texts(column)
        return [v if v is None or v in categories else spelled.get(v.lower(), v) for v in values] if spelled else values


@dataclass(frozen=True)
class Dropped:
    """A column that is left out, and why."""

    name: str
    why: str

    kind: ClassVar[str] = "dropped"


Used = Numeric | Categorical | FreeText
Encoding = Used | Dropped


def choose(
    name: str, column: np.ndarray, *, rare: float, max_categories: int, codes: bool = False, reduce: bool = True
) -> tuple[Encoding, str | None]:
    """The encoding of a training column, and an optional note for the user.

    ``codes`` says that it holds categories, and ``reduce`` that free text needs an SVD.
    """
    if column.dtype.kind in "Mm":
        return _dates(name, column)
    if is_numeric(column) and not codes:
        return _numeric(name, numbers(column, name), dates=False), None
    coded = codes or holds_codes(column)
    values = texts(column)
    counts = Counter(v for v in values if v is not None)
    rows = counts.total()
    if not counts:
        return Dropped(name, "empty"), None
    if not coded and all(map(is_number, counts)):
        note = f"Column {name!r} is text and is taken as numbers. Name it in categorical if these are codes."
        return _numeric(name, numbers(column, name), dates=False), note
    if not coded and all(map(is_iso_date, counts)):
        return _dates(name, column)
    if not coded and is_free_text(counts, rows, max_categories):
        return choose_text(name, column, reduce=reduce)
    hint = None if coded else looks_like(name, counts)
    least = max(2, ceil(rare * len(values)))
    differs = len(counts) > max_categories and 2 * len(counts) > rows
    alone = len(counts) > 1 and counts.most_common(1)[0][1] < least
    if not codes and (differs or alone):
        return Dropped(name, "too many categories"), hint or (
            f"Column {name!r} is left out: {len(counts)} different texts in {rows} rows look like names or free text. "
            "If it matters, name it as a text column, or turn it into numbers or fewer categories."
        )
    common, pooled = _pooled(counts, least=least, most=max_categories)
    encoding = Categorical(name, common, bool(pooled), len(values) > rows, pooled)
    if len(encoding.outputs) < 2:
        return Dropped(name, "constant" if len(counts) == 1 else "too many categories"), None
    note = (
        f"Column {name!r} has {len(counts)} categories: the {len(common)} most frequent have their own input, the "
        "others share one."
    )
    return encoding, hint or (note if len(counts) > max_categories else None)


def choose_text(name: str, column: np.ndarray, *, reduce: bool) -> tuple[Encoding, str]:
    """The encoding of a column of free text, and a note for the user."""
    encoding = fit_free_text(name, column, reduce=reduce)
    if encoding is None:
        return Dropped(name, "no words in common"), (
            f"Column {name!r} is left out: no word or group of letters of its texts tells rows apart."
        )
    return encoding, (
        f"Column {name!r} is read as free text, by {len(encoding.words):,} words and {len(encoding.letters):,} groups "
        "of letters that its rows share. Leave it out if it holds names that should not matter."
    )


def _pooled(counts: Counter[str], *, least: int, most: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The frequent and the infrequent categories: at most ``most`` inputs, of which the infrequent ones share one.

    The rule is that of ``min_frequency`` and ``max_categories`` of :class:`sklearn.preprocessing.OneHotEncoder`.
    """
    names = sorted(counts)
    frequency = np.array([counts[name] for name in names])
    rare = frequency < least
    if len(names) - rare.sum() >= most:
        rare[np.argsort(frequency, kind="stable")[: 1 - most]] = True
    return tuple(np.array(names, dtype=object)[~rare]), tuple(np.array(names, dtype=object)[rare])


def _numeric(name: str, values: np.ndarray, *, dates: bool) -> Encoding:
    present = values[~np.isnan(values)]
    if not present.size:
        return Dropped(name, "empty")
    varies = present.min() < present.max()  # the deviation of equal numbers need not be 0 in floating point
    mean, std = column_scale(present) if varies else (float(present[0]), 0.0)
    missing = present.size < values.size
    encoding = Numeric(name, mean, std if np.isfinite(std) else 0.0, missing, dates)
    return encoding if encoding.outputs else Dropped(name, "constant")


def _dates(name: str, column: np.ndarray) -> tuple[Encoding, str | None]:
    encoding = _numeric(name, days(column, name), dates=True)
    note = f"Column {name!r} holds dates and becomes one number: days since 1970, or days of a duration."
    return encoding, None if isinstance(encoding, Dropped) else note


def encoding_to_plain(encoding: Encoding, key: str, arrays: Arrays | None) -> dict[str, Any]:
    """An encoding as plain values. Its matrices go to ``arrays``, under names that begin with ``key``."""
    entry = {"kind": encoding.kind, **asdict(encoding)}
    for name, value in entry.items():
        if isinstance(value, np.ndarray):
            if arrays is None:
                raise ValueError(
                    f"Column {encoding.name!r} is free text, whose matrices to_json cannot write; use save, or pass a "
                    "dictionary as arrays."
                )
            arrays[f"{key}.{name}"] = value
            entry[name] = {"array": f"{key}.{name}"}
    return entry


def encoding_from_plain(entry: dict[str, Any], arrays: Arrays) -> Encoding:
    """The encoding that :func:`encoding_to_plain` returned."""
    kinds: dict[str, Callable[..., Encoding]] = {cls.kind: cls for cls in (Numeric, Categorical, FreeText, Dropped)}
    values = {name: arrays[part["array"]] if isinstance(part, dict) else part for name, part in entry.items()}
    values = {name: tuple(part) if isinstance(part, list) else part for name, part in values.items()}
    return kinds[str(values.pop("kind"))](**values)
