"""Saving and loading calibrators, in the format of :mod:`calibrant.base.files`."""

from __future__ import annotations

import os
from typing import Any

from sklearn.utils.validation import check_is_fitted

from calibrant.base.files import Arrays, Format, pack, unpack
from calibrant.base.fitted import fitted_state
from calibrant.posthoc._base import Calibrator
from calibrant.posthoc.auto import CALIBRATORS, Auto
from calibrant.posthoc.registry import TYPES

WRITER = "calibrant.posthoc.save_calibrator or `calibrant calibrate`"
FORMAT = Format("calibrator", TYPES, WRITER)


def save_calibrator(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator to one file; `load_calibrator` reads it back with equal predictions, bit for bit."""
    arrays: Arrays = {}
    parts = calibrator_parts(calibrator, "state", arrays)
    FORMAT.write(path, parts.pop("calibrator"), arrays, **parts)


def load_calibrator(path: str | os.PathLike[str]) -> Calibrator:
    """Read what `save_calibrator` wrote; for any other file, a ValueError says what is wrong."""
    calibrator: Calibrator = FORMAT.read(path, _build)
    return calibrator


def calibrator_parts(calibrator: Calibrator, key: str, arrays: Arrays) -> dict[str, Any]:
    """The header of a calibrator, and of its stages if it has any."""
    name = _name_of(calibrator)
    check_is_fitted(calibrator)
    state = fitted_state(calibrator)
    stages = state.pop("stages_", [])
    params = {k: list(v) if isinstance(v, tuple) else v for k, v in calibrator.get_params(deep=False).items()}
    parts = {"calibrator": name, "params": params, "state": pack(state, key, arrays)}
    if isinstance(calibrator, Auto):
        parts["stages"] = [calibrator_parts(stage, f"{key}.stage{i}", arrays) for i, stage in enumerate(stages)]
    return parts


def _build(kind: type, header: dict[str, Any], arrays: Arrays) -> Calibrator:
    calibrator: Calibrator = kind(**header["params"])
    for key, value in unpack(header["state"], arrays).items():
        setattr(calibrator, key, value)
    if isinstance(calibrator, Auto):
        calibrator.stages_ = [_build(CALIBRATORS[part["calibrator"]], part, arrays) for part in header["stages"]]
    return calibrator


def build_calibrator(parts: dict[str, Any], arrays: Arrays) -> Calibrator:
    """The calibrator that `calibrator_parts` described."""
    return _build(TYPES[parts["calibrator"]], parts, arrays)


def _name_of(calibrator: Calibrator) -> str:
    for name, cls in TYPES.items():
        if type(calibrator) is cls:
            return name
    raise TypeError(
        f"calibrator must be one of calibrant.posthoc; got {type(calibrator).__name__}. "
        "Of a CalibratedModel, save calibrator_, and save the model in its own format."
    )
