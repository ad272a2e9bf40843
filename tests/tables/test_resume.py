"""Tests of `calibrant train` when it is killed: no partial files, and the rerun ends with the same result."""

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pandas")
import pandas as pd

from calibrant import SelfCalibratedClassifier
from calibrant.bilevel.checkpoint import save_run
from calibrant.methods import safeguards
from calibrant.tables import Order, load_model, results, resuming, train
from calibrant.tables.progress import FitProgress
from calibrant.tables.resuming import Checkpoints
from tests.tables.conftest import churn, make_quick

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


MOMENTS = {
    "the model is being written": lambda patch: kill_at(patch, SelfCalibratedClassifier, "save", before=half_a_model),
    "some files are in place": lambda patch: kill_at(
        patch,
        Path,
        "replace",
        when=lambda source, target: target.name == "suspects.csv" and target.parent.name == "out",
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_chosen_moment(moment, quick, tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    train(order(tmp_path / "whole"))
    (tmp_path / "broken").mkdir()
    broken = order(tmp_path / "broken")

    def work():
        MOMENTS[moment](monkeypatch)
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
        kill_at(monkeypatch, results, "write_suspects")
        train(other)

    killed_child(before_the_move)
    assert content(first.out) == before  # the new files are not there yet

    def during_the_move():
        MOMENTS["some files are in place"](monkeypatch)
        train(other)

    killed_child(during_the_move)
    assert not (first.out / "metrics.json").exists()
    train(other)
    assert content(first.out) != before


@pytest.fixture
def four_steps(quick, monkeypatch):
    """Networks of four outer steps with a checkpoint after each, and a list of the steps that this process made."""
    monkeypatch.setattr(resuming, "SECONDS", 0.0)
    made = []
    original = FitProgress.on_step

    def counted(self, run):
        made.append(run.step)
        original(self, run)

    monkeypatch.setattr(FitProgress, "on_step", counted)
    return made


def killed_after_two_steps(given):
    def work():
        def dying(self, run, original=Checkpoints.on_step):
            original(self, run)
            if run.step == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        Checkpoints.on_step = dying
        train(given)

    killed_child(work)


def test_half_trained_networks_are_continued(four_steps, tmp_path):
    told = []
    (tmp_path / "whole").mkdir()
    whole = replace(order(tmp_path / "whole"), settings={"epochs": 40})
    train(whole)
    assert four_steps == [1, 2, 3, 4]
    four_steps.clear()
    (tmp_path / "broken").mkdir()
    broken = replace(order(tmp_path / "broken"), settings={"epochs": 40})
    killed_after_two_steps(broken)
    train(broken, told.append)
    assert four_steps == [3, 4]
    assert any("continued" in line for line in told)
    assert content(broken.out) == content(whole.out)
    first, second = (load_model(run.out / "model.calibrant").classifier for run in (whole, broken))
    assert [len(row) for row in second.history_.values()] == [4, 4, 4]
    assert all((first.history_[name] == second.history_[name]).all() for name in first.history_)
    assert {path.name for path in broken.out.iterdir()} == set(FILES)


@pytest.mark.parametrize("change", ["damaged", "fresh", "other settings"])
def test_checkpoints_that_cannot_be_used_are_not_used(change, four_steps, tmp_path):
    broken = replace(order(tmp_path), settings={"epochs": 40})
    killed_after_two_steps(broken)
    (checkpoint,) = (broken.out / ".unfinished").glob("training-*/network-0.safetensors")
    if change == "damaged":
        checkpoint.write_bytes(b"half of a file")
    train(replace(broken, fresh=change == "fresh", risk=0.2 if change == "other settings" else broken.risk))
    assert four_steps == [1, 2, 3, 4]
    assert {path.name for path in broken.out.iterdir()} == set(FILES)


def test_a_full_disk_does_not_stop_the_training(four_steps, tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    def full(path, run):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            save_run(path, run)

    monkeypatch.setattr(safeguards, "save_run", full)
    given = replace(order(tmp_path), settings={"epochs": 40})
    train(given)
    assert four_steps == [1, 2, 3, 4]
    assert {path.name for path in given.out.iterdir()} == set(FILES)


CHILD = """
import sys
from pathlib import Path
import pytest
from tests.tables.conftest import make_quick
from tests.tables.test_resume import order
from calibrant.tables import train
make_quick(pytest.MonkeyPatch())
train(order(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path, monkeypatch):
    make_quick(monkeypatch)
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, str(Path(root, "src")), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", CHILD]
    (tmp_path / "whole").mkdir()
    environment = {**os.environ, "PYTHONPATH": path}
    begin = time.perf_counter()
    subprocess.run([*command, str(tmp_path / "whole")], check=True, env=environment, cwd=root)
    whole, wanted = time.perf_counter() - begin, content(tmp_path / "whole" / "out")
    moments = random.Random(0)
    for k in range(20):
        folder = tmp_path / f"broken{k}"
        folder.mkdir()
        order(folder)
        process = subprocess.Popen([*command, str(folder)], env=environment, cwd=root)
        time.sleep(whole * moments.uniform(0.2, 1.0))
        process.kill()
        process.wait()
        check_whole(folder / "out")
        train(order(folder))
        assert content(folder / "out") == wanted
