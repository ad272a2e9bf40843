"""Tests of the command line as a whole: version, methods, help, encodings and what it imports."""

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
import calibrant
from calibrant.cli import main, shell
from tests.cli.cases import invoke

ROOT = Path(__file__).parents[2]


def plain(text):
    """What a usage error says, without colours, the box around it and its line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).replace("│", " ").split())


def test_version():
    assert invoke("--version").stdout == calibrant.__version__ + "\n"


def test_the_examples_run():
    assert doctest.testmod(shell).failed == 0


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "calibrant", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    for command in ("train", "predict", "evaluate", "calibrate", "apply", "info", "--version"):
        assert command in plain(done.stdout)
    for study in ("reproduce", "sweep", "ablate", "bench"):
        assert study not in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_characters_that_an_encoding_lacks_are_escaped(encoding):
    """The help has dots and lines that few encodings have."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "calibrant", "calibrate", "--help"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_typer_a_sentence_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    assert "calibrant[cli,report]" in capsys.readouterr().err


def test_commands_ask_for_nothing_heavy():
    """Read the command line's own modules under a bare package: none of them may import torch or NumPy."""
    assert importlib.util.find_spec("calibrant.cli.commands") is not None
    code = (
        "import sys, types\n"
        "bare = types.ModuleType('calibrant'); bare.__path__ = [sys.argv[1]]; sys.modules['calibrant'] = bare\n"
        "import calibrant.cli.commands\n"
        "print(sorted({'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib', 'jinja2'} & sys.modules.keys()))"
    )
    source = str(Path(calibrant.__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
