"""docs/selective.md and examples/rejection.py run, and show the numbers of the stored study."""

import re
import runpy
from pathlib import Path

import pytest

from calibrant import SelfCalibratedClassifier

ROOT = Path(__file__).parents[1]


@pytest.fixture
def brief(monkeypatch):
    """Train the classifier for a few steps: what is tested is the code around it."""
    defaults = SelfCalibratedClassifier.__init__.__kwdefaults__
    for name, value in (("epochs", 30), ("folds", 3), ("members", ("network",))):
        monkeypatch.setitem(defaults, name, value)


def test_the_code_blocks_run(brief):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/selective.md").read_text(), flags=re.S)
    assert len(blocks) >= 7
    names = {}
    exec(compile("\n".join(blocks), "docs/selective.md", "exec"), names)
    assert names["rule"].found
    assert names["sets"].shape == (len(names["y_new"]), 2)


def test_the_example_runs(brief, capsys):
    runpy.run_path(str(ROOT / "examples/rejection.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "chosen for risk 0.02" in printed or "No window was found" in printed
    assert "aps: " in printed
