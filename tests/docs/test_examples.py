"""Tests that every script in examples/ runs, with less training than by default."""

from __future__ import annotations

import inspect
import re
import runpy

import pytest

from calibrant import SelfCalibratedClassifier

from .pages import DOCS, ROOT

SMALL = {"epochs": 30, "folds": 3, "repeats": 1, "embedding": None, "members": ("network",)}
ELSEWHERE = {
    "huggingface_trainer.py": "tests/integrations/test_integrations.py",
    "lightning_callback.py": "tests/integrations/test_integrations.py",
    "plots_gallery.py": "tests/plots/test_displays.py",
    "rejection.py": "tests/docs/test_selective_study.py",
}


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run the ``main`` of a script in an empty folder, and return what it printed."""
    monkeypatch.chdir(tmp_path)
    defaults = inspect.unwrap(SelfCalibratedClassifier.__init__).__kwdefaults__
    for name, value in SMALL.items():
        monkeypatch.setitem(defaults, name, value)

    def run(name, *args, **given):
        runpy.run_path(str(ROOT / "examples" / name))["main"](*args, **given)
        return capsys.readouterr().out

    return run


def test_judge_predictions(run, tmp_path):
    out = run("judge_predictions.py", tmp_path)
    assert "before: Over-confident" in out
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_train_on_a_table(run, tmp_path):
    pytest.importorskip("pandas")
    out = run("train_on_a_table.py", tmp_path, rows=200)
    assert "prob_yes" in out
    assert (tmp_path / "model" / "report.html").exists()


def test_own_network(run):
    out = run("own_network.py", epochs=2, networks=1)
    assert "smooth ECE" in out
    assert float(re.search(r"largest difference to result.probs: (\S+)", out)[1]) < 1e-5


def test_image_service(run, tmp_path):
    out = run("image_service.py", tmp_path, epochs=100)
    assert "answered" in out
    assert "calibration error so far" in out


def test_new_method(run):
    out = run("new_method.py", epochs=20)
    assert "LearnedFocal" in out
    assert "learned γ" in out


@pytest.mark.slow
def test_wrong_labels(run):
    assert "of them were changed" in run("wrong_labels.py")


def test_every_example_is_listed_and_tested():
    scripts = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    listed = re.findall(r"^\| `(\w+\.py)`", (DOCS / "examples.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == scripts
    here = {f"{name.removeprefix('test_')}.py" for name in globals() if name.startswith("test_")}
    for name in set(scripts) - here:
        assert name in (ROOT / ELSEWHERE[name]).read_text(encoding="utf-8")
