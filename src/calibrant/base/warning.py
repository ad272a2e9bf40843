"""Warnings that name the line of the user's code that led to them."""

from __future__ import annotations

import inspect
import warnings

_SKIPPED = ("calibrant", "sklearn", "joblib", "torch", "contextlib")
"""Packages whose lines a warning does not name: this one, and those that call it for the user."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the line of the nearest caller outside this package; Python shows an equal warning once per line."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
