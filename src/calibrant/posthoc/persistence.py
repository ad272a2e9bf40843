"""Calibrators on disk: arrays as safetensors, the rest as JSON in its header. Loading executes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from sklearn.utils.validation import check_is_fitted

from calibrant._version import __version__
from calibrant.posthoc._base import Calibrator
from calibrant.posthoc.registry import CALIBRATORS

FORMAT = "calibrant.posthoc"
FORMAT_VERSION = 1
_KEY = "calibrant"


def save(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator to one file; `load` reads it back with equal predictions, bit for bit."""
    name = _name_of(calibrator)
    check_is_fitted(calibrator)
    arrays: dict[str, np.ndarray] = {}
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "calibrant": __version__,
        "calibrator": name,
        "params": calibrator.get_params(deep=False),
        "state": _pack(_fitted_state(calibrator), "state", arrays),
    }
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The parameters of {type(calibrator).__name__} cannot be written as JSON: {error}. "
            "Use plain numbers, strings and None."
        ) from None
    save_file(arrays, str(path), metadata={_KEY: text})


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Read what `save` wrote; a ValueError says what is wrong with any other file."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. Give the path that was given to save.")
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            header = _header(metadata.get(_KEY), path)
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is not a dict)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a calibrator: it is not a safetensors file ({error}). "
            "Give a file that calibrant.posthoc.save wrote."
        ) from None
    try:
        calibrator = CALIBRATORS[header["calibrator"]](**header["params"])
        for key, value in _unpack(header["state"], arrays).items():
            setattr(calibrator, key, value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged: its header does not fit the calibrator ({error!r}). Save it again."
        ) from None
    return calibrator


def _name_of(calibrator: Calibrator) -> str:
    for name, cls in CALIBRATORS.items():
        if type(calibrator) is cls:
            return name
    raise TypeError(
        f"save writes the calibrators of calibrant.posthoc.CALIBRATORS, got {type(calibrator).__name__}. "
        "For a CalibratedModel save its calibrator_ and keep the model in its own format."
    )


def _header(text: str | None, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(text) if text is not None else None
    except json.JSONDecodeError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(
            f"{path} is a safetensors file but not a calibrator: its header does not name the format "
            f"{FORMAT}. Give a file that calibrant.posthoc.save wrote."
        )
    if header.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has version {header.get('version')} of the format {FORMAT} (written by calibrant "
            f"{header.get('calibrant')}); this is calibrant {__version__}, which reads version "
            f"{FORMAT_VERSION}. Install the calibrant that wrote it, or fit and save again."
        )
    if header.get("calibrator") not in CALIBRATORS:
        raise ValueError(
            f"{path} holds a calibrator {header.get('calibrator')!r}, unknown to calibrant {__version__}. "
            f"It knows: {', '.join(CALIBRATORS)}."
        )
    return header


def _fitted_state(calibrator: Calibrator) -> dict[str, Any]:
    return {key: value for key, value in vars(calibrator).items() if key.endswith("_") and not key.startswith("_")}


def _pack(value: Any, key: str, arrays: dict[str, np.ndarray]) -> Any:
    """Move arrays into `arrays` and leave a reference to each in a tree that JSON can hold."""
    if isinstance(value, np.ndarray):
        arrays[key] = np.ascontiguousarray(value)
        return {"array": key}
    if isinstance(value, dict):
        return {"dict": {name: _pack(item, f"{key}.{name}", arrays) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_pack(item, f"{key}.{i}", arrays) for i, item in enumerate(value)]}
    # JSON writes the shortest decimal that reads back as the same float64.
    return {"value": value.item() if isinstance(value, np.generic) else value}


def _unpack(tree: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    ((kind, value),) = tree.items()
    if kind == "array":
        return arrays[value]
    if kind == "dict":
        return {name: _unpack(item, arrays) for name, item in value.items()}
    if kind == "list":
        return [_unpack(item, arrays) for item in value]
    return value
