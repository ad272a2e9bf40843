"""The package as a newcomer meets it."""

import ast
import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import calibrant
from calibrant import bilevel
from calibrant.experiments import noise, page, table_report
from calibrant.report import read_results

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
    "data": set(),
    "models": {"data"},
    "losses": {"data", "models", "metrics"},
    "bilevel": {"data", "models", "losses"},
    "metrics": {"_inputs"},
    "selective": {"_inputs", "metrics"},
    "posthoc": {"_files", "_inputs", "metrics"},
    "plots": {"_inputs", "metrics", "selective"},
    "methods": {"_inputs", "data", "models", "losses", "bilevel", "metrics", "posthoc"},
    "estimators": {"_device", "_files", "_inputs", "data", "bilevel", "methods"},
    "report": {"_version", "metrics", "plots"},
    "cli": {"_version", "methods", "report"},
    "experiments": {
        "_device",
        "bilevel",
        "data",
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


def test_readme_example_runs():
    text = (ROOT / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})


def test_the_examples_on_the_engines_page_run():
    text = (ROOT / "docs" / "engine.md").read_text()
    x, y = torch.randn(60, 2), torch.randint(0, 2, (60,))
    names = {"torch": torch, "model": torch.nn.Linear(2, 2), "x": x, "y": y, "x_val": x[:20], "y_val": y[:20]}
    for block in text.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "engine.md", "exec"), names)


def test_the_examples_on_the_methods_page_run():
    text = (ROOT / "docs" / "methods.md").read_text()
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    names = {"x": x, "y": y, "x_val": x[:20], "y_val": y[:20]}
    for block in text.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "methods.md", "exec"), names)


@pytest.mark.parametrize(
    ("section", "file", "print_it", "at_least"),
    [
        ("The first paper, measured again", "bo4sc", page.to_terminal, 40),
        ("Labels that are wrong", "bo4sc-noise", lambda results: noise.tell(results).to_markdown(), 16),
        ("Twenty tables", "bo4sc-tables", table_report.to_terminal, 18),
    ],
)
def test_readme_shows_the_stored_experiments(section, file, print_it, at_least):
    """A command with ``--from results/….json`` prints the tables; no number in them is typed by hand."""
    text = (ROOT / "README.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    printed = print_it(read_results(ROOT / "results" / f"{file}.json"))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) >= at_least
    assert [row for row in rows if row not in printed] == []


def test_readmes_words_have_the_stored_numbers():
    text = (ROOT / "README.md").read_text().split("What we read from it")[1].split("\n## ")[0]
    printed = "".join(page.to_terminal(read_results(ROOT / "results" / f"bo4sc{k}.json")) for k in ("", "-more-seeds"))
    found = re.findall(r"\d+\.\d+ ± \d+\.\d+", text)
    assert len(found) == 4
    assert [number for number in found if number not in printed] == []


def test_readme_shows_the_stored_benchmark():
    """``python -m benchmarks --markdown`` prints the table; no number in it is typed by hand."""
    command = [sys.executable, "-m", "benchmarks", "--markdown"]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert table in (ROOT / "README.md").read_text()
