"""The private parts of torch and scikit-learn that the package uses exist."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from .source import FILES, STUDIES

LINES = Path(__file__).with_name("private_parts.txt").read_text(encoding="utf-8").splitlines()
PARTS = dict(line.split(": ", 1) for line in LINES if not line.startswith("#"))


def find(name):
    """The object with a dotted name, or the class whose instances have the attribute at its end."""
    first, *rest = name.split(".")
    found, path = importlib.import_module(first), first
    for part in rest:
        path = f"{path}.{part}"
        if inspect.isclass(found) and not hasattr(found, part):
            if any(part in vars(c).get("__annotations__", ()) or sets(c, part) for c in found.__mro__[:-1]):
                return found
            raise AttributeError(f"{found.__name__} has no {part}")
        if not hasattr(found, part):
            importlib.import_module(path)
        found = getattr(found, part)
    return found


def sets(cls, attribute):
    """Whether a method of a class assigns this attribute."""
    return f"self.{attribute} = " in inspect.getsource(cls)


@pytest.mark.parametrize("name", PARTS)
def test_this_part_still_exists(name):
    try:
        find(name)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{name} no longer exists. It serves this purpose: {PARTS[name]}. {error}")


def test_listed_parts_are_used():
    """A part that nothing uses any more leaves the list."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in FILES + STUDIES)
    assert [name for name in PARTS if name.rpartition(".")[2] not in text] == []
