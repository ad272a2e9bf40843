"""Tests of `calibrant train` when it is killed: no partial files, and a rerun is not disturbed by what is left."""

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pandas")
import pandas as pd

from calibrant import SelfCalibratedClassifier
from calibrant.tables import Order, load_model, results, train
from tests.tables.conftest import churn

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
FILES = ("model.calibrant", "predictions.csv", "suspects.csv", "report.html", "metrics.json")


def order(folder):
    path = folder / "churn.csv"
    if not path.exists():
        churn().to_csv(path, index=False)
    return Order(path, "left?", folder / "out", risk=0.3)


def content(out):
    """Everything that a run wrote, except times."""
    metrics = json.loads((out / "metrics.json").read_text())
    del metrics["seconds"]
    model = load_model(out / "model.calibrant")
    model.about.pop("seconds")
    page = re.sub(r"<dt>training</dt><dd>[^<]*</dd>", "", (out / "report.html").read_text())
    texts = [(out / name).read_text() for name in ("predictions.csv", "suspects.csv")]
    return metrics, model.about, model.rule, page, texts


def check_whole(out):
    """Files that exist after a kill must be complete; metrics.json exists only if all others do."""
    if not out.exists():
        return
    found = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    assert found <= set(FILES)
    if "metrics.json" in found:
        assert found == set(FILES)
        json.loads((out / "metrics.json").read_text())
    if "model.calibrant" in found:
        load_model(out / "model.calibrant")
    if "predictions.csv" in found:
        assert len(pd.read_csv(out / "predictions.csv")) == 48


def killed_child(work):
    """Run a function in a child process that is expected to kill itself."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(7)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def kill_at(patch, owner, name, *, when=lambda *args: True, before=lambda *args: None):
    """Kill the process at the first call of a function for which `when` is true."""
    original = getattr(owner, name)

    def dying(*args, **kwargs):
        if when(*args):
            before(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    patch.setattr(owner, name, dying)


def half_a_model(classifier, path):
    Path(path).write_bytes(b"half of a file")


def kill_during_the_move(patch):
    def second_file(source, target):
        return target.name == "suspects.csv" and target.parent.name == "out"

    kill_at(patch, Path, "replace", when=second_file)


def test_killed_while_the_model_is_written(quick, tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    train(order(tmp_path / "whole"))
    (tmp_path / "broken").mkdir()
    broken = order(tmp_path / "broken")

    def work():
        kill_at(monkeypatch, SelfCalibratedClassifier, "save", before=half_a_model)
        train(broken)

    killed_child(work)
    check_whole(broken.out)
    assert not (broken.out / "metrics.json").exists()
    train(broken)
    check_whole(broken.out)
    assert content(broken.out) == content(tmp_path / "whole" / "out")
    assert {path.name for path in broken.out.iterdir()} == set(FILES)


def test_an_earlier_result_is_not_mixed_with_a_killed_one(quick, tmp_path, monkeypatch):
    first = order(tmp_path)
    train(first)
    other, before = replace(first, seed=1), content(first.out)

    def before_the_move():
        kill_at(monkeypatch, results, "write_text_whole")
        train(other)

    killed_child(before_the_move)
    assert content(first.out) == before  # the new files are not there yet

    def during_the_move():
        kill_during_the_move(monkeypatch)
        train(other)

    killed_child(during_the_move)
    check_whole(first.out)
    assert not (first.out / "metrics.json").exists()
    train(other)
    check_whole(first.out)
    assert content(first.out) != before
