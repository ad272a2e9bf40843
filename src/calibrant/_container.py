"""The bytes of a saved file: a safetensors file whose header holds JSON and a checksum of everything in it.

The layout is the one that the safetensors library defines, so that its tools read these files too: eight bytes with
the header's length, a JSON header, the arrays. The header's ``__metadata__`` holds two texts: ``calibrant``, a JSON
object, and ``sha256``, the checksum of the rest of the header (as sorted JSON) and of the arrays' bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from calibrant._whole import whole_file

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
"""Types that torch has and numpy has not, by their names in the file."""


def write_container(path: str | os.PathLike[str], text: str, arrays: Mapping[str, Any]) -> None:
    """Write JSON text and arrays, numpy's or torch's, whole or not at all; a ValueError says what is in the way."""
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
    """A file's bytes; an error in one sentence where there is no file, or none that can be read."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}. Give the path that was given to save.") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; give the name of a file in it.") from None
    except PermissionError:
        raise ValueError(f"{path} cannot be read: no permission. Give another file, or change its mode.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_content(raw: bytes) -> Any:
    """The JSON content of a container, None where it has none; a SafetensorError where the bytes are no container.

    It is not checked: :func:`check` does that, once it is known that the file is of a version with a checksum.
    """
    deserialize(raw)
    try:
        return json.loads(_header(raw).get("__metadata__", {}).get(_TEXT, "null"))
    except (json.JSONDecodeError, TypeError, AttributeError, RecursionError):
        return None


def check(raw: bytes, *, may_lack: bool) -> None:
    """A ValueError where the checksum of a container does not fit its content; old files ``may_lack`` one."""
    header = _header(raw)
    told = header["__metadata__"].pop(_SUM, None)
    if told is None and may_lack and set(header["__metadata__"]) == {_TEXT}:
        return
    begin = 8 + int.from_bytes(raw[:8], "little")
    if told != _checksum(header, [memoryview(raw)[begin:]]):
        raise ValueError("its checksum does not fit its content")


def read_arrays(raw: bytes, *, tensors: bool = False) -> dict[str, Any]:
    """The arrays of a container by name: of numpy, or tensors of torch."""
    found: dict[str, Any] = {}
    for name, part in deserialize(raw):
        kind, shape, data = part["dtype"], tuple(part["shape"]), bytearray(part["data"])
        if kind in _NUMPY:
            found[name] = np.frombuffer(data, _NUMPY[kind]).reshape(shape)
        elif not (tensors and kind in _SMALL):
            raise SafetensorError(f"the array {name} is of type {kind}, which is not read here")
        if tensors:
            import torch

            if kind in _SMALL:
                whole = torch.empty(0, dtype=torch.uint8) if not data else torch.frombuffer(data, dtype=torch.uint8)
                found[name] = whole.view(getattr(torch, _SMALL[kind])).reshape(shape)
            else:
                found[name] = torch.from_numpy(found[name])
    return found


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
    """An array's type, shape and values in one piece, flat; a type that numpy lacks as bytes."""
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
