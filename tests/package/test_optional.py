"""The package without optional packages: nothing asks for them before they are needed, and errors name the extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant

from .source import PACKAGE, ROOT

OPTIONAL = (
    *("matplotlib", "typer", "jinja2", "rich", "pandas", "pyarrow", "PIL", "onnx", "ray", "lightning", "transformers"),
    *("tensorboard", "torchmetrics", "netcal", "probmetrics", "relplot", "numba", "lightgbm"),
)
CODE = """
import json, sys
tried, optional = [], set(sys.argv[1:])

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in optional:
            frame = sys._getframe(1)
            while "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            tried.append(f"{name} in {frame.f_code.co_filename}")
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import calibrant
for name in calibrant.__all__:
    getattr(calibrant, name)
found = {"version": calibrant.__version__, "file": calibrant.__file__, "tried": list(tried)}

import numpy as np
from calibrant import plots
from calibrant.data import TableEncoder, read_columns

def error(function, *arguments):
    try:
        function(*arguments)
    except ImportError as error:
        return str(error)

found["encoded"] = TableEncoder().fit_transform(np.eye(3)).shape
data = plots.prepare_reliability(confidence=[0.5, 0.9], correct=[0, 1])
found["plots"] = error(plots.ReliabilityDisplay(data).plot)
open("t.parquet", "w").write("PAR1")
found["tables"] = error(read_columns, "t.parquet")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """What a process prints that has no optional package and finds calibrant in its source folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-S", "-c", f"import site; site.main()\n{CODE}", *OPTIONAL]
    folder = tmp_path_factory.mktemp("empty")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=folder)
    return json.loads(done.stdout)


def test_runs_from_the_source_folder_without_being_installed(without):
    assert without["version"] == calibrant.__version__
    assert Path(without["file"]).is_relative_to(ROOT / "src")


def test_importing_every_room_asks_for_no_optional_package(without):
    """scikit-learn may ask for some, but no file of this package."""
    assert [each for each in without["tried"] if str(PACKAGE) in each] == []


@pytest.mark.parametrize("extra", ["plots", "tables"])
def test_what_needs_an_optional_package_names_the_extra(without, extra):
    assert f"pip install 'calibrant[{extra}]'" in without[extra]
    assert without["encoded"] == [3, 3]
