"""Keys of runs: the fields that identify a run, and digests of the settings, data and code behind its numbers."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import calibrant

MEASURED = ("data", "metrics", "selective")
"""Folders of the package that every record depends on: data and scores."""
TRAINED = ("methods", "bilevel", "posthoc", "losses", "models")
"""Further folders that records of our own methods depend on."""
BASE = ("_classes.py",)
"""Modules of the package's base that compute parts of losses and calibrators."""
SCORING = ("experiments/common/records.py",)
"""Files that turn a trained classifier into a record."""


@dataclass(frozen=True)
class Key:
    """Identifies one run of an experiment and what its numbers depend on.

    ``fields`` identify the run, for example by data set, method and seed. A stored record with the same fields but
    different ``settings``, ``data`` or ``code`` is out of date. Use :func:`make_key` to make a key.
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

    @property
    def file_name(self) -> str:
        """A readable and unique name for the files of this run."""
        readable = re.sub(r"[^A-Za-z0-9.=-]+", "_", "-".join(str(value) for _, value in self.fields))
        return f"{readable.lstrip('.')[:80]}-{digest([self.name])[:8]}"


def make_key(*, settings: str, code: str, data: str = "", **fields: Any) -> Key:
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


@cache
def code_digest(*parts: str) -> str:
    """A digest of the source code in these folders and files of the package; changed code may change the numbers.

    Docstrings, empty lines and lines of comment do not count.
    """
    package = Path(calibrant.__file__).parent
    found = hashlib.sha256()
    files = (
        p for part in parts for p in ([package / part] if part.endswith(".py") else (package / part).rglob("*.py"))
    )
    for path in sorted(files):
        found.update(f"{path.relative_to(package).as_posix()}\0{_statements(path)}\0".encode())
    return found.hexdigest()[:12]


def _statements(path: Path) -> str:
    """The lines of a file without docstrings and without lines that are comments."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines[first.lineno - 1 : first.end_lineno] = [""] * len(lines[first.lineno - 1 : first.end_lineno])
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def own_code(*further: str) -> str:
    """The code digest for records of our own methods; ``further`` names more files that the records depend on."""
    return code_digest(*TRAINED, *BASE, *MEASURED, *SCORING, *further)
