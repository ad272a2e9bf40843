"""How numbers and intervals are written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from calibrant.metrics import Estimate

MISSING = "–"


def format_number(value: Any, digits: int = 3) -> str:
    """Write one value: numbers with `digits` decimals, `Estimate` with its interval, None and NaN as a dash.

    A symmetric interval is written "0.016 ± 0.002", another one "0.016 [0.012, 0.024]". Whole numbers and text are not
    changed.
    """
    if isinstance(value, Estimate):
        return _format_estimate(value, digits)
    if value is None:
        return MISSING
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return MISSING if math.isnan(value) else _fixed(float(value), digits)
    return str(value)


def format_signed(value: float | None, digits: int = 1) -> str:
    """Write a difference with its sign, and without a sign where it rounds to zero; None as a dash."""
    text = format_number(value, digits)
    return f"+{text}" if text[0] != "−" and text.strip("0.") and text != MISSING else text


def _format_estimate(value: Estimate, digits: int) -> str:
    centre = format_number(float(value.value), digits)
    if not math.isfinite(value.low) or not math.isfinite(value.high):
        return centre
    half = (value.high - value.low) / 2
    if abs(value.value - (value.low + value.high) / 2) > 1e-6 * max(half, 1e-12):
        return f"{centre} [{_fixed(value.low, digits)}, {_fixed(value.high, digits)}]"
    smallest = 10.0**-digits
    width = _fixed(half, digits) if half == 0 or half >= smallest / 2 else f"<{_fixed(smallest, digits)}"
    return f"{centre} ± {width}"


def _fixed(value: float, digits: int) -> str:
    """Fixed decimals with a real minus sign; a value that rounds to zero has no sign."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")
