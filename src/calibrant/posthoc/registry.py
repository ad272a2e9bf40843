"""Calibrators by name, for the command line and for the arguments of other functions."""

from __future__ import annotations

from typing import Any

from calibrant.base.settings import check_choice
from calibrant.posthoc._base import Calibrator
from calibrant.posthoc.auto import CALIBRATORS, Auto

TYPES: dict[str, type[Calibrator]] = {"auto": Auto, **CALIBRATORS}
"""The calibrators by their names; "auto" compares the others."""
_SUITABLE = [name for name, calibrator in CALIBRATORS.items() if calibrator.can_change_prediction]
"""Those that can calibrate a confidence, besides "isotonic-confidence"."""


def check_calibrator(name: Any, argument: str = "name") -> None:
    """Raise an error that names the argument if there is no calibrator of this name."""
    check_choice(argument, name, TYPES)


def make_calibrator(name: str, **params: Any) -> Calibrator:
    """Make a calibrator by its name in the table: ``make_calibrator("vector", l2=0.1)``; "auto" chooses the best."""
    check_calibrator(name)
    return TYPES[name](**params)


def confidence_calibrator(name: str, **params: Any) -> Calibrator:
    """Make a calibrator for a confidence, where nothing is known of the other classes: ``fit(confidence, correct)``.

    It treats "the prediction was right" as class 1 of two, so ``predict_proba(confidence)[:, 1]`` is the calibrated
    confidence. Calibrators that keep the predicted class keep each confidence on its side of 1/2, even if predictions
    with a confidence of 0.4 are right in 20 % of the cases. They are refused, except isotonic-confidence, which is
    `Isotonic` here. "auto" compares the others.

    >>> import numpy as np
    >>> confidence, correct = np.linspace(0.3, 0.9, 600), np.tile([True, False, False], 200)
    >>> calibrator = confidence_calibrator("platt").fit(confidence, correct)
    >>> bool(calibrator.predict_proba(confidence)[:, 1].max() < 0.4)
    True
    """
    if name == "auto":
        params["candidates"] = [_for_confidence(key) for key in params.get("candidates") or _SUITABLE]
    return make_calibrator(_for_confidence(name), from_probs=True, **params)


def _for_confidence(name: str) -> str:
    if name == "isotonic-confidence":
        return "isotonic"
    if name in CALIBRATORS and name not in _SUITABLE:
        raise ValueError(
            f"{name} cannot calibrate a confidence, because it never moves one across 1/2. It needs the probabilities "
            f"or logits of all classes. For a confidence, name one of auto, isotonic-confidence, "
            f"{', '.join(_SUITABLE)}."
        )
    return name
