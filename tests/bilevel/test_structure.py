"""Tests of the engine's structure: imports of tracing, private parts of torch, and the call path in the docs."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "calibrant"
# Read without importing the package, which would fail with a less helpful message.
PARTS = runpy.run_path(str(SOURCE / "bilevel" / "tracing" / "private_parts.py"))["PRIVATE_PARTS"]


def find(name):
    """The object with a dotted name."""
    found, path = importlib.import_module("torch"), "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(found, part):
            importlib.import_module(path)
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", PARTS)
def test_torch_still_has_this_part(name):
    try:
        find(name)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"torch no longer has {name}, which serves this purpose: {PARTS[name]}. {error}")


def test_a_missing_part_is_noticed():
    with pytest.raises((ImportError, AttributeError)):
        find("torch._guards.no_such_part")


def test_every_private_import_is_listed():
    """Imports whose path has a part with a leading underscore, in both packages."""
    pattern = re.compile(r"^\s*from (torch[\w.]*) import (.+)$", re.MULTILINE)
    missing = set()
    for file in [*(SOURCE / "bilevel").rglob("*.py"), *(SOURCE / "models").rglob("*.py")]:
        for module, names in pattern.findall(file.read_text()):
            for name in names.split(","):
                full = f"{module}.{name.split(' as ')[0].strip()}"
                if "._" in full and not any(part.startswith(full) for part in PARTS):
                    missing.add(f"{full} in {file.name}")
    assert not missing


def test_the_drawn_path_to_a_gradient_exists():
    """Every function that docs/engine.md draws is defined in the file next to it."""
    text = (SOURCE.parents[1] / "docs" / "engine.md").read_text()
    drawing = text.split("## From `solve` to a gradient")[1].split("```")[1]
    rows = re.findall(r"(\w[\w.]*) +([\w/]+\.py)", drawing)
    assert len(rows) > 12
    for name, file in rows:
        source = (SOURCE / "bilevel" / file).read_text()
        owner, _, function = name.rpartition(".")
        assert f"def {function}(" in source, name
        assert not owner or f"class {owner}" in source, name


def test_other_rooms_enter_tracing_by_its_door():
    """Files outside the package import its names, not its modules."""
    inside = SOURCE / "bilevel" / "tracing"
    pattern = re.compile(r"calibrant\.bilevel\.tracing\.\w+ import")
    files = [file for file in SOURCE.rglob("*.py") if not file.is_relative_to(inside)]
    assert [str(file) for file in files if pattern.search(file.read_text())] == []
