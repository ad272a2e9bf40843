"""Checks of single settings, and how a value is written in an error message."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral
from typing import Any

import numpy as np


def check_choice(name: str, value: Any, known: Iterable[Any]) -> None:
    """Raise an error if a setting is not one of the known values.

    >>> check_choice("pool", "mean", ("probs", "logits"))
    Traceback (most recent call last):
    ValueError: pool must be 'probs' or 'logits'; got 'mean'.
    """
    values = list(known)
    if value not in values:
        *most, last = map(repr, values)
        choices = f"{', '.join(most)} or {last}" if len(most) < 4 else f"one of {', '.join([*most, last])}"
        raise ValueError(f"{name} must be {choices}; got {value!r}.")


def check_whole(name: str, value: Any) -> int:
    """Return a positive whole number as an int, and raise an error for other values; True is not a number."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive whole number; got {shown(value)}.")
    return int(value)


def check_number(name: str, value: Any) -> float:
    """Return a number as a float, and raise an error for other values, such as text and truth values."""
    if not isinstance(value, str | bool):
        with suppress(TypeError, ValueError):
            return float(value)
    raise ValueError(f"{name} must be a number; got {shown(value)}.")


def check_fraction(value: float, name: str, *, closed: bool = False) -> float:
    """Return `value` if it lies in (0, 1), or in [0, 1] with `closed`; an error otherwise."""
    value = check_number(name, value)
    inside = 0 <= value <= 1 if closed else 0 < value < 1
    if not inside:
        interval = "[0, 1]" if closed else "(0, 1)"
        raise ValueError(f"{name} must be a fraction in {interval}; got {value:g}.")
    return value


def shown(value: Any) -> str:
    """Format a value for a message: its repr without numpy's type names, so 0 instead of np.int64(0)."""
    if isinstance(value, np.generic | np.ndarray):
        return repr(value.tolist())
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(key)}: {shown(item)}" for key, item in value.items()) + "}"
    if type(value) is list:
        return f"[{', '.join(map(shown, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(shown, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
