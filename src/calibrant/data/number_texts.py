"""Numbers in text columns: decimal commas, and points or commas between thousands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from calibrant.data.columns import NEARLY
from calibrant.data.units import split_unit

_WITH_COMMA = re.compile(r"\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*")
_WITH_POINT = re.compile(r"\s*[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?\s*")
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_BELOW_THOUSAND = re.compile(r"\s*[+-]?\d{1,3}\s*")
_COMMA_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+\s*")  # 1,200 may be one of these, or 1.2
POINT_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(\.\d{3})+\s*")
FULL = re.compile(r"\s*[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?\s*")  # beside 0,5
_SURE_COMMA_THOUSANDS = re.compile(r"\s*[+-]?\d{1,3}(,\d{3})+(,\d{3}|\.\d+)\s*")
_PLAIN = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)\s*")
_GROUPED = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*")


def without_comma_groups(column: Any, *, sure: bool = False) -> Any:
    """A text column without commas between thousands (1,234.50), as numbers if all values are some.

    None if no value has both a comma and a point, unless ``sure`` is true, or if more than 5 % are not such numbers.
    """
    texts = [v for v in column if isinstance(v, str)]
    grouped = {v for v in texts if _GROUPED.fullmatch(v)}
    read = sum(v in grouped or bool(_PLAIN.fullmatch(v)) for v in texts)
    if not grouped or not (sure or (any("." in v for v in grouped) and read >= NEARLY * len(texts))):
        return None
    return as_numbers(column.map(lambda v: v.replace(",", "") if v in grouped else v))


def as_numbers(column: Any) -> Any:
    """A text column as numbers, if all values are some."""
    plain = all(_PLAIN.fullmatch(v) for v in set(column) if isinstance(v, str))
    return column.astype(float) if plain else column


def fits_thousands(values: Mapping[str, int]) -> bool:
    """Whether nearly all texts are whole numbers with points between thousands, and none is without them (1200)."""
    right = {v for v in values if _BELOW_THOUSAND.fullmatch(v) or POINT_THOUSANDS.fullmatch(v)}
    if any(_WHOLE.fullmatch(v) or _WITH_COMMA.fullmatch(v) for v in values if v not in right):
        return False
    return sum(values[v] for v in right) >= NEARLY * sum(values.values())


def has_commas(value: Any) -> bool:
    """Whether a value is the text of a number with commas."""
    return isinstance(value, str) and "," in value and split_unit(value) is not None


def is_decimal(text: str) -> bool:
    """Whether a text is a number with a point that cannot separate thousands."""
    return bool(_WITH_POINT.fullmatch(text)) and not POINT_THOUSANDS.fullmatch(text)


def without_point_groups(column: Any) -> Any:
    """A text column without points between thousands; numbers if all values are whole."""
    mended = column.map(lambda v: v.replace(".", "") if POINT_THOUSANDS.fullmatch(v) else v, na_action="ignore")
    return mended.astype(float) if all(map(_WHOLE.fullmatch, mended.dropna())) else mended


def with_decimal_points(column: Any, *, sure: bool = False) -> Any:
    """A text column with decimal commas replaced by points, if most values are numbers and some clearly have one.

    Points between thousands are removed (1.234,5 becomes 1234.5).

    Returns None if all commas may separate thousands (1,200), unless `sure` is true, if some certainly do, or if points
    have two meanings (1.200 beside 0.5).

    Most values, not nearly all: a short new file with a typing error must be read like the training file.
    """
    values = [v for v in column if isinstance(v, str)]
    commas = {v for v in values if _WITH_COMMA.fullmatch(v) or (FULL.fullmatch(v) and "," in v)}
    known = commas | {v for v in values if _WHOLE.fullmatch(v) or FULL.fullmatch(v)}
    if not commas or 2 * sum(v in known for v in values) < len(values):
        return None
    if not sure and all(map(_COMMA_THOUSANDS.fullmatch, commas)):
        return None
    if any(map(_SURE_COMMA_THOUSANDS.fullmatch, values)):
        return None
    if any(map(is_decimal, values)) and any(map(POINT_THOUSANDS.fullmatch, values)):
        return None
    mended = column.map(lambda v: v.replace(".", "").replace(",", ".") if v in known else v)
    return mended.astype(float) if known.issuperset(values) else mended
