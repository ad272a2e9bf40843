"""Choosing the encoding of a column: a quantity, a category, a date, free text, or none."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from math import ceil

import numpy as np

from calibrant.data.columns import (
    days,
    holds_codes,
    is_numeric,
    missing_count,
    numbers,
    others_than_numbers,
    set_of,
    strays,
    texts,
    without_strays,
)
from calibrant.data.encodings import Categorical, Dropped, Encoding, Numeric, listed, ordinal_encoder
from calibrant.data.free_text import fit_free_text, is_free_text
from calibrant.data.scaling import column_scale
from calibrant.data.units import several_units

_FEW = 10
"""Columns with at most this many different values are hardly meant as numbers."""
_OTHER_DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T].*)?")
_WITH_UNIT = re.compile(r"[^\w\s]\s?[+-]?\d[\d.,]*|[+-]?\d[\d.,]*(\s?[^\d\s]{1,6}|(['’]\d{3})+[\d.,]*)")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T].*)?")


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
    if not coded and (others := strays(column)) is not None:
        return _nearly_numbers(name, column, others)
    values = texts(column)
    counts = Counter(v for v in values if v is not None)
    rows = counts.total()
    if not counts:
        return Dropped(name, "empty"), None
    if not coded and is_free_text(counts, rows, max_categories):
        return choose_text(name, column, reduce=reduce)
    mixed = None if coded else _meant_as_numbers(name, column)
    differs = len(counts) > max_categories and 2 * len(counts) > rows
    dates = not coded and all(map(_ISO_DATE.fullmatch, counts))
    alone = len(counts) > 1 and counts.most_common(1)[0][1] < _least(rare, len(values))
    if not codes and (differs or dates or alone):
        encoding, note = _not_categories(name, column, len(counts), rows, codes=coded)
        return encoding, mixed if mixed and isinstance(encoding, Dropped) else note
    common, pooled = _pooled(values, least=_least(rare, len(values)), most=max_categories)
    encoding = Categorical(name, common, bool(pooled), len(values) > rows, pooled)
    if len(encoding.outputs) < 2:
        return Dropped(name, "constant" if len(counts) == 1 else "too many categories"), None
    note = (
        f"Column {name!r} has {len(counts)} categories: the {len(common)} most frequent have their own input, the "
        "others share one."
    )
    return encoding, mixed or (note if len(counts) > max_categories else None)


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


def _least(rare: float, rows: int) -> int:
    """The number of rows that a category needs to get its own input."""
    return max(2, ceil(rare * rows))


def _pooled(values: list[str | None], *, least: int, most: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The frequent and the infrequent categories, as divided by scikit-learn's encoder."""
    present = np.array([v for v in values if v is not None], dtype=object)
    fitted = ordinal_encoder(min_frequency=least, max_categories=most).fit(present[:, None])
    pooled = fitted.infrequent_categories_[0]
    rare = dict.fromkeys([] if pooled is None else pooled.tolist())
    return tuple(v for v in fitted.categories_[0].tolist() if v not in rare), tuple(rare)


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
    """A text column that holds numbers, and perhaps a few ``others``, which count as missing."""
    kept = without_strays(column)
    encoding = _numeric(name, numbers(kept, name), dates=False)
    if isinstance(encoding, Numeric):
        encoding = replace(encoding, text=True, strays=tuple(others))
    before, after = missing_count(column), missing_count(kept)
    read, present = len(column) - after, len(column) - before
    what = f"{read} of its {present} values are; the others ({listed(others)}) count as missing"
    note = f"Column {name!r} is text and taken as numbers: {what if others else 'all of its values are'}."
    return encoding, f"{note} Name it in categorical if these are codes."


def _dates(name: str, column: np.ndarray) -> tuple[Encoding, str | None]:
    encoding = _numeric(name, days(column, name), dates=True)
    note = f"Column {name!r} holds dates and becomes one number: days since 1970, or days of a duration."
    return encoding, None if isinstance(encoding, Dropped) else note


def _not_categories(
    name: str, column: np.ndarray, distinct: int, rows: int, *, codes: bool
) -> tuple[Encoding, str | None]:
    """Text that differs from row to row: numbers or dates as text, otherwise useless to a classifier."""
    if not codes:
        with suppress(ValueError):
            return _numeric(name, numbers(column, name), dates=False), None
        with suppress(ValueError):
            return _dates(name, column)
    note = f"Column {name!r} is left out: {distinct} different texts in {rows} rows look like {_looks(column)}"
    return Dropped(name, "too many categories"), note


def _looks(column: np.ndarray) -> str:
    """What most texts of a column look like, and what to do."""
    values = [v for v in texts(column) if v is not None]
    if 2 * sum(bool(_OTHER_DATE.fullmatch(v)) for v in values) > len(values):
        return "dates. Write them as 2024-12-31 if they matter."
    return "names or free text. If it matters, name it as a text column, or turn it into numbers or fewer categories."


def _number_with_unit(values: list[str]) -> str | None:
    """The first number with other characters, if most values are some."""
    found = [v for v in values if _WITH_UNIT.fullmatch(v)]
    return found[0] if 2 * len(found) > len(values) else None


def _meant_as_numbers(name: str, column: np.ndarray) -> str | None:
    """A note on a column of texts that may be meant as numbers."""
    values = [v for v in texts(column) if v is not None]
    if units := several_units(values):
        return (
            f"Column {name!r} is not taken as numbers, because its values have different units ({', '.join(units)}). "
            "Write them in one unit if they are quantities."
        )
    if len(set_of(column)) <= _FEW:
        return None
    example = _number_with_unit(values)
    if example is not None:
        return (
            f"Column {name!r} is not taken as numbers, because its values have other characters, such as {example!r}. "
            "Write plain numbers if they are quantities."
        )
    others = others_than_numbers(column)
    present = len(column) - missing_count(column)
    if 2 * len(others) >= present:
        return None
    return (
        f"Column {name!r} is not taken as numbers: {present - len(others)} of its {present} values are, but "
        f"{listed(list(dict.fromkeys(others)))} are not. Leave these empty if they mean that the number is missing."
    )
