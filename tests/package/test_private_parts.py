"""The private parts of torch and scikit-learn that the package uses exist, and all of them are listed."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from .source import FILES, STUDIES, name_of, parse

LINES = Path(__file__).with_name("private_parts.txt").read_text(encoding="utf-8").splitlines()
PARTS = dict(line.split(": ", 1) for line in LINES if not line.startswith("#"))
NAMED_TUPLE = {"_replace", "_asdict", "_fields"}


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


def private(name):
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def used(tree):
    """Private names that a file imports from other packages, and private attributes that it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.module.startswith(("calibrant", "__future__")):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if any(map(private, name.split("."))))
        elif isinstance(node, ast.Attribute) and private(node.attr):
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and private(name.value):
                yield name.value


def own_names():
    """Names that the package defines: functions, classes, variables and attributes."""
    for file in FILES + STUDIES:
        for node in ast.walk(parse(file)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                yield node.id if isinstance(node, ast.Name) else node.attr


def test_every_private_part_is_listed():
    """For attributes only the last name is compared: the type of their owner is not known here."""
    own = set(own_names()) - {"_modules"}  # models/functional/heads.py sets this one of a module of torch
    listed = {part for name in PARTS for part in name.split(".") if private(part)}
    missing = set()
    for file in FILES + STUDIES:
        for name in used(parse(file)):
            known = any(part.startswith(name) for part in PARTS) if "." in name else name in listed | own
            if not known:
                missing.add(f"{name} in {name_of(file)}")
    assert not missing


def test_listed_parts_are_used():
    """A part that nothing uses any more leaves the list."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in FILES + STUDIES)
    assert [name for name in PARTS if name.rpartition(".")[2] not in text] == []
