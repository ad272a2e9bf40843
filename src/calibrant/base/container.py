"""Read and write saved files: safetensors files whose header holds JSON and a checksum.

The layout is that of the safetensors library, so its tools can read these files: eight bytes with the length of the
header, a JSON header, and the arrays. ``__metadata__`` of the header holds two strings: ``calibrant``, a JSON object,
and ``sha256``, the checksum of the rest of the header (as sorted JSON) and of the bytes of the arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from calibrant.base.atomic_write import whole_file

_TEXT, _SUM = "calibrant", "sha256"
_NUMPY = {
    f"{kind.upper()}{8 * size}": np.dtype(f"<{kind}{size}")
    for kind in "iuf"
    for size in (1, 2, 4, 8)
    if (kind, size) != ("f", 1)
}
_NUMPY["BOOL"] = np.dtype(bool)
_NAMES = {kind: name for name, kind in _NUMPY.items()}
_SMALL = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""Types of torch that numpy lacks, by their names in the file."""


def write_container(path: str | os.PathLike[str], text: str, arrays: Mapping[str, Any]) -> None:
    """Write JSON text and arrays (numpy or torch) completely or not at all; raises a ValueError if it cannot."""
    parts = sorted(((name, *_raw(value)) for name, value in arrays.items()), key=lambda p: (-p[3].itemsize, p[0]))
    header: dict[str, Any] = {"__metadata__": {_TEXT: text}}
    end = 0
    for name, kind, shape, data in parts:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + data.nbytes]}
        end += data.nbytes
    header["__metadata__"][_SUM] = _checksum(header, (data.data for *_, data in parts))
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # the arrays begin at a multiple of eight bytes
    with whole_file(path) as place, open(place, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for *_, data in parts:
            file.write(data.data)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file; raises an error in one sentence if the file is missing or cannot be read."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}. Give the path that was given to save.") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; give the name of a file in it.") from None
    except PermissionError:
        raise ValueError(f"{path} cannot be read: no permission. Give another file, or change its mode.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}. Give another file.") from None


def read_content(raw: bytes) -> Any:
    """The JSON content of a container, or None without any; raises a SafetensorError if the bytes are not a container.

    The checksum is not verified here. Call :func:`check` once you know that the file's version has a checksum.
    """
    deserialize(raw)
    try:
        return json.loads(_header(raw).get("__metadata__", {}).get(_TEXT, "null"))
    except (json.JSONDecodeError, TypeError, AttributeError, RecursionError):
        return None


def check(raw: bytes) -> None:
    """Raise a ValueError if the checksum of a container is wrong or missing."""
    header = _header(raw)
    told = header["__metadata__"].pop(_SUM, None)
    begin = 8 + int.from_bytes(raw[:8], "little")
    if told != _checksum(header, [memoryview(raw)[begin:]]):
        raise ValueError("its checksum does not fit its content")


def read_arrays(raw: bytes, *, tensors: bool = False) -> dict[str, Any]:
    """The arrays of a container by name, as numpy arrays or torch tensors."""
    reader = import_module("safetensors.torch" if tensors else "safetensors.numpy")
    # Without this, an empty tensor would get the default device.
    device = import_module("torch").device("cpu") if tensors else nullcontext()
    try:
        with device:
            return dict(reader.load(raw))
    except KeyError as error:
        raise SafetensorError(f"its arrays of type {error} are not read here") from None


def _header(raw: bytes) -> dict[str, Any]:
    size = int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8 : 8 + size])
    return header


def _checksum(header: Mapping[str, Any], pieces: Iterable[memoryview]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _raw(value: Any) -> tuple[str, list[int], np.ndarray]:
    """The type, the shape and the flat contiguous values of an array; types that numpy lacks are viewed as bytes."""
    if not isinstance(value, np.ndarray):
        import torch

        value = value.detach().cpu().contiguous()
        small = {getattr(torch, theirs): name for name, theirs in _SMALL.items() if hasattr(torch, theirs)}
        if value.dtype in small:
            return (
                small[value.dtype],
                list(value.shape),
                value.reshape(-1).view(torch.int16 if value.itemsize == 2 else torch.uint8).numpy(),
            )
        value = value.numpy() if not value.is_complex() else np.empty(0, complex)
    kind = _NAMES.get(value.dtype.newbyteorder("<"))
    if kind is None:
        raise ValueError(f"Arrays of {value.dtype} cannot be saved; use real numbers or truth values.")
    return kind, list(value.shape), np.ascontiguousarray(value, _NUMPY[kind]).reshape(-1)
