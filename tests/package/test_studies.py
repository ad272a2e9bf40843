"""The studies use the package from outside: its public names, and a list of others that may only shrink.

`python -m tests.package.test_studies` writes `studies.txt` again, without the names that are no longer used.
"""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

from .source import FILES, PACKAGE, STUDIES, imported, parse

TABLE = Path(__file__).with_name("studies.txt")


@cache
def public():
    """The names that the package and its folders list in ``__all__``."""
    folders = [file.relative_to(PACKAGE).parts[:-1] for file in FILES if file.name == "__init__.py"]
    modules = [".".join(["calibrant", *parts]) for parts in folders if not any(part.startswith("_") for part in parts)]
    return {
        f"{module}.{name}" for module in modules for name in vars(importlib.import_module(module)).get("__all__", ())
    }


def others():
    """``room.name`` of what the studies import although no folder lists it, so that a file may move within its room."""
    names = {tuple(name.split(".")) for file in STUDIES for name in imported(parse(file)) if name not in public()}
    return {f"{'base' if room.startswith('_') else room}.{rest[-1]}" for _, room, *rest in names}


def test_studies_use_public_names_and_those_of_the_list():
    """Give a new study what the package lists. A name that is no longer used leaves the list."""
    assert sorted(others() ^ set(TABLE.read_text(encoding="utf-8").split())) == []


def test_the_package_does_not_know_the_studies():
    """Nor the tests and the documentation."""
    nodes = [node for file in FILES for node in ast.walk(parse(file))]
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert not {name.split(".")[0] for name in modules} & {"studies", "tests", "docs"}


if __name__ == "__main__":
    listed = set(TABLE.read_text(encoding="utf-8").split()) if TABLE.exists() else others()
    TABLE.write_text("\n".join([*sorted(others() & listed), ""]), encoding="utf-8")
