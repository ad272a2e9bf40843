"""Tests that the defaults and thresholds of the package change on purpose only.

`python -m tests.package.test_defaults` writes `defaults.txt` again after a change that is meant.
"""

from __future__ import annotations

import ast
import inspect
import re
from enum import Enum
from pathlib import Path

from tests.package.source import FILES, PACKAGE, parse
from tests.package.test_vocabulary import callables, own, public

TABLE = Path(__file__).with_name("defaults.txt")
SIMPLE = (bool, int, float, str, tuple, frozenset, type(None))
LEFT_OUT = ("plots", "_version.py")
"""Looks and versions."""


def shown(value):
    """A default as text that does not depend on the run; None for values that have no such text."""
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(repr, value))})"
    if isinstance(value, Enum) or not isinstance(value, SIMPLE):
        text = repr(value)
        return None if re.search(r" at 0x| object|<(function|class|module)", text) else text
    return repr(value)


def argument_defaults():
    """`name(parameter) = default` for the public functions, classes and methods, each under its shortest name."""
    shortest = {}
    for module, name, value in sorted(public(), key=lambda entry: (len(entry[0]), entry[0])):
        if callable(value):
            shortest.setdefault(id(value), (module, name, value))
    for module, name, value in shortest.values():
        for called, function in callables(name, value):
            if not own(function):
                continue
            try:
                parameters = inspect.signature(function).parameters.values()
            except (TypeError, ValueError):
                continue
            for parameter in parameters:
                text = None if parameter.default is parameter.empty else shown(parameter.default)
                if text is not None:
                    yield f"{module}.{called}({parameter.name}) = {text}"


def constants():
    """`file NAME = value` for the numbers that a module names in capitals."""
    for file in FILES:
        path = file.relative_to(PACKAGE)
        if path.parts[0] in LEFT_OUT:
            continue
        for node in parse(file).body:
            target, value = (
                (node.targets[0], node.value)
                if isinstance(node, ast.Assign)
                else (node.target, node.value)
                if isinstance(node, ast.AnnAssign)
                else (None, None)
            )
            if not isinstance(target, ast.Name) or not target.id.isupper() or value is None:
                continue
            names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
            numbers = [n for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, int | float)]
            if numbers and not names and not any(isinstance(n, ast.Call | ast.Lambda) for n in ast.walk(value)):
                yield f"{target.id} = {ast.unparse(value)}"


def table():
    """All defaults and constants, one a line, sorted. Constants have no path, so that a file can move."""
    return "\n".join([*sorted(set(argument_defaults())), "", *sorted(set(constants())), ""])


def test_defaults_and_thresholds_are_those_of_the_table():
    """A difference that is meant is written by `python -m tests.package.test_defaults`."""
    current, stored = (set(text.splitlines()) for text in (table(), TABLE.read_text(encoding="utf-8")))
    assert sorted(current - stored) == sorted(stored - current) == []


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
