"""The package as a newcomer meets it."""

import ast
import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant
from calibrant import bilevel

ROOT = Path(__file__).parents[1]


def test_runs_from_the_source_folder_without_being_installed():
    """Version lookup included, and without any optional package."""
    code = (
        "import sys\n"
        "sys.modules.update({m: None for m in ('matplotlib', 'typer', 'jinja2', 'rich', 'torchmetrics')})\n"
        "import calibrant\n"
        "print(calibrant.__version__, calibrant.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import site; site.main()\n" + code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    version, file = done.stdout.split()
    assert version == calibrant.__version__
    assert Path(file).is_relative_to(ROOT / "src")


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(bilevel).failed == 0


# Each room may import from those named here: to its left in "data ─► models ─► losses ─► bilevel", and from the leaves.


ROOMS = {
    "data": {"_container", "_files", "_inputs", "_renamed"},
    "models": {"_renamed", "data"},
    "losses": {"_renamed", "data", "models", "metrics"},
    "bilevel": {"_renamed", "data", "models", "losses"},
    "metrics": {"_inputs"},
    "selective": {"_inputs", "_renamed", "metrics"},
    "posthoc": {"_files", "_inputs", "_renamed", "metrics"},
    "plots": {"_inputs", "metrics", "selective"},
    "methods": {
        "_device",
        "_files",
        "_inputs",
        "_jobs",
        "_renamed",
        "data",
        "models",
        "losses",
        "bilevel",
        "metrics",
        "posthoc",
    },
    "estimators": {
        "_device",
        "_files",
        "_inputs",
        "_renamed",
        "data",
        "models",
        "bilevel",
        "methods",
        "posthoc",
        "selective",
    },
    "integrations": {"bilevel", "data", "methods", "metrics", "models"},
    "export": {"_version", "_whole", "data", "models", "methods", "estimators"},
    "report": {"_inputs", "_renamed", "_version", "_whole", "data", "metrics", "plots", "posthoc", "selective"},
    "tables": {
        "_files",
        "_locks",
        "_renamed",
        "_version",
        "_whole",
        "_words",
        "bilevel",
        "data",
        "estimators",
        "methods",
        "metrics",
        "report",
        "selective",
    },
    "cli": {"_version", "_whole", "_words", "methods", "posthoc", "report", "tables"},
    "experiments": {
        "_device",
        "_inputs",
        "_jobs",
        "_locks",
        "_renamed",
        "_whole",
        "_words",
        "bilevel",
        "data",
        "estimators",
        "losses",
        "methods",
        "metrics",
        "models",
        "plots",
        "posthoc",
        "report",
        "selective",
    },
}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_from_their_left(room):
    found = set()
    for file in (ROOT / "src" / "calibrant" / room).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "calibrant":
                rest = node.module.partition(".")[2]
                found |= {rest.partition(".")[0]} if rest else {alias.name for alias in node.names}
    assert found - {room} <= ROOMS[room]
