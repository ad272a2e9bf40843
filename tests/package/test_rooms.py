"""The plan of the package: which room may import from which, and what each file and folder shows.

A room is a folder of ``calibrant``. ``base`` is a room that all others may use, and that uses none. A name with a
leading underscore belongs to the room that defines it.
"""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import re

import pytest

import calibrant

from .source import FILES, PACKAGE, STUDIES, code_lines, imported, name_of, parse

# data ─► models ─► losses ─► bilevel ─► methods ─► estimators ─► report · cli; pool uses data; leaves know arrays and
# tensors only. Each room lists the rooms that it may import.
LEAVES = {"metrics": set(), "selective": {"metrics"}, "posthoc": {"metrics"}, "plots": {"metrics", "selective"}}
ROOMS = LEAVES | {
    "base": set(),
    "data": set(),
    "models": {"data"},
    "losses": {"data", "models", "metrics"},
    "bilevel": {"data", "models", "losses"},
    "pool": {"data", "metrics", "posthoc"},
    "methods": {"data", "models", "losses", "bilevel", "pool", "metrics", "posthoc"},
    "estimators": {"data", "models", "bilevel", "methods", "pool", "posthoc", "selective"},
    "integrations": {"bilevel", "data", "methods", "metrics", "models", "posthoc"},
    "export": {"data", "models", "methods", "pool", "estimators"},
    "report": {"data", *LEAVES},
    "tables": {"bilevel", "data", "estimators", "methods", "metrics", "report", "selective"},
    "cli": {"posthoc", "report", "tables"},
}
CEILINGS = {
    "": 100,
    "base": 750,
    "bilevel": 4_700,
    "cli": 550,
    "data": 2_500,
    "estimators": 1_350,
    "export": 400,
    "integrations": 250,
    "losses": 500,
    "methods": 3_700,
    "metrics": 1_500,
    "models": 1_250,
    "plots": 700,
    "pool": 750,
    "posthoc": 1_250,
    "report": 1_600,
    "selective": 750,
    "tables": 1_100,
}
"""Lines of code per room, without docstrings, comments and blank lines; "" is the package's face.

They may only shrink. A commit that raises one changes nothing else, and its message names the user who gains.
"""
FOLDERS = [file for file in FILES if file.name == "__init__.py"]


def room_of(file):
    """The room of a file; "" for the modules at the top, which are the public face of all rooms."""
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def test_every_folder_is_a_listed_room():
    assert {room_of(file) for file in FILES} - {""} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_from_their_left(room):
    names = {name for file in FILES if room_of(file) == room for name in imported(parse(file))}
    used = {name.split(".")[1] for name in names}
    assert used - {room, "base", "_version"} <= ROOMS[room]


@pytest.mark.parametrize("room", CEILINGS)
def test_the_code_of_a_room_stays_below_its_ceiling(room):
    assert sum(code_lines(file) for file in FILES if room_of(file) == room) <= CEILINGS[room]


def test_every_room_has_a_ceiling():
    assert set(CEILINGS) == set(ROOMS) | {""}


def module_of(file):
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run_imports(node):
    """The import statements below a node that run: also those in functions, but not those for annotations."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from run_imports(child)


def test_no_modules_import_each_other():
    """The package's own face is left out: it imports nothing before a name is used."""
    modules = {module_of(file): file for file in FILES}
    graph = {}
    for module, file in modules.items():
        names = {name for node in run_imports(parse(file)) for name in imported(ast.Module([node], []))}
        used = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = (used & set(modules)) - {module, "calibrant", *LATE.get(module, ())}
    del graph["calibrant"]
    graphlib.TopologicalSorter(graph).prepare()


LATE = {
    "calibrant.data.streams.streams": {"calibrant.data.streams.loaders"},
    "calibrant.estimators.base": {"calibrant.estimators.persistence"},
}
"""Imports inside functions that close a circle. There may only be fewer."""


def private_imports(room, names):
    """Those names that belong to another room: "calibrant.plots._style" and "calibrant.plots.bars._draw"."""
    own = f"calibrant.{room}."
    return [name for name in names if re.search(r"^calibrant\.[a-z]\w*\.(.+\.)?_", name) and not name.startswith(own)]


def test_rooms_import_nothing_private_of_another():
    found = {name_of(file): private_imports(room_of(file), imported(parse(file))) for file in FILES}
    assert not {file: names for file, names in found.items() if names}


def test_first_lines_say_what_files_are_for():
    """One sentence of at most 120 characters after the opening quotes, followed by an empty line."""
    wrong = []
    for file in FILES + STUDIES:
        line, _, rest = (ast.get_docstring(parse(file), clean=False) or "").partition("\n")
        if not re.fullmatch(r"\S.{9,115}\.", line) or (rest.strip() and not rest.startswith("\n")):
            wrong.append((name_of(file), line))
    assert not wrong


def test_folders_show_their_public_face_only():
    """``__init__`` holds a docstring, imports, ``__all__``, and what loads names late or under their old name."""
    allowed = {"", "__all__", "_HOMES", "_MOVED", "__getattr__", "__dir__", "if TYPE_CHECKING"}
    found = {name_of(file): {heading(node) for node in parse(file).body} - allowed for file in FOLDERS}
    assert not {file: names for file, names in found.items() if names}


def heading(node):
    """The name that a statement defines; "" for imports and docstrings."""
    if isinstance(node, (ast.Import, ast.ImportFrom)) or isinstance(getattr(node, "value", None), ast.Constant):
        return ""
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return f"if {ast.unparse(node.test)}" if isinstance(node, ast.If) else getattr(node, "name", ast.unparse(node))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda file: name_of(file.parent))
def test_public_face_lists_its_names(folder):
    """``__all__`` names what exists, and omits none of the names that are imported from the folder's own files.

    A folder inside a room may show nothing: its files are imported by name.
    """
    module = ".".join(["calibrant", *folder.relative_to(PACKAGE).parts[:-1]])
    shown = getattr(importlib.import_module(module), "__all__", [])
    assert shown or module.removeprefix("calibrant.") not in calibrant.__all__
    assert [name for name in shown if not has(module, name)] == []
    lines = [node for node in parse(folder).body if isinstance(node, ast.ImportFrom)]
    names = [(node.module, alias.asname or alias.name) for node in lines for alias in node.names]
    assert {name for home, name in names if home.startswith(f"{module}.") and name not in shown} == set()


def has(module, name):
    """Whether a module has an attribute or a submodule of this name; those of ``_HOMES`` are loaded late."""
    found = importlib.import_module(module)
    return (
        name in getattr(found, "_HOMES", ())
        or hasattr(found, name)
        or importlib.util.find_spec(f"{module}.{name}") is not None
    )
