"""Safe unpickling: only NumPy arrays and plain containers can be built."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

_ARRAY_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
_ALLOWED = {(module, name) for module in _ARRAY_MODULES for name in ("ndarray", "dtype", "_reconstruct", "scalar")} | {
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),  # how protocol 2 writes bytes
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"only NumPy arrays are allowed; got {module}.{name}")
        return super().find_class(module, name)


def unpickle(path: Path) -> Any:
    """Read a pickle of arrays, numbers, text, lists and dicts. Anything else is an error, and no code runs.

    Text written by Python 2 is returned as bytes.
    """
    with path.open("rb") as file:
        return _ArraysOnly(file, encoding="bytes").load()
