"""Fitted objects on disk: arrays as safetensors, the rest as JSON in its header. Reading executes nothing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from calibrant._version import __version__

_KEY = "calibrant"

Arrays = dict[str, np.ndarray]
Tree = dict[str, Any]


@dataclass(frozen=True)
class Format:
    """One kind of file: its name and version, what it holds, and the classes that may be in it, by name."""

    name: str
    version: int
    noun: str
    known: Mapping[str, type]
    writer: str
    """The function that writes such files, for messages."""
    older: tuple[int, ...] = ()
    """Earlier versions that can be read as well."""

    def write(self, path: str | os.PathLike[str], kind: str, arrays: Arrays, **parts: Any) -> None:
        """Write arrays, and parts that JSON can hold."""
        header = {"format": self.name, "version": self.version, "calibrant": __version__, self.noun: kind, **parts}
        try:
            text = json.dumps(header, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The parameters of {self.known[kind].__name__} cannot be written as JSON: {error}. Use plain numbers, "
                "strings and None."
            ) from None
        save_file(arrays, str(path), metadata={_KEY: text})

    def read(self, path: str | os.PathLike[str], build: Callable[[type, dict[str, Any], Arrays], Any]) -> Any:
        """What ``build(class, header, arrays)`` makes of a file; a ValueError says what is wrong with another one."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}. Give the path that was given to save.")
        try:
            with safe_open(str(path), framework="numpy") as file:
                header = self._header((file.metadata() or {}).get(_KEY), path)
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is not a dict)
        except SafetensorError as error:
            raise ValueError(
                f"{path} is not a {self.noun}: it is not a safetensors file ({error}). "
                f"Give a file that {self.writer} wrote."
            ) from None
        try:
            return build(self.known[header[self.noun]], header, arrays)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(
                f"{path} is damaged: its header does not fit the {self.noun} ({error!r}). Save it again."
            ) from None

    def _header(self, text: str | None, path: Path) -> dict[str, Any]:
        try:
            header = json.loads(text) if text is not None else None
        except json.JSONDecodeError:
            header = None
        if not isinstance(header, dict) or header.get("format") != self.name:
            raise ValueError(
                f"{path} is a safetensors file but not a {self.noun}: its header does not name the format {self.name}. "
                f"Give a file that {self.writer} wrote."
            )
        if header.get("version") not in (self.version, *self.older):
            raise ValueError(
                f"{path} has version {header.get('version')} of the format {self.name} (written by calibrant "
                f"{header.get('calibrant')}); this is calibrant {__version__}, which reads version {self.version}. "
                "Install the calibrant that wrote it, or fit and save again."
            )
        if header.get(self.noun) not in self.known:
            raise ValueError(
                f"{path} holds a {self.noun} {header.get(self.noun)!r}, unknown to calibrant {__version__}. "
                f"It knows: {', '.join(self.known)}."
            )
        return header


def fitted_state(estimator: Any) -> dict[str, Any]:
    """What fitting left in an estimator: attributes whose names end with an underscore, scikit-learn's rule."""
    return {key: value for key, value in vars(estimator).items() if key.endswith("_") and not key.startswith("_")}


def pack(value: Any, key: str, arrays: Arrays) -> Tree:
    """Move arrays into ``arrays`` and leave a reference to each in a tree that JSON can hold."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        arrays[key] = np.ascontiguousarray(value)
        return {"array": key}
    if isinstance(value, np.ndarray) and all(isinstance(v, str) for v in value.tolist()):
        return {"texts": value.tolist(), "dtype": value.dtype.str}
    if isinstance(value, dict) and not all(isinstance(name, str) for name in value):  # JSON has only text for keys
        pairs = enumerate(value.items())
        return {"pairs": [[pack(part, f"{key}.{i}", arrays) for part in pair] for i, pair in pairs]}
    if isinstance(value, dict):
        return {"dict": {name: pack(item, f"{key}.{name}", arrays) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        items = [pack(item, f"{key}.{i}", arrays) for i, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}  # JSON has no infinity
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}  # JSON writes the shortest decimal that reads back as the same float64
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    raise ValueError(f"{key} is {kind}, which save cannot write: use numbers, text, truth values or None.")


def unpack(tree: Tree, arrays: Arrays) -> Any:
    """What was packed."""
    kind, value = next(iter(tree.items()))
    if kind == "array":
        return arrays[value]
    if kind == "texts":
        return np.array(value, dtype=np.dtype(tree["dtype"]))
    if kind == "dict":
        return {name: unpack(item, arrays) for name, item in value.items()}
    if kind == "pairs":
        return {unpack(name, arrays): unpack(item, arrays) for name, item in value}
    if kind in ("list", "tuple"):
        items = [unpack(item, arrays) for item in value]
        return tuple(items) if kind == "tuple" else items
    if kind == "float":
        return float(value)
    if kind == "value":
        return value
    raise ValueError(f"unknown kind {kind!r}")
