"""Tests of the engine's structure: imports of tracing, and the call path in the docs."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "calibrant"


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
