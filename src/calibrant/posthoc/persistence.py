"""Calibrators on disk, as :mod:`calibrant._files` keeps them."""

from __future__ import annotations

import os
from typing import Any

from sklearn.utils.validation import check_is_fitted

from calibrant._files import Arrays, Format, fitted_state, pack, unpack
from calibrant.posthoc._base import Calibrator
from calibrant.posthoc.registry import CALIBRATORS

FORMAT = Format("calibrant.posthoc", 1, "calibrator", CALIBRATORS, "calibrant.posthoc.save")


def save(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator to one file; `load` reads it back with equal predictions, bit for bit."""
    name = _name_of(calibrator)
    check_is_fitted(calibrator)
    arrays: Arrays = {}
    state = pack(fitted_state(calibrator), "state", arrays)
    FORMAT.write(path, name, arrays, params=calibrator.get_params(deep=False), state=state)


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Read what `save` wrote; a ValueError says what is wrong with any other file."""
    calibrator: Calibrator = FORMAT.read(path, _build)
    return calibrator


def _build(kind: type, header: dict[str, Any], arrays: Arrays) -> Calibrator:
    calibrator: Calibrator = kind(**header["params"])
    for key, value in unpack(header["state"], arrays).items():
        setattr(calibrator, key, value)
    return calibrator


def _name_of(calibrator: Calibrator) -> str:
    for name, cls in CALIBRATORS.items():
        if type(calibrator) is cls:
            return name
    raise TypeError(
        f"save writes the calibrators of calibrant.posthoc.CALIBRATORS, got {type(calibrator).__name__}. "
        "For a CalibratedModel save its calibrator_ and keep the model in its own format."
    )
