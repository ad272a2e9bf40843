"""Tests of `calibrant evaluate`, `calibrate` and `apply` on good and bad files."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

pytest.importorskip("typer")
pytest.importorskip("pandas")
import pandas as pd

import calibrant
from calibrant.cli import shell
from calibrant.posthoc import Temperature, load_calibrator, save_calibrator
from calibrant.report.evaluation.files import read_predictions
from calibrant.report.evaluation.judging import halves, judge_files
from tests.cli.cases import NAMES, as_json, invoke, logits_and_labels


def reference(n_classes=3):
    logits, labels = logits_and_labels(n_classes=n_classes)
    return calibrant.metrics.ece(np.exp(logits), labels), calibrant.metrics.nll(np.exp(logits), labels)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet", "a.npz"])
def test_every_format_gives_the_numbers_of_the_metrics(table, name):
    measures = as_json("evaluate", table(name=name))["models"][0]["measures"]
    ece, nll = reference()
    assert measures["ece"]["value"] == pytest.approx(ece)
    assert measures["nll"]["value"] == pytest.approx(nll)


def test_bins_and_level_are_those_of_the_options(table):
    plain, other = (as_json("evaluate", table(), *o)["models"][0] for o in ((), ("--bins", "4", "--level", "0.8")))
    logits, labels = logits_and_labels()
    assert other["measures"]["ece"]["value"] == pytest.approx(calibrant.metrics.ece(np.exp(logits), labels, bins=4))
    widths = [model["measures"]["nll"]["high"] - model["measures"]["nll"]["low"] for model in (plain, other)]
    assert widths[1] < 0.8 * widths[0]


@pytest.mark.parametrize(
    ("kind", "n_classes", "options"),
    [
        ("numbers", 3, ()),
        ("named", 3, ("--labels", "churn")),
        ("logits", 3, ()),
        ("score", 2, ()),
        ("score", 2, ("--positive", "yes")),
        ("logit", 2, ()),
        ("pairs", 3, ()),
        ("probs", 3, ("--columns", "prob_cat", "prob_dog", "prob_emu")),
    ],
)
def test_every_form_is_recognised(table, kind, n_classes, options):
    # Lists stand before the file on purpose: they must not swallow it.
    measures = as_json("evaluate", *options, table(kind))["models"][0]["measures"]
    assert measures["ece"]["value"] == pytest.approx(reference(n_classes)[0])


def test_all_tools_take_the_decimal_mark_and_the_encoding(table, tmp_path):
    plain, german, out = table(), tmp_path / "german.csv", tmp_path / "out.csv"
    frame = pd.read_csv(plain).assign(ort="Köln")
    frame.to_csv(german, sep=";", decimal=",", index=False, encoding="cp1252")
    options = ("--decimal", ",", "--encoding", "cp1252")
    wanted = as_json("evaluate", plain)["models"][0]["measures"]["ece"]["value"]
    found = as_json("evaluate", german, *options)["models"][0]["measures"]["ece"]["value"]
    assert found == pytest.approx(wanted)
    as_json("calibrate", german, *options, "--method", "temperature", "--out", tmp_path / "t.calibrator")
    as_json("apply", tmp_path / "t.calibrator", german, *options, "--out", out)
    names = [name for name in frame if name.startswith("prob_")]
    raw = pd.read_csv(out)[[f"raw_{name}" for name in names]].to_numpy()
    np.testing.assert_allclose(raw, frame[names].to_numpy(), atol=1e-6)


def test_the_other_label_turns_a_score_round(table):
    path = table("score")
    right, turned = (as_json("evaluate", path, "--positive", p)["models"][0]["measures"] for p in ("yes", "no"))
    assert right["accuracy"]["value"] == pytest.approx(1 - turned["accuracy"]["value"], abs=0.01)


def test_files_side_by_side_with_groups_and_a_page(table, tmp_path):
    logits, labels = logits_and_labels()
    better = softmax(logits / 2, axis=1)
    first = table()
    second = table(name="b.csv", **{f"prob_{name}": better[:, k] for k, name in enumerate(NAMES)})
    out = tmp_path / "report.html"
    done = invoke("evaluate", first, second, "--group", "country", "--out", out)
    assert done.exit_code == 0, done.output
    assert "b minus a" in done.output
    assert "groups confidence is off" in done.output
    assert f"Written: {out}" in done.output
    page = out.read_text()
    assert "FR" in page
    content = as_json("evaluate", first, second, "--group", "country")
    rows = np.arange(len(labels))
    gain = (-np.log(better[rows, labels]) + logits[rows, labels]).mean()
    assert content["differences"][0]["nll"]["value"] == pytest.approx(gain)
    assert {row["name"] for row in content["models"][0]["groups"]} == {"FR", "DE"}


def test_rows_are_shown_unless_they_are_private(table):
    path = table(secret=[f"secret-{i}" for i in range(600)])
    assert "secret-" in json.dumps(as_json("evaluate", path))
    assert "secret-" not in json.dumps(as_json("evaluate", path, "--no-rows"))


@pytest.mark.parametrize("kind", ["probs", "logits", "score", "pairs"])
def test_recalibration_fits_one_half_and_judges_the_other(table, kind):
    method = "isotonic-confidence" if kind == "pairs" else "temperature"
    content = as_json("evaluate", table(kind), "--recalibrate", method)
    before, after = content["models"]
    assert after["name"] == f"a + {method}"
    assert before["n"] == after["n"] == 300
    assert after["measures"]["nll"]["value"] < before["measures"]["nll"]["value"]
    assert content["differences"][0]["minus"] == "a"


def test_the_halves_share_no_row_and_every_class(table):
    labels = logits_and_labels()[1]
    held, rest = halves(labels, 0)
    assert sorted([*held, *rest]) == list(range(600))
    for k in range(3):
        assert abs((labels[held] == k).sum() - (labels[rest] == k).sum()) <= 1
    file = read_predictions(table())
    result, fitted = judge_files([file], recalibrate="temperature")
    alone = Temperature(from_probs=True).fit(file.values[rest], labels[rest])
    assert fitted["a"].temperature_ == pytest.approx(alone.temperature_, rel=1e-9)
    after = alone.predict_proba(file.values[held])
    wanted = calibrant.metrics.nll(after, labels[held])
    assert result.models["a + temperature"].measures["nll"].value == pytest.approx(wanted)


def test_calibrate_and_apply(table, tmp_path):
    calibrator, out = tmp_path / "c.calibrator", tmp_path / "new.csv"
    done = invoke("calibrate", table(), "--method", "vector", "--out", calibrator)
    assert done.exit_code == 0, done.output
    mask = os.umask(0o022)
    os.umask(mask)
    assert stat.S_IMODE(calibrator.stat().st_mode) == 0o666 & ~mask
    done = invoke("apply", calibrator, table(), "--out", out)
    assert done.exit_code == 0, done.output
    frame = pd.read_csv(out)
    logits, _ = logits_and_labels()
    wanted = load_calibrator(calibrator).predict_proba(np.exp(logits))
    np.testing.assert_allclose(frame[[f"prob_{name}" for name in NAMES]], wanted, atol=1e-9)
    assert list(frame["id"]) == list(range(600))
    np.testing.assert_array_equal(frame["predicted"], NAMES[wanted.argmax(axis=1)])
    # Columns in another order are put right by their names.
    turned = pd.read_csv(table())[["prob_emu", "id", "prob_cat", "prob_dog"]]
    turned.to_csv(tmp_path / "turned.csv", index=False)
    assert invoke("apply", calibrator, tmp_path / "turned.csv", "--out", out).exit_code == 0
    np.testing.assert_allclose(pd.read_csv(out)["prob_emu"], wanted[:, 2], atol=1e-9)


def test_a_reader_that_stops_reading_does_not_fail_the_command(table, tmp_path):
    out, calibrator = tmp_path / "r.html", tmp_path / "c"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for command in (
        ["evaluate", table(), "--out", out],
        ["calibrate", table(), "--method", "platt", "--out", calibrator],
    ):
        line = [sys.executable, "-m", "calibrant", *map(str, command)]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == shell.BROKEN_PIPE
    assert out.read_text().rstrip().endswith("</html>")
    assert load_calibrator(calibrator).n_features_in_ == 3


@pytest.mark.parametrize("method", ["platt", "isotonic-confidence", "temperature"])
def test_a_confidence_is_calibrated_or_the_method_is_refused(tmp_path, method):
    confidence = np.linspace(0.25, 0.99, 1500)
    correct = np.diff(np.floor(np.cumsum(0.15 + 0.9 * (confidence - 0.25))), prepend=0).astype(bool)
    path, calibrator, out = tmp_path / "a.csv", tmp_path / "c", tmp_path / "out.csv"
    pd.DataFrame({"confidence": confidence, "correct": correct}).to_csv(path, index=False)
    done = invoke("calibrate", path, "--method", method, "--out", calibrator)
    if done.exit_code:
        assert done.exit_code == 2
        assert done.stderr.startswith(f"calibrant: {method} cannot calibrate a confidence")
        assert f"{method} cannot calibrate" in invoke("evaluate", path, "--recalibrate", method).stderr
        assert not calibrator.exists()
        two_classes = Temperature(from_probs=True).fit(confidence, correct)
        save_calibrator(two_classes, calibrator)
        assert "never moves across 1/2" in invoke("apply", calibrator, path, "--out", out).stderr
        return
    assert invoke("apply", calibrator, path, "--out", out).exit_code == 0
    after = pd.read_csv(out)["confidence"].to_numpy()
    before_error, after_error = (calibrant.metrics.ece(confidence=c, correct=correct) for c in (confidence, after))
    assert after_error < before_error / 2


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("kind", ["probs", "logits", "score", "pairs"])
def test_apply_keeps_columns_and_compares_with_its_input(table, tmp_path, kind, suffix):
    wide = {"p_age": 1.5, "p_size": 2.5} if kind in ("probs", "logits") else {}  # not predictions, but read like some
    path = table(kind, "raw.csv", file="x.png", Predicted="dog", **wide)
    calibrator, out = tmp_path / "c", tmp_path / f"applied{suffix}"
    assert invoke("calibrate", path, "--method", "isotonic", "--out", calibrator).exit_code == 0
    done = invoke("apply", calibrator, path, "--out", out)
    assert done.exit_code == 0, done.output
    before = pd.read_csv(path)
    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet, ".npz": lambda p: pd.DataFrame(dict(np.load(p)))}
    after = readers[suffix](out)
    renamed = {"Predicted": "Predicted" if kind == "pairs" else "Predicted_raw", "confidence": "confidence_raw"}
    for name, column in before.items():
        kept = f"raw_{name}" if name.startswith(("prob_", "logit_", "p_")) else renamed.get(name, name)
        assert after[kept].astype(column.dtype).tolist() == column.tolist(), name
    compared = as_json("evaluate", path, out)
    assert [model["name"] for model in compared["models"]] == ["raw", "applied"]
    assert compared["models"][1]["measures"] == as_json("evaluate", out)["models"][0]["measures"]
    assert compared["differences"][0]["nll"]["value"] < 0


def test_nameless_arrays_compare_with_the_output_of_apply(table, tmp_path):
    logits, labels = logits_and_labels()
    calibrator, out = tmp_path / "c", tmp_path / "applied.csv"
    for classes in (np.arange(3), np.arange(1, 4), NAMES):
        path = tmp_path / "raw.npz"
        np.savez(path, probs=np.exp(logits), labels=classes[labels], image=np.zeros((600, 2, 2)))
        assert invoke("calibrate", path, "--method", "vector", "--out", calibrator).exit_code == 0
        assert invoke("apply", calibrator, path, "--out", out).exit_code == 0
        frame = pd.read_csv(out)
        assert {"raw_probs_0", "image_3", "labels", f"prob_{classes[2]}"} <= set(frame)
        gain = as_json("evaluate", path, out)["differences"][0]["nll"]["value"]
        frame[[*frame.columns[::-1]]].to_csv(out, index=False)  # classes are matched by name, in any order
        assert as_json("evaluate", path, out)["differences"][0]["nll"]["value"] == pytest.approx(gain, rel=1e-9)
        assert gain < 0
    two = frame[frame["labels"] != "emu"]
    two.to_csv(tmp_path / "a.csv", index=False)
    two.rename(columns={"prob_emu": "prob_cow"}).to_csv(tmp_path / "b.csv", index=False)
    assert "must have the same classes" in invoke("evaluate", tmp_path / "a.csv", tmp_path / "b.csv").stderr


def test_the_predicted_class_of_a_file_is_judged(table, tmp_path):
    """A calibrated confidence can be so low that another class has the largest probability."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([2.0, 2.0, 2.0], 600)
    wrong = np.where(probs.max(axis=1) < 0.6, (probs.argmax(axis=1) + 1) % 3, probs.argmax(axis=1))
    path = table(**{f"prob_{name}": probs[:, k] for k, name in enumerate(NAMES)}, label=NAMES[wrong])
    calibrator, out = tmp_path / "c", tmp_path / "applied.csv"
    assert invoke("calibrate", path, "--method", "isotonic-confidence", "--out", calibrator).exit_code == 0
    assert invoke("apply", calibrator, path, "--out", out).exit_code == 0
    before, after = (as_json("evaluate", p)["models"][0]["measures"] for p in (path, out))
    assert after["accuracy"] == before["accuracy"]
    assert after["ece"]["value"] < 0.01 < before["ece"]["value"]
    frame = pd.read_csv(out).drop(columns="predicted")
    frame.to_csv(out, index=False)
    assert as_json("evaluate", out)["models"][0]["measures"]["accuracy"] != before["accuracy"]


@pytest.mark.slow
def test_auto_shows_what_it_compared(table, tmp_path):
    done = invoke("calibrate", table(), "--out", tmp_path / "c")
    assert done.exit_code == 0, done.output
    assert "structured-matrix" in done.output
    assert "Chosen: " in done.output
    content = as_json("evaluate", table(), "--recalibrate", "auto")
    names = [entry["name"] for entry in load_calibrator(tmp_path / "c").comparison_]
    assert content["chosen"]["a"] in names


def test_a_list_ends_at_a_file(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("x")
    args = ["--columns", "a", "b", str(file), "c"]
    spread = shell.spread(args, {"--columns"}, is_argument=os.path.exists)
    assert spread == ["--columns", "a", "--columns", "b", str(file), "c"]


def test_calibrators_that_keep_the_class_report_that_class(tmp_path):
    """If the model is right in two of ten cases, another class becomes more likely, but its answer stays."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 2000)
    top = np.where(random.random(2000) < 0.2, labels, (labels + random.integers(1, 3, 2000)) % 3)
    share = random.uniform(0.5, 0.9, 2000)
    probs = (1 - share)[:, None] * np.array([0.5, 0.5, 0.5]) + np.zeros((2000, 3))
    probs[np.arange(2000), top] = share
    frame = pd.DataFrame(probs, columns=["prob_0", "prob_1", "prob_2"]).assign(label=labels)
    frame.to_csv(tmp_path / "a.csv", index=False)
    result, fitted = judge_files([read_predictions(tmp_path / "a.csv")], recalibrate="isotonic-confidence")
    before, after = result.models["a"], result.models["a + isotonic-confidence"]
    sample = result.samples["a + isotonic-confidence"]
    assert (sample.probs.argmax(1) != sample.predicted).any()
    np.testing.assert_array_equal(sample.predicted, result.samples["a"].predicted)
    assert after.measures["accuracy"] == before.measures["accuracy"]
    assert after.measures["ece"].value < before.measures["ece"].value
    held, _ = halves(labels, 0)
    confidence = fitted["a"].confidence(probs[held])
    assert after.mean_confidence == pytest.approx(np.mean(confidence))
    assert result.differences[0]["accuracy"]["value"] == 0


def test_weights_of_rows_are_a_column(table, tmp_path):
    frame = pd.read_csv(table())
    frame["people"] = np.random.default_rng(0).integers(1, 5, len(frame))
    frame.to_csv(tmp_path / "w.csv", index=False)
    done = invoke("evaluate", tmp_path / "w.csv", "--weight", "people", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["models"][0]
    rows = frame.loc[frame.index.repeat(frame["people"])].drop(columns="people")
    rows.to_csv(tmp_path / "copies.csv", index=False)
    copied = json.loads(invoke("evaluate", tmp_path / "copies.csv", "--json").stdout)["models"][0]
    for key in ("accuracy", "nll", "ece"):
        assert found["measures"][key]["value"] == pytest.approx(copied["measures"][key]["value"])
    assert found["weighted"]
    done = invoke("evaluate", tmp_path / "w.csv", "--weight", "people", "--recalibrate", "temperature", "--json")
    assert done.exit_code == 0, done.output
    for arguments, words in (
        (("--weight", "none"), "has no column 'none'"),
        (("--weight", "label"), "must hold numbers"),
    ):
        done = invoke("evaluate", tmp_path / "w.csv", *arguments)
        assert done.exit_code == 2
        assert words in done.output


def test_mistakes_have_the_row_numbers_of_the_file(table):
    """Row 1 is the first below the header, also if half of the rows were used to fit a calibrator."""
    path = table()
    known = pd.read_csv(path)
    for options in ((), ("--recalibrate", "temperature")):
        for mistake in as_json("evaluate", path, *options)["models"][0]["mistakes"]:
            row = known.iloc[mistake["row"] - 1]
            assert str(row["id"]) == mistake["values"]["id"]
            assert row["label"] == mistake["label"]
    first = as_json("evaluate", table(name="a.npz"))["models"][0]["mistakes"][0]
    with np.load(path.with_suffix(".npz")) as arrays:
        assert arrays["probs"][first["row"]].max() == pytest.approx(first["confidence"])


def test_json_of_every_command(table, tmp_path):
    calibrator, out = tmp_path / "c", tmp_path / "out.csv"
    content = as_json("calibrate", table("pairs"), "--method", "platt", "--out", calibrator)
    assert content == {"method": "platt", "rows": 600, "file": str(calibrator)}
    assert as_json("apply", calibrator, table("pairs"), "--out", out) == {"rows": 600, "file": str(out)}
    found = as_json("info")
    assert found["versions"]["calibrant"] == calibrant.__version__
    assert found["optional"]["pandas"] == pd.__version__
    assert "pandas" in invoke("info").output


def test_help_is_wrapped_to_the_terminal():
    assert shell.wrapped("One\n  line.\n\nTwo:\n\na b") == "One line.\n\nTwo:\n\na b"


def test_the_documented_keys_are_printed(table):
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| `models")]
    options = ("--group", "country", "--json")
    content = json.loads(invoke("evaluate", table(), table("probs", "b.csv"), *options).stdout)
    model = content["models"][0]
    assert set(re.findall(r"`(\w+)`", lines[0].split("|")[2])) <= set(model)
    for line in lines[1:]:
        names, told = line.split("|")[1:3]
        for name in re.findall(r"\[\]\.(\w+)", names):
            found = model[name][0] if isinstance(model[name], list) else model[name]
            inner = next(iter(found.values())) if name == "measures" else {}
            values = {"calibrated", "over-confident", "under-confident", "miscalibrated", "undecided"}
            wanted = set(re.findall(r"`([\w-]+)`", told)) - values
            assert wanted <= {*found, *inner}, name
    difference = next(line for line in page.splitlines() if line.startswith("| `differences`"))
    wanted = set(re.findall(r"`(\w+)`", difference.split("|")[2]))
    assert wanted <= {*content["differences"][0], *content["differences"][0]["nll"]}


def test_a_score_of_the_other_class_is_a_note(tmp_path):
    rng = np.random.default_rng(0)
    score = rng.random(200)
    table = pd.DataFrame({"score": score, "label": np.where(rng.random(200) < score, "churn", "stay")})
    table.to_csv(tmp_path / "a.csv", index=False)
    done = invoke("evaluate", tmp_path / "a.csv")
    assert "Note: The scores are read as probabilities of 'stay'" in done.stderr
    assert "--positive churn" in done.stderr
    assert "Note" not in invoke("evaluate", tmp_path / "a.csv", "--positive", "churn").stderr
