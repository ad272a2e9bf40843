"""Tests of `calibrant predict`: the same predictions in pieces of any size, from files of any kind."""

import gzip
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
import pandas as pd

from calibrant import SelfCalibratedClassifier
from calibrant.data.columns import ColumnFormat
from calibrant.data.columns.read import read_chunks, read_columns
from calibrant.metrics import ece
from calibrant.tables import load_model, predict, save_model
from tests.tables.conftest import churn
from tests.tables.test_train import invoke, refused


def predictions(trained, path, out, **options):
    predict(trained[0] / "model.calibrant", path, out, **options)
    return (
        pd.read_parquet(out)
        if out.suffix == ".parquet"
        else pd.read_csv(out, sep="\t" if out.suffix == ".tsv" else ",")
    )


@pytest.fixture
def new(tmp_path):
    """Rows that training did not see, with one category that it does not know."""
    table = churn(100, seed=9).drop(columns="left?")
    table.loc[5, "plan"] = "gold"
    table.to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_the_size_of_the_pieces_does_not_matter(chunk, trained, new, tmp_path):
    whole = predictions(trained, new, tmp_path / "whole.csv")
    parts = predictions(trained, new, tmp_path / "parts.csv", chunk=chunk)
    assert list(whole["row"]) == list(range(1, 101))
    pd.testing.assert_frame_equal(whole, parts, rtol=1e-5)
    model = load_model(trained[0] / "model.calibrant")
    frame = pd.read_csv(new, dtype={"post code": str})[model.features]
    assert np.allclose(whole[["prob_no", "prob_yes"]], model.classifier.predict_proba(frame), atol=1e-6)
    assert (whole["predicted"] == model.classifier.predict(frame)).all()
    assert (whole["withheld"] == ~model.rule.accepts(whole["confidence"].to_numpy())).mean() > 0.98


@pytest.mark.parametrize("name", ["t.parquet", "t.tsv", "t.csv.gz", "t.parquet.gz"])
def test_all_kinds_of_files_give_the_same(name, trained, new, tmp_path):
    frame, path = pd.read_csv(new, dtype={"post code": str}), tmp_path / name
    if ".parquet" in name:
        frame.to_parquet(tmp_path / "t.parquet")
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress((tmp_path / "t.parquet").read_bytes()))
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    for end in (".csv", ".tsv", ".parquet"):
        found = predictions(trained, path, tmp_path / f"out{end}", chunk=33)
        wanted = predictions(trained, new, tmp_path / "wanted.csv")
        pd.testing.assert_frame_equal(found, wanted, rtol=1e-5, check_dtype=False)


def test_unseen_categories_are_reported(trained, new, tmp_path):
    done = invoke("predict", trained[0] / "model.calibrant", new, "--out", tmp_path / "out.csv", "--chunk", 30)
    assert done.exit_code == 0
    assert done.stderr.count("Note:") == 1
    assert "Note: Column 'plan' holds categories that training did not see (gold), which count as rare." in done.stderr


def test_columns_may_be_in_any_order_and_more_of_them(trained, new, tmp_path):
    frame = pd.read_csv(new, dtype=str)
    frame.insert(0, "customer", [f"c{k}" for k in range(100)])
    frame[frame.columns[::-1]].to_csv(tmp_path / "other.csv", index=False)
    found = predictions(trained, tmp_path / "other.csv", tmp_path / "out.csv", keep=["customer"], chunk=40)
    wanted = predictions(trained, new, tmp_path / "wanted.csv")
    assert list(found["customer"]) == [f"c{k}" for k in range(100)]
    pd.testing.assert_frame_equal(found.drop(columns="customer"), wanted)


def test_the_dropped_column_is_not_needed_and_others_are(trained, new, tmp_path):
    frame = pd.read_csv(new, dtype=str)
    frame.drop(columns="always").to_csv(tmp_path / "less.csv", index=False)
    predictions(trained, tmp_path / "less.csv", tmp_path / "out.csv")
    frame.rename(columns={"visits": "visit"}).to_csv(tmp_path / "lack.csv", index=False)
    found = refused(
        "predict", trained[0] / "model.calibrant", tmp_path / "lack.csv", "--out", tmp_path / "lack-out.csv"
    )
    assert "lack.csv lacks columns that the model was trained on: visits. Its columns are " in found
    assert not (tmp_path / "lack-out.csv").exists()


def test_with_labels_the_scores_are_printed(trained, tmp_path):
    table = churn(150, seed=4)
    table.loc[3, "left?"] = np.nan
    table.to_csv(tmp_path / "labelled.csv", index=False)
    summary = predict(trained[0] / "model.calibrant", tmp_path / "labelled.csv", tmp_path / "out.csv", chunk=40)
    found, labels = pd.read_csv(tmp_path / "out.csv"), table["left?"]
    known = labels.notna().to_numpy()
    assert (summary.rows, summary.labelled) == (150, 149)
    assert summary.accuracy == pytest.approx((found["predicted"] == labels)[known].mean())
    codes = (labels[known] == "yes").astype(int).to_numpy()
    probs = found[["prob_no", "prob_yes"]].to_numpy()[known]
    assert summary.ece == pytest.approx(ece(probs, codes), abs=1e-6)
    done = invoke("predict", trained[0] / "model.calibrant", tmp_path / "labelled.csv")
    assert f"Right on 149 rows with a label: {summary.accuracy:.1%}" in done.stderr
    assert len(done.stdout.splitlines()) == 151
    assert "calibrant evaluate" not in done.stderr


def test_with_labels_the_command_of_an_evaluation_is_printed(trained, tmp_path):
    out = tmp_path / "my out.csv"
    command = ("predict", trained[0] / "model.calibrant", trained[1], "--out", out)
    last = invoke(*command).stderr.splitlines()[-1]
    advice = f"calibrant evaluate '{out}' --labels 'left?'"
    assert last == f"To evaluate the predictions, add --keep 'left?' to this command, then run: {advice}"
    last = invoke(*command, "--keep", "left?").stderr.splitlines()[-1]
    assert last == f"To evaluate the predictions, run: {advice}"
    done = invoke(*shlex.split(last.partition("calibrant ")[2]), "--json")
    assert done.exit_code == 0, done.output
    assert "calibrant evaluate" not in invoke(*command, "--no-score").stderr


def test_a_label_that_the_model_does_not_know(trained, tmp_path):
    table = churn(20, seed=4)
    table.loc[3, "left?"] = "maybe"
    table.to_csv(tmp_path / "t.csv", index=False)
    model = trained[0] / "model.calibrant"
    found = refused("predict", model, tmp_path / "t.csv", "--out", tmp_path / "out.csv")
    assert "holds 'maybe' in 'left?'" in found
    assert not (tmp_path / "out.csv").exists()
    assert invoke("predict", model, tmp_path / "t.csv", "--no-score", "--out", tmp_path / "out.csv").exit_code == 0


def test_a_coverage_in_percent_is_refused(trained, new):
    done = invoke("predict", trained[0] / "model.calibrant", new, "--set-coverage", "90")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--set-coverage must be a fraction in (0, 1); got 90." in done.stderr


def test_sets_hold_the_predicted_class(trained, new, tmp_path):
    found = predictions(trained, new, tmp_path / "out.csv", set_coverage=0.9)
    assert all(p in s.split("|") for p, s in zip(found["predicted"], found["set"], strict=True))
    assert set(found["set"]) <= {"no", "yes", "no|yes"}
    model = load_model(trained[0] / "model.calibrant")
    sets = model.classifier.predict_set(pd.read_csv(new, dtype={"post code": str})[model.features], 0.9)
    assert [len(s.split("|")) for s in found["set"]] == sets.sum(axis=1).tolist()


def test_without_a_window_everything_is_withheld_with_a_note(trained, new, tmp_path):
    model = load_model(trained[0] / "model.calibrant")
    strict = model.classifier.rejection_rule(0.001, 0.999)
    assert not strict.found
    save_model(replace(model, rule=strict), tmp_path / "strict.calibrant")
    done = invoke("predict", tmp_path / "strict.calibrant", new, "--out", tmp_path / "out.csv")
    assert "all predictions are withheld, because training found no threshold" in done.stderr
    assert "errors below 0.001. Train again with a larger --risk, or with more rows." in done.stderr
    assert pd.read_csv(tmp_path / "out.csv")["withheld"].all()


def test_bad_input_gets_a_sentence(trained, new, tmp_path):
    model = trained[0] / "model.calibrant"
    (tmp_path / "model.calibrant").write_bytes(model.read_bytes()[:5000])
    (tmp_path / "empty.csv").write_text("")
    text = new.read_text().splitlines()
    (tmp_path / "short.csv").write_text("\n".join([*text[:60], "1,2", *text[60:]]) + "\n")
    frame = pd.read_csv(new, dtype=str)
    frame.loc[70, "visits"] = "many"
    frame.to_csv(tmp_path / "words.csv", index=False)
    cases = {
        "is not a": (tmp_path / "model.calibrant", new),
        "There is no file": (tmp_path / "no.calibrant", new),
        "empty.csv is empty": (model, tmp_path / "empty.csv"),
        "in line 61": (model, tmp_path / "short.csv"),
        "Column 'visits' of words.csv must hold numbers, as in the training table; got 'many' in row 71.": (
            model,
            tmp_path / "words.csv",
        ),
        "is a folder": (model, tmp_path),
    }
    for sentence, (own, path) in cases.items():
        found = refused("predict", own, path, "--out", tmp_path / "out.csv", "--chunk", 25)
        assert sentence in found
        assert not (tmp_path / "out.csv").exists()
    found = refused("predict", model, tmp_path / "no.csv", "--out", tmp_path / "out.csv")
    assert "no.csv. Check the name" in found
    assert "out.csv" not in found
    assert "must end in .csv" in refused("predict", model, new, "--out", tmp_path / "out.xls")
    assert "is a folder" in refused("predict", model, new, "--out", tmp_path)
    assert "has no column 'custom'" in refused("predict", model, new, "--keep", "custom", "--out", tmp_path / "out.csv")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".out", "out"))]


def test_a_classifier_saved_from_python_predicts_without_a_rule(quick, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    quick = {"epochs": 3, "folds": 2, "repeats": 1, "members": ("network",), "embedding": None}
    clf = SelfCalibratedClassifier((8,), random_state=0, **quick).fit(frame, (frame["a"] > 0).astype(int))
    clf.save(tmp_path / "clf.calibrant")
    frame.to_csv(tmp_path / "t.csv", index=False)
    predict(tmp_path / "clf.calibrant", tmp_path / "t.csv", tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found) == ["row", "predicted", "confidence", "prob_0", "prob_1"]
    del clf.feature_names_in_
    clf.save(tmp_path / "clf.calibrant")
    with pytest.raises(ValueError, match="without column names"):
        predict(tmp_path / "clf.calibrant", tmp_path / "t.csv", tmp_path / "out.csv")


def test_needs_no_matplotlib_or_jinja_and_stops_with_its_reader(trained):
    code = (
        "import sys\n"
        "sys.modules.update({m: None for m in ('matplotlib', 'jinja2')})\n"
        "from calibrant.cli import main\n"
        "main()\n"
    )
    folder, path = trained
    command = [sys.executable, "-c", code, "predict", str(folder / "model.calibrant"), str(path), "--chunk", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout.readline().startswith("row,predicted,confidence")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141


def test_standard_output_is_utf8_in_every_locale(trained, new):
    table = pd.read_csv(new)
    table["place"] = "東京"
    table.to_csv(new, index=False)
    command = [sys.executable, "-m", "calibrant", "predict", trained[0] / "model.calibrant", new, "--keep", "place"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert done.stdout.decode("utf-8").count("東京") == len(table)


TEXTS = {
    "quotes and breaks": 'a,b\n1,"x, ""y""\nz"\n2,"two\nlines"\n3,plain\n',
    "windows": "a,b\r\n1,x\r\n2,y\r\n3,z\r\n",
    "old mac": "a,b\r1,x\r2,y\r3,z\r",
    "mark of the encoding": "\ufeffa,b\n1,x\n2,y\n3,z\n",
    "semicolons and decimal commas": "a;b\n1,5;x\n2,25;y\n3,125;z\n",
    "inches": 'a,b\n1,5" pipe\n2,y\n3,z\n',
    "no last break": "a,b\n1,x\n2,y\n3,z",
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("rows", [1, 2, 50])
def test_pieces_of_text_are_those_of_the_whole(kind, rows, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(TEXTS[kind].encode())
    decimal = "," if "commas" in kind and ";" in TEXTS[kind] else "."
    whole = read_columns(path, decimal=decimal)
    parts = list(read_chunks(path, rows, {"a": ColumnFormat("numbers", decimal)}))
    assert sum(len(p["a"]) for p in parts) == 3
    assert max(len(p["a"]) for p in parts) <= rows
    assert [str(v) for p in parts for v in p["b"]] == [str(v) for v in whole["b"]]
    assert [float(v) for p in parts for v in p["a"]] == [float(v) for v in whole["a"]]


def test_an_open_quotation_mark_is_reported_before_memory_ends(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a,b\n1,"x\n' + "2,y\n" * 50_000)
    with pytest.raises(ValueError, match="every quotation mark is closed"):
        list(read_chunks(path, 10, {}))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory as Linux tells it")
def test_memory_does_not_grow_with_the_table(trained, tmp_path):
    """Ten times as many rows need hardly more memory."""
    text = trained[1].read_text().splitlines(keepends=True)
    code = (
        "import sys, resource\n"
        "from calibrant.tables import predict\n"
        "predict(sys.argv[1], sys.argv[2], sys.argv[3], chunk=2000)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    peaks = []
    for times in (100, 1000):
        path = tmp_path / f"{times}.csv"
        path.write_text("".join([text[0], *text[1:] * times]))
        command = [sys.executable, "-c", code, trained[0] / "model.calibrant", path, tmp_path / "out.csv"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, env=environment)
        peaks.append(int(done.stdout) * 1024)
        assert Path(tmp_path / "out.csv").read_bytes().count(b"\n") == 240 * times + 1
    assert peaks[1] - peaks[0] < 40e6


def test_a_summary_as_json(trained, new, tmp_path):
    model, out = trained[0] / "model.calibrant", tmp_path / "out.csv"
    done = invoke("predict", model, new, "--json")
    assert done.exit_code == 2
    assert "--json needs --out" in done.output
    content = json.loads(invoke("predict", model, new, "--out", out, "--json").stdout)
    assert content["rows"] == 100
    assert content["accuracy"] is None
    assert any("gold" in note for note in content["notes"])
    content = json.loads(invoke("predict", model, trained[1], "--out", out, "--json").stdout)
    found = pd.read_csv(out)
    right = found["predicted"] == pd.read_csv(trained[1])["left?"]
    assert content["accuracy"] == pytest.approx(right.mean())
    assert content["kept_accuracy"] == pytest.approx(right[~found["withheld"]].mean())


def test_copied_columns_do_not_replace_outputs(trained, new, tmp_path):
    table = pd.read_csv(new, dtype={"post code": str}).assign(row=-1, predicted="mine", id=7)
    table.to_csv(tmp_path / "clash.csv", index=False)
    found = predictions(trained, tmp_path / "clash.csv", tmp_path / "out.csv", keep=["row", "predicted", "id"])
    assert list(found)[:6] == ["row", "row (table)", "predicted (table)", "id", "predicted", "confidence"]
    assert found["row"].tolist() == list(range(1, 101))
    assert (found["row (table)"] == -1).all()
    assert set(found["predicted"]) <= {"no", "yes"}


def test_the_table_is_never_overwritten(trained, new, tmp_path):
    before = new.read_bytes()
    (tmp_path / "link.csv").symlink_to(new)
    for out in (new, tmp_path / "link.csv"):
        assert "must not be the table itself" in refused("predict", trained[0] / "model.calibrant", new, "--out", out)
    assert new.read_bytes() == before
