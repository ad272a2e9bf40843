"""Tests of `calibrant evaluate`, `calibrate` and `apply` on bad files, full disks and missing packages."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("pandas")
import pandas as pd

import calibrant
from tests.cli.cases import invoke


def bad_files(tmp_path):
    probs = {"prob_a": [0.5, 0.6, 0.7], "prob_b": [0.5, 0.4, 0.3]}
    tables = {
        "no labels": (probs, "--labels"),
        "no predictions": ({"x": [1, 2, 3], "label": ["a", "b", "a"]}, "--columns"),
        "one row": ({"prob_a": [0.5], "prob_b": [0.5], "label": ["a"]}, "at least 2 rows"),
        "NaN": ({"prob_a": [0.5, None, 0.7], "prob_b": [0.5, 0.4, 0.3], "label": ["a", "b", "a"]}, "row 2"),
        "unknown label": (probs | {"label": ["a", "b", "c"]}, "among the classes"),
        "no sums": (probs | {"prob_a": [0.5, 0.9, 0.7], "label": ["a", "b", "a"]}, "sum to 1"),
        "text": (probs | {"prob_a": ["x", "y", "z"], "label": ["a", "b", "a"]}, "must hold numbers"),
        "missing label": (probs | {"label": ["a", None, "b"]}, "missing"),
        "not correct": ({"confidence": [0.5, 0.6], "correct": ["maybe", "no"]}, "true/false"),
    }
    for name, (columns, words) in tables.items():
        path = tmp_path / f"{name}.csv"
        pd.DataFrame(columns).to_csv(path, index=False)
        yield path, words
    for name, content, words in (
        ("empty.csv", b"", "is empty"),
        ("head.csv", b"prob_a,prob_b,label\n", "no rows"),
        ("encoding.csv", "prob_a,prob_b,label\n0.5,0.5,é\n".encode("utf-32"), "UTF-8"),
        ("latin.csv", b"prob_a,prob_b,label\n0.5,0.5,\x81\n", "UTF-8"),
        ("broken.npz", b"PK nothing", "npz file of plain arrays"),
        ("broken.parquet", b"nothing", "Parquet"),
        ("what.xyz", b"a,b\n1,2\n", "must end in"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        yield path, words
    yield tmp_path, "is a folder"
    yield tmp_path / "nowhere.csv", "There is no file"


def test_bad_files_are_one_sentence_and_status_two(tmp_path):
    for path, words in bad_files(tmp_path):
        for command in (("evaluate", path), ("calibrate", path, "--method", "temperature", "--out", tmp_path / "c")):
            done = invoke(*command)
            assert done.exit_code == 2, (path, done.output, done.exception)
            assert done.stderr.startswith("calibrant: "), (path, done.stderr)
            assert len(done.stderr.splitlines()) == 1, done.stderr
            if command[0] == "evaluate":
                assert words in done.stderr, (path, done.stderr)
            assert "Traceback" not in done.output
        assert not (tmp_path / "c").exists()


def test_other_mistakes_are_sentences_too(table, tmp_path):
    good = table()
    short = tmp_path / "short.csv"
    pd.read_csv(good).head(10).to_csv(short, index=False)
    other = tmp_path / "other.csv"
    frame = pd.read_csv(good)
    frame["label"] = frame["label"].to_numpy()[::-1]
    frame.to_csv(other, index=False)
    calibrator = tmp_path / "c"
    assert invoke("calibrate", good, "--method", "temperature", "--out", calibrator).exit_code == 0
    for arguments, words in (
        (("evaluate", good, "--labels", "churn"), "no column 'churn'"),
        (("evaluate", good, "--group", "town"), "no column 'town'"),
        (("evaluate", good, "--recalibrate", "magic"), "calibrant: --recalibrate must be one of 'auto', 'temperature'"),
        (
            ("calibrate", good, "--out", "c", "--method", "magic"),
            "calibrant: --method must be one of 'auto'",
        ),
        (("evaluate", good, "--out", tmp_path), "is a folder"),
        (("evaluate", good, "--out", tmp_path / "no" / "r.html"), "does not exist"),
        (("evaluate", good, short), "must predict the same rows"),
        (("evaluate", good, other), "same labels"),
        (("evaluate", good, table("pairs", "pairs.csv")), "same kind of predictions"),
        (("calibrate", good, "--out", tmp_path), "is a folder"),
        (("apply", good, good, "--out", tmp_path / "o.csv"), "not a calibrator"),
        (("apply", calibrator, good, "--out", tmp_path / "o.txt"), "must end in"),
        (("apply", calibrator, table("pairs", "pairs.csv"), "--out", tmp_path / "o.csv"), "must hold"),
    ):
        done = invoke(*arguments)
        assert done.exit_code == 2, (arguments, done.output, done.exception)
        assert words in done.stderr, (arguments, done.stderr)
        assert len(done.stderr.splitlines()) == 1


def test_no_permission_is_a_sentence(table, tmp_path, monkeypatch):
    path = table()
    with monkeypatch.context() as patched:  # root may read everything, so the refusal is played
        patched.setattr(os, "access", lambda *_: False)
        done = invoke("evaluate", path)
    assert (done.exit_code, "no permission" in done.stderr) == (2, True)

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    done = invoke("evaluate", path, "--out", tmp_path / "r.html")
    assert (done.exit_code, "no permission" in done.stderr) == (2, True)
    assert not (tmp_path / "r.html").exists()


def test_a_full_disk_leaves_the_old_file(table, tmp_path, monkeypatch):
    out = tmp_path / "r.html"
    out.write_text("old")

    def full(self, *_args, **_kwargs):
        with self.open("w") as stream:
            stream.write("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    done = invoke("evaluate", table(), "--out", out)
    assert (done.exit_code, "No space left on device" in done.stderr) == (2, True)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "r.html"]


def test_no_drawing_package_is_needed(table):
    code = (
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('matplotlib', 'jinja2'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "from calibrant.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "evaluate", str(table())], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Over-confident by" in done.stdout


def test_a_command_names_the_extra_that_it_misses(table, tmp_path, monkeypatch):
    path, calibrator, out = table(), tmp_path / "c", tmp_path / "o.csv"
    assert invoke("calibrate", path, "--method", "platt", "--out", calibrator).exit_code == 0
    for package, extra, *command in (
        ("jinja2", "report", "evaluate", path, "--out", tmp_path / "x.html"),
        ("pandas", "tables", "apply", calibrator, path, "--out", out),
        ("pandas", "tables", "train", path, "--target", "label", "--out", tmp_path / "model"),
        ("pyarrow.parquet", "tables", "evaluate", table(name="b.parquet")),
    ):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)
            done = invoke(*command)
        assert done.exit_code == 2
        assert f"pip install 'calibrant[{extra}]'" in done.stderr
    assert not (tmp_path / "model").exists()


def test_predicted_must_be_columns_of_a_model_with_probs():
    probs, labels = np.full((4, 2), 0.5), [0, 1, 0, 1]
    assert calibrant.evaluate(probs, labels, predicted=[0, 1, 0, 1]).models["model"].measures["accuracy"].value == 1
    for wrong in ([0, 1, 0, 2], [0, 1, 0], [0.0, 1.0, 0.0, 1.0], [-1, 0, 0, 0]):
        with pytest.raises(ValueError, match="predicted must hold 4 columns of probs, 0 to 1"):
            calibrant.evaluate(probs, labels, predicted=wrong)
    with pytest.raises(ValueError, match="predicted must name models with probs; got other"):
        calibrant.evaluate({"one": probs}, labels, predicted={"other": [0, 1, 0, 1]})
