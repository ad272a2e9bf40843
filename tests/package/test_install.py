"""The package as a newcomer meets it."""

import doctest
import os
import subprocess
import sys
from pathlib import Path

import calibrant
from calibrant import bilevel

ROOT = Path(__file__).parents[2]


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
