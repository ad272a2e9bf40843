"""Commands as a user types them, a hand-made classifier, usable and unusable tables, and records of tables."""

import io
import json
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

from calibrant.methods import BO4SC, METHODS, Calibrated, Entry, Fitted, SelfCalibrated, Standard
from studies.__main__ import main
from studies.bo4sc import study as bo4sc
from studies.report import Results
from studies.sets import blobs
from studies.tables.data import FLOOR, SCORES
from tests.eager import train_eagerly


def invoke(*words):
    """Run `python -m studies` with these words: its exit code, and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
    stdout, stderr = out.getvalue(), err.getvalue()
    return SimpleNamespace(exit_code=code, stdout=stdout, stderr=stderr, output=stdout + stderr)


class Fixed(Fitted):
    """Predicts the given probabilities, whatever the inputs."""

    failure = None

    def __init__(self, probs, **extras):
        self.given, self.extras = probs, extras

    def probs(self, inputs):
        return self.given


def write_table(path, rows=120, classes=2, seed=0):
    data = blobs(rows, std=2.0, seed=seed)
    lines = ["a,b,colour,target"]
    for (a, b), label in zip(data.inputs, data.labels, strict=True):
        lines.append(f"{a:.4f},{b:.4f},{'red' if a > 0 else 'blue'},class {label % classes}")
    path.write_text("\n".join(lines) + "\n")
    return path


UNSUITABLE = {
    "few": ("a,target\n1,0\n2,1\n3,0\n", r"few\.csv: 3 samples are too few"),
    "gaps": ("a,target\n" + "1,x\n2,\n" * 10, r"gaps\.csv: 10 of the 20 labels in 'target' are missing"),
    "one-class": ("a,target\n" + "1,x\n2,x\n" * 10, r"one-class\.csv must hold at least two classes; got only x"),
    "same": ("a,target\n" + "1,x\n1,y\n" * 10, r"same\.csv: No column of the table can be used"),
    "unlabelled": ("a,b\n1,2\n", r"unlabelled\.csv has no column called target"),
    "broken": ("", r"broken\.csv is empty"),
}
"""Texts of tables by name, and what is said of each."""


def scored(values, methods, tables=None, seeds=1):
    """Complete records from an array (tables, methods); each seed adds 0.01 to every value."""
    found = []
    for t, row in enumerate(values):
        for method, value in zip(methods, row, strict=True):
            for seed in range(seeds):
                record = dict.fromkeys(SCORES, value + 0.01 * seed) | {"clipped": 0.0, "failure": None, "seconds": 1.0}
                record |= {"copied": 0.0}
                found.append(record | {"table": tables[t] if tables else f"t{t}", "method": method, "seed": seed})
    return found


def results_of(records, **config):
    about = {"rows": 1, "columns": 1, "classes": 2}
    known = {"methods": {r["method"]: "…" for r in records}, "tables": {r["table"]: about for r in records}}
    return Results(known | {"split": [0.6, 0.2, 0.2], "nll_floor": FLOOR} | config, {}, records)


SMALL = {"hidden": (8, 8), "epochs": 5}
TINY = {
    "standard": Standard(**SMALL),
    "standard-stopped": Standard(**SMALL, patience=5),
    "temperature": Calibrated("temperature", Standard(**SMALL)),
    "bo4sc": BO4SC(**SMALL),
    "self-calibrated": SelfCalibrated(**SMALL, folds=2),
}
"""Methods for a few steps, by the ids of the real ones."""


@contextmanager
def eager():
    """Tracing pays after hundreds of steps; these trainings have ten."""
    with pytest.MonkeyPatch.context() as patch:
        train_eagerly(patch)
        yield


def tiny_reproduce(out, **options):
    """`python -m studies reproduce bo4sc` on two sets, with methods that take no time."""
    settings, _ = bo4sc.chosen_settings()
    small = {name: settings[name] | {"epochs": 5, "hidden": [8, 8]} for name in ("blobs-1.7", "bac")}
    file = Path(out).with_suffix(".settings.json")
    file.write_text(json.dumps(small))
    with eager(), pytest.MonkeyPatch.context() as patch:
        for name, method in TINY.items():
            patch.setitem(METHODS, name, Entry(method, ""))
        patch.setattr("studies.bo4sc.figures.RELIABILITY_SET", "bac")
        given = {"seeds": 2, "device": "cpu", "sets": ("blobs-1.7", "bac"), "methods": list(TINY), "settings": file}
        return bo4sc.reproduce(out=out, **given | options)
