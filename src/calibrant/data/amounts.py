"""Amounts in text columns: numbers with a currency or percent sign, and with commas between thousands."""

from __future__ import annotations

import re
from typing import Any

from calibrant.data.columns import NEARLY

_SIGN = "[€$£¥%‰]|EUR|USD|GBP|CHF"
_SIGNED = re.compile(rf"\s*([+-]?)\s*(?:({_SIGN})\s*)?([+-]?\d[\d.,]*|[.]\d+)\s*({_SIGN})?\s*")
_PLAIN = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)\s*")
_GROUPED = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*")


def without_sign(column: Any, known: str | None = None) -> tuple[Any, str] | None:
    """A text column without its currency or percent sign, and the sign.

    None if the values have no sign, or several, or if more than 5 % are not numbers. If the sign is ``known``, only it
    is removed, and the other values may be anything.
    """
    parts = {v: _parts(v) for v in set(column) if isinstance(v, str)}
    signs = {sign for _, sign in filter(None, parts.values()) if sign}
    if known is None:
        read = sum(parts.get(v) is not None for v in column)
        if len(signs) != 1 or read < NEARLY * sum(isinstance(v, str) for v in column):
            return None
        known = signs.pop()
    elif known not in signs:
        return None
    numbers = {v: found[0] for v, found in parts.items() if found is not None and found[1] in (known, "")}
    return column.map(lambda v: numbers.get(v, v)), known


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


def _parts(text: str) -> tuple[str, str] | None:
    """The number and the sign of a text; None if it is no number with at most one sign."""
    found = _SIGNED.fullmatch(text)
    if found is None or (found[2] and found[4]) or (found[1] and found[3][0] in "+-"):
        return None
    return found[1] + found[3], found[2] or found[4] or ""
