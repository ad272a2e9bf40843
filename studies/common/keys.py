"""Keys of runs: the fields that identify a run, its settings and data, and the version of its code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FIRST = "1"
"""The version of stored runs without one, and of studies whose numbers have not changed since."""


@dataclass(frozen=True)
class Key:
    """Identifies one run of an experiment and what its numbers depend on.

    ``fields`` identify the run, for example by data set, method and seed. A stored record with the same fields but
    different ``settings``, ``data`` or ``code`` is out of date. ``code`` is an explicit version: raise it in the study
    when a change of the code changes its numbers. Use :func:`make_key` to make a key.
    """

    fields: tuple[tuple[str, Any], ...]
    settings: str
    code: str
    data: str = ""

    def __getitem__(self, field: str) -> Any:
        return dict(self.fields)[field]

    @property
    def name(self) -> str:
        """The fields as one string, which identifies the run in its store."""
        return name_of(self.fields)

    @property
    def config(self) -> str:
        """A digest of settings and data."""
        return digest([self.settings, self.data])

    def matches(self, line: Mapping[str, Any]) -> bool:
        """Whether a stored run has this version, and these settings and data if it states them."""
        return line.get("code", FIRST) == self.code and line.get("config") in (None, "", self.config)

    @property
    def file_name(self) -> str:
        """A readable and unique name for the files of this run."""
        readable = re.sub(r"[^A-Za-z0-9.=-]+", "_", "-".join(str(value) for _, value in self.fields))
        return f"{readable.lstrip('.')[:80]}-{digest([self.name])[:8]}"


def make_key(*, settings: str, code: str = FIRST, data: str = "", **fields: Any) -> Key:
    """Make a key; ``fields`` are numbers and strings, such as ``dataset="bac", method="bo4sc", seed=3``."""
    return Key(tuple(fields.items()), settings, code, data)


def name_of(fields: Iterable[tuple[str, Any]]) -> str:
    """Fields as one string; 300 and 300.0 are written alike."""

    def written(value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return " ".join(f"{name}={written(value)}" for name, value in fields)


def digest(texts: Iterable[str]) -> str:
    """A digest of strings: twelve hexadecimal digits."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
