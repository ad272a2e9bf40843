"""Saved files: arrays and JSON in one safetensors file with a version and a checksum. Reading executes nothing.

The safetensors library can read these files. ``__metadata__`` of their header holds two strings: ``calibrant``, a JSON
object, and ``sha256``, the checksum of the rest of the header (as sorted JSON) and of the bytes of the arrays.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError, deserialize

from calibrant._version import __version__
from calibrant.base.atomic_write import whole_file

NAME, VERSION = "calibrant", 5
"""The format name and version in the header of every file. Only files of this version are read."""
READERS = {
    "classifier": "calibrant.estimators.load_classifier",
    "calibrator": "calibrant.posthoc.load_calibrator",
    "encoder": "calibrant.data.TableEncoder.load",
    "network": "calibrant.Trained.load",
}
"""The function that reads each kind of file, for error messages."""

_TEXT, _SUM = "calibrant", "sha256"
_WIDE = 64
"""Arrays of text up to this width keep their type, however short their texts are."""

Arrays = dict[str, np.ndarray]
Tree = dict[str, Any]


@dataclass(frozen=True)
class Format:
    """A kind of file: the name of its content, the classes that it may hold, and the function that writes it.

    With ``tensors``, arrays are read as torch tensors.
    """

    noun: str
    known: Mapping[str, type]
    writer: str
    tensors: bool = False

    @property
    def _one(self) -> str:
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"

    def write(self, path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Any], **parts: Any) -> None:
        """Write arrays and JSON values."""
        header = {"format": NAME, "version": VERSION, "calibrant": __version__, "holds": self.noun, "class": kind}
        try:
            text = json.dumps({**header, **parts}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The parameters of {kind} cannot be written as JSON: {error}. Use plain numbers, strings and None."
            ) from None
        write_container(path, text, arrays)

    def read(self, path: str | os.PathLike[str], build: Callable[[type, dict[str, Any], Arrays], Any]) -> Any:
        """Read a file and return ``build(class, header, arrays)``; raises a ValueError if the file is not valid."""
        raw = read_bytes(path)
        try:
            content = read_content(raw)
        except SafetensorError as error:
            raise ValueError(
                f"{path} is not {self._one}: it is not a safetensors file, or was cut off ({error}). "
                f"Give a file that {self.writer} wrote."
            ) from None
        header = self._header(content, path)
        try:
            check(raw)
            arrays = read_arrays(raw, tensors=self.tensors)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}. Copy it again, or save it again.") from None
        try:
            return build(self.known[header["class"]], header, arrays)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, ArithmeticError) as error:
            raise ValueError(
                f"{path} is damaged: its header does not fit the {self.noun} ({error!r}). Save it again."
            ) from None

    def _header(self, header: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
        """The header; raises an error if the file is of another kind or version."""
        if not isinstance(header, dict) or header.get("format") != NAME:
            raise ValueError(
                f"{path} is a safetensors file but not {self._one}: its header does not name the format {NAME}. "
                f"Give a file that {self.writer} wrote."
            )
        version = header.get("version")
        if version != VERSION:
            raise ValueError(
                f"{path} has version {version} of the format; calibrant {__version__} reads version {VERSION}. Install "
                f"calibrant {header.get('calibrant')}, which wrote it, or fit and save again."
            )
        holds = header.get("holds")
        if holds != self.noun:
            reader = READERS.get(str(holds), "a newer calibrant")
            raise ValueError(f"{path} is not {self._one}: its kind is {holds!r}. Read it with {reader}.")
        if not isinstance(header.get("class"), str) or header["class"] not in self.known:
            raise ValueError(
                f"{path} holds {self._one} {header.get('class')!r}, unknown to calibrant {__version__}. Use a newer "
                f"version; this one knows {', '.join(self.known)}."
            )
        return header


def pack(value: Any, key: str, arrays: Arrays) -> Tree:
    """Return a value as JSON; its arrays go into ``arrays``, and the JSON holds references to them."""
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
    """The inverse of :func:`pack`."""
    if not tree:
        raise ValueError("a value is missing")
    kind, value = next(iter(tree.items()))
    if kind == "array":
        return arrays[value]
    if kind == "texts":
        return _texts(value, np.dtype(tree["dtype"]))
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


def _texts(values: list[Any], dtype: np.dtype[Any]) -> np.ndarray:
    """An array of text. A type much wider than the texts is narrowed, so that a small file cannot fill the memory."""
    if dtype.kind not in "OU" or not all(isinstance(value, str) for value in values):
        raise ValueError(f"an array of text has the type {dtype} or holds values that are not text")
    longest = max(map(len, values), default=1)
    if dtype.kind == "U" and dtype.itemsize // 4 > max(longest, _WIDE):
        dtype = np.dtype(f"<U{longest}")
    return np.array(values, dtype=dtype)


def write_container(path: str | os.PathLike[str], text: str, arrays: Mapping[str, Any]) -> None:
    """Write JSON text and arrays (numpy or torch) completely or not at all; raises a ValueError if it cannot."""
    raw = safetensors.torch.save({name: _tensor(value) for name, value in arrays.items()}, {_TEXT: text})
    header, begin = _header(raw)
    header["__metadata__"][_SUM] = _checksum(header, memoryview(raw)[begin:])
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # the arrays begin at a multiple of eight bytes
    with whole_file(path) as place, open(place, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.write(memoryview(raw)[begin:])


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise an error if a file cannot be read: missing, a folder, or no permission."""
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder; give the name of a file in it.")
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path}. Check the name and the folder.")
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path} cannot be read: no permission. Give another file, or change its mode.")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file; raises an error in one sentence if the file is missing or cannot be read."""
    check_file(path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}. Give another file.") from None


def read_content(raw: bytes) -> Any:
    """The JSON content of a container, or None without any; raises a SafetensorError if the bytes are not a container.

    The checksum is not verified here. Call :func:`check` once you know that the file's version has a checksum.
    """
    deserialize(raw)
    try:
        return json.loads(_header(raw)[0].get("__metadata__", {}).get(_TEXT, "null"))
    except (json.JSONDecodeError, TypeError, AttributeError, RecursionError):
        return None


def check(raw: bytes) -> None:
    """Raise a ValueError if the checksum of a container is wrong or missing."""
    header, begin = _header(raw)
    if header["__metadata__"].pop(_SUM, None) != _checksum(header, memoryview(raw)[begin:]):
        raise ValueError("its checksum does not fit its content")


def read_arrays(raw: bytes, *, tensors: bool = False) -> dict[str, Any]:
    """The arrays of a container by name, as numpy arrays or torch tensors."""
    try:
        with torch.device("cpu"):  # without this, an empty tensor would get the default device
            return dict(safetensors.torch.load(raw) if tensors else safetensors.numpy.load(raw))
    except KeyError as error:
        raise ValueError(f"its arrays of type {error} are not read here") from None


def _tensor(value: Any) -> torch.Tensor:
    """A copy of an array on the CPU."""
    array = isinstance(value, np.ndarray)
    if (value.dtype.kind not in "biuf" or value.itemsize > 8) if array else value.is_complex():
        name = str(value.dtype).removeprefix("torch.")
        raise ValueError(f"Arrays of {name} cannot be saved; use real numbers or truth values.")
    if array:
        return torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
    copied: torch.Tensor = value.detach().to("cpu", copy=True).contiguous()
    return copied


def _header(raw: bytes) -> tuple[dict[str, Any], int]:
    """The header of a container, and where its arrays begin."""
    begin = 8 + int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8:begin])
    return header, begin


def _checksum(header: Mapping[str, Any], arrays: memoryview) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(arrays)
    return digest.hexdigest()
