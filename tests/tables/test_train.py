"""Tests of `calibrant train`: its files, its messages, and its errors."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
import pandas as pd
from typer.testing import CliRunner

from calibrant import SelfCalibratedClassifier, evaluate
from calibrant.base.locks import try_lock
from calibrant.cli import commands
from calibrant.data import TableEncoder
from calibrant.data.columns.encoder import EncodedTable
from calibrant.tables import Order, load_model, train, training
from calibrant.tables.methods import find_method
from calibrant.tables.results import doubtful
from tests.tables.conftest import churn, parts_of

FILES = {"model.calibrant", "metrics.json", "predictions.csv", "suspects.csv", "report.html"}


def invoke(*arguments):
    return CliRunner().invoke(commands.app, [str(a) for a in arguments])


def refused(*arguments):
    """The sentence of a command that fails with status 2."""
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("calibrant: ")
    return lines[-1]


def test_the_five_files_agree_with_one_another(trained):
    folder, path = trained
    assert {p.name for p in folder.iterdir()} == FILES
    metrics = json.loads((folder / "metrics.json").read_text())
    found, source = pd.read_csv(folder / "predictions.csv"), pd.read_csv(path)
    assert len(found) == metrics["data"]["rows"]["test"] == 48
    assert metrics["data"]["rows"]["train"] == 192
    elapsed = (folder / "metrics.json").stat().st_mtime - path.stat().st_mtime
    assert 0 < metrics["seconds"]["training"] < elapsed
    assert (found["label"].to_numpy() == source["left?"].to_numpy()[found["row"] - 1]).all()
    judged = evaluate(found[["prob_no", "prob_yes"]].to_numpy(), found["label"], classes=["no", "yes"])
    measured = judged.models["model"].measures
    for name in ("accuracy", "nll", "ece", "brier"):
        assert measured[name].value == pytest.approx(metrics["test"]["measures"][name]["value"], abs=1e-7)
    assert np.allclose(found["confidence"], found[["prob_no", "prob_yes"]].max(axis=1))
    kept = ~found["withheld"]
    assert metrics["rule"]["test_kept"] == pytest.approx(kept.mean())
    assert metrics["rule"]["threshold"] is not None
    assert (found["confidence"][kept] >= metrics["rule"]["threshold"] - 1e-8).all()
    assert (found["confidence"][~kept] <= metrics["rule"]["threshold"] + 1e-8).all()


def test_what_was_inferred_is_in_the_metrics(trained):
    data = json.loads((trained[0] / "metrics.json").read_text())["data"]
    assert data["columns"]["spent (€)"] == data["columns"]["visits"] == "numbers"
    assert data["columns"]["plan"] == "categories (3)"
    assert data["columns"]["post code"] == "categories (5)"
    assert data["columns"]["since"] == "dates"
    assert data["left_out"] == {"always": "constant"}
    assert set(data["classes"]) == {"no", "yes"}


def test_suspects_are_training_rows_that_another_class_suits_better(trained):
    folder, path = trained
    found, source = pd.read_csv(folder / "suspects.csv"), pd.read_csv(path)
    test = pd.read_csv(folder / "predictions.csv")["row"]
    assert len(found)
    assert not set(found["row"]) & set(test)
    assert (found["label"] != found["likely"]).all()
    assert (found["suspicion"].diff().dropna() <= 1e-9).all()
    assert (found["label"].to_numpy() == source["left?"].to_numpy()[found["row"] - 1]).all()
    assert (found["visits"].to_numpy() == source["visits"].to_numpy()[found["row"] - 1]).all()
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["suspects"] == len(found)
    assert metrics["very_suspect"] == (found["probability_of_label"] < 0.05).sum()
    assert f"lists {len(found)} training rows for which another class is more likely" in doubtful(metrics)
    assert doubtful(metrics | {"suspects": 0}) == ""


def test_the_report_is_the_page_of_evaluate_with_a_card(trained):
    page = (trained[0] / "report.html").read_text()
    assert "left? in churn.csv" in page
    for part in ("Withhold predictions", "Model and data", "rejection rule", "192 rows"):
        assert part in page
    assert 'pro, "max"' not in page  # values are escaped


def test_the_file_has_encoder_classifier_and_rule(trained):
    model = load_model(trained[0] / "model.calibrant")
    assert model.target == "left?"
    assert model.rule is not None
    assert model.rule.target == 0.25
    assert model.classifier.encoder_ is not None
    assert model.features == ["spent (€)", "plan", "post code", "since", "visits"]


def test_a_classifier_takes_rows_that_are_encoded_already(quick):
    frame, new = churn(120), churn(30, seed=1).drop(columns="left?")
    labels = frame.pop("left?")
    encoder = TableEncoder(output="sparse").fit(frame)
    make = find_method("self-calibrated").make
    plain = make(random_state=0).fit(frame, labels)
    encoded = make(random_state=0).fit(EncodedTable(encoder.transform(frame), encoder), labels)
    assert encoded.encoder_ is encoder
    assert list(encoded.feature_names_in_) == [name for name in frame if name != "always"]
    expected = plain.predict_proba(new)
    np.testing.assert_array_equal(encoded.predict_proba(new[encoded.feature_names_in_]), expected)
    np.testing.assert_array_equal(encoded.predict_proba(EncodedTable(encoder.transform(new), encoder)), expected)


def test_the_steps_are_those_of_the_architecture_page(quick, table, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    lines = text.split("### `calibrant train")[1].split("```")[1].splitlines()[1:]
    steps = [line[23:].split()[0] for line in lines]
    calls = []

    def note(owner, name):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **given: calls.append(name) or function(*args, **given))

    for step in steps:
        note(SelfCalibratedClassifier if step == "fit" else training, step)
    train(Order(table, "left?", tmp_path / "out"))
    assert calls == steps


def test_on_the_command_line(quick, table, tmp_path):
    done = invoke(
        "train", table, "--target", "left?", "--out", tmp_path / "out", "--drop", "since", "always", "--no-rows"
    )
    assert done.exit_code == 0, done.output
    assert "Categories: plan (3), post code (5)." in done.stderr
    assert "Training on 192 rows" in done.stderr
    assert re.search(r"done, epoch (\d+) of \1, training loss \d\.\d+, validation loss \d\.\d+", done.stderr)
    assert "On 48 held-out rows" in done.stdout
    assert "calibrant predict" in done.stdout
    header = (tmp_path / "out" / "suspects.csv").read_text().splitlines()[0]
    assert header == "row,label,likely,suspicion,probability_of_label"
    again = invoke(
        "train", table, "--target", "left?", "--out", tmp_path / "out", "--drop", "since", "always", "--json"
    )
    assert json.loads(again.stdout)["data"]["columns"].keys() == {"spent (€)", "plan", "post code", "visits"}


def test_without_a_threshold_the_command_says_what_to_change(quick, table, tmp_path):
    out = tmp_path / "my model"
    done = invoke("train", table, "--target", "left?", "--out", out, "--risk", "0.001")
    assert done.exit_code == 0, done.output
    assert "All predictions are withheld: no threshold is sure" in done.stdout
    assert "below 0.001. Use a larger --risk, or more rows." in done.stdout
    assert f"calibrant predict '{out / 'model.calibrant'}' TABLE" in done.stdout


def test_other_rows_may_judge_and_validate(quick, table, tmp_path):
    churn(90, seed=1).to_csv(tmp_path / "test.tsv", index=False, sep="\t")
    churn(60, seed=2).to_parquet(tmp_path / "val.parquet")
    order = Order(table, "left?", tmp_path / "out", val=tmp_path / "val.parquet", test=tmp_path / "test.tsv")
    rows = train(order).metrics["data"]["rows"]
    assert rows == {"train": 240, "val": 40, "aside": 20, "test": 90}


def test_bo4sc_sets_rows_aside_for_its_rule(quick, table, tmp_path, monkeypatch):
    entry = find_method("bo4sc")
    monkeypatch.setitem(
        sys.modules["calibrant.tables.methods"].METHODS,
        "bo4sc",
        replace(entry, make=lambda **given: entry.make(epochs=5, hidden_layer_sizes=(8,), **given)),
    )
    result = train(Order(table, "left?", tmp_path / "out", method="bo4sc", risk=0.45))
    rows = result.metrics["data"]["rows"]
    assert rows == {"train": 154, "val": 0, "aside": 38, "test": 48}
    assert result.model.rule.n == 38
    found = pd.read_csv(tmp_path / "out" / "suspects.csv")
    assert len(found)
    assert (found["label"].to_numpy() == churn()["left?"].to_numpy()[found["row"] - 1]).all()


def test_groups_and_copies_stay_in_one_part(tmp_path):
    source = churn(300)
    source["patient"] = np.arange(300) // 3
    source = pd.concat([source, source.iloc[:40].assign(patient=np.arange(40) + 1000)])
    source.to_csv(tmp_path / "t.csv", index=False)
    parts = parts_of(tmp_path / "t.csv", groups="patient", test=0.25, seed=3)
    assert "patient" not in parts.train.columns
    assert not set(parts.train.groups) & set(parts.test.groups)
    assert all((k + 1 in parts.test.numbers) == (k + 301 in parts.test.numbers) for k in range(40))
    assert 0.15 < len(parts.test) / 340 < 0.35


def test_filtered_row_numbers_are_no_input_and_may_be_dropped(tmp_path):
    source = churn(60).sample(frac=0.5, random_state=0)
    pd.concat([source, source.rename(lambda number: number + 100)]).to_csv(tmp_path / "t.csv")
    parts = parts_of(tmp_path / "t.csv", test=0.3)
    assert list(parts.train.columns) == [name for name in source if name != "left?"]
    assert any("row numbers" in note for note in parts.notes)
    assert any("30 rows repeat another one exactly" in note for note in parts.notes)
    dropped = parts_of(tmp_path / "t.csv", test=0.3, drop=["Unnamed: 0"])
    assert list(dropped.train.columns) == list(parts.train.columns)
    assert not any("row numbers" in note for note in dropped.notes)


def test_a_class_of_one_group_is_trained_on(tmp_path):
    source = churn(60)
    source["site"] = np.arange(60) % 6
    source.loc[source["site"] == 2, "left?"] = "maybe"
    source.to_csv(tmp_path / "t.csv", index=False)
    for seed in range(8):
        parts = parts_of(tmp_path / "t.csv", groups="site", test=0.3, seed=seed)
        assert "maybe" in parts.train.classes
        assert not set(parts.train.groups) & set(parts.test.groups)


def test_a_test_part_of_one_class_is_judged(quick, tmp_path):
    groups = np.repeat(np.arange(6), 30)
    source = pd.DataFrame({"x": np.sin(np.arange(180)), "site": groups, "y": np.array(["p", "q"])[groups % 2]})
    source.to_csv(tmp_path / "t.csv", index=False)
    done = invoke("train", tmp_path / "t.csv", "--target", "y", "--groups", "site", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output


def test_the_example_in_the_docs_runs(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    churn().rename(columns={"left?": "churn"}).to_csv("churn.csv", index=False)
    text = (Path(__file__).parents[2] / "docs" / "train.md").read_text()
    (block,) = text.split("```python\n")[1:]
    exec(compile(block.split("```")[0], "train.md", "exec"), {})
    assert (tmp_path / "predictions.csv").exists()


def edited(path, **columns):
    source = churn()
    for name, values in columns.items():
        source[name] = values
    source.to_csv(path, index=False)
    return path


def test_an_export_of_a_spreadsheet(quick, tmp_path):
    rng = np.random.default_rng(0)
    amounts, days = rng.integers(100_000, 900_000, 120), rng.integers(1, 28, 120)
    lines = ["Kunde;Datum;Umsatz in €;Rabatt;Größe;Mandant;Bemerkung;Status"] + [
        f"K{k};{day:02d}.0{k % 9 + 1}.2023;{v // 1000}.{v % 1000:03d},50;{k % 40},5 %;{150 + k % 50},5;1;"
        f'"Anruf {k},\nkommt; ""wieder""";{"bleibt " if v > 5e5 else "geht"}'
        for k, (v, day) in enumerate(zip(amounts, days, strict=True))
    ]
    (tmp_path / "t.csv").write_bytes(("\r\n".join(lines) + "\r\n").encode("cp1252"))
    command = ("train", tmp_path / "t.csv", "--target", "Status", "--out", tmp_path / "out", "--encoding", "cp1252")
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    assert "Column 'Umsatz in €' is read as text, but looks like numbers with other marks (" in done.stderr
    assert "Column 'Datum' is read as text, but looks like dates ('" in done.stderr
    done = invoke(*command, "--decimal", ",", "--thousands", ".", "--dates", "%d.%m.%Y")
    assert done.exit_code == 0, done.output
    assert "Numbers: Umsatz in €, Größe." in done.stderr
    assert "Mandant (constant)" in done.stderr
    assert "Dates: Datum." in done.stderr
    assert "look like names or free text." in done.stderr
    assert "Column 'Rabatt' is read as text, but looks like numbers with a unit or other characters (" in done.stderr
    formats = "numbers with a decimal comma and '.' between thousands (Umsatz in €, Größe, Mandant)"
    assert f"Formats: dates such as 31.12.2024 (Datum); {formats}." in done.stderr
    model = tmp_path / "out" / "model.calibrant"
    new = "Umsatz in €;Rabatt;Größe;Datum\n850.000;0,5 %;150,5;1.2.2023\n850000,0;0,5 %;150,50;01.02.2023\n"
    (tmp_path / "new.csv").write_text(new, encoding="cp1252")
    done = invoke("predict", model, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    assert "Note" not in done.stderr.replace("Note: all predictions are withheld", "")
    found = pd.read_csv(tmp_path / "p.csv")["prob_geht"]
    assert found[0] == pytest.approx(found[1], abs=1e-6)
    (tmp_path / "new.csv").write_text(new)
    done = invoke("predict", model, tmp_path / "new.csv", "--encoding", "utf-8", "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    pd.testing.assert_series_equal(pd.read_csv(tmp_path / "p.csv")["prob_geht"], found)
    for old, other, wanted in (
        ("150,50", "150.50", "'Größe' of new.csv must hold numbers with a decimal comma and '.' between thousands"),
        ("01.02.2023", "2023-02-01", "'Datum' of new.csv must hold dates such as 31.12.2024"),
    ):
        (tmp_path / "new.csv").write_text(new.replace(old, other), encoding="cp1252")
        message = refused("predict", model, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
        assert f"{wanted}, as in the training table; got {other!r} in row 2. Correct it" in message


def test_warnings_about_columns(quick, tmp_path):
    source = churn()
    outcome = source["left?"].map({"yes": "closed", "no": "open"})
    path = edited(tmp_path / "t.csv", customer_id=np.arange(240) * 7 + 100, account=outcome, paid=np.arange(240) / 7)
    done = invoke("train", path, "--target", "left?", "--out", tmp_path / "out")
    assert "Column 'customer_id' looks like a row number or an identifier" in done.stderr
    assert "--drop account" in done.stderr
    assert done.stderr.count("alone determines the class") == 1
    assert "'paid' looks like" not in done.stderr
    assert "Left out: always (constant)." in done.stderr


def test_rows_without_a_label_are_left_out(quick, tmp_path):
    labels = churn()["left?"].where(np.arange(240) % 10 != 0)
    path = edited(tmp_path / "t.csv", **{"left?": labels})
    done = invoke("train", path, "--target", "left?", "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert "24 rows without a value in 'left?': left out." in done.stderr
    rows = pd.read_csv(tmp_path / "out" / "predictions.csv")["row"]
    assert not set(rows) & set(range(1, 241, 10))


BAD = {
    "missing column": (lambda t: t, ["--target", "Left"], "has no column 'Left'. Did you mean 'left?'?"),
    "unknown drop": (lambda t: t, ["--target", "left?", "--drop", "vists"], "Did you mean 'visits'?"),
    "one class": (lambda t: t.assign(**{"left?": "no"}), [], "one class only, 'no'"),
    "one row": (lambda t: t.head(1), [], "one row with a label"),
    "few rows": (lambda t: t.head(8), [], "must have at least 10 rows with a label"),
    "no labels": (lambda t: t.assign(**{"left?": np.nan}), [], "240 of the 240 rows"),
    "a class called NA": (
        lambda t: t.assign(**{"left?": np.where(np.arange(240) % 5 < 3, "NA", "no")}),
        [],
        "Empty, NA, None and ? count as missing; give a class with such a name another one",
    ),
    "one class beside NA": (
        lambda t: t.assign(**{"left?": np.where(np.arange(240) % 5 < 2, "NA", "no")}),
        [],
        "one class only, 'no'. 96 rows have no label; empty, NA, None and ? count as missing.",
    ),
    "a quantity": (lambda t: t, ["--target", "spent (€)"], "values that are not whole numbers"),
    "a count": (lambda t: t.assign(n=np.arange(240) * 3), ["--target", "n"], "240 different values in 240 rows"),
    "free text": (lambda t: t.assign(n=[f"t{k}" for k in range(240)]), ["--target", "n"], "names or free text"),
    "no features": (lambda t: t[["left?"]], [], "no column besides 'left?'"),
    "constants": (lambda t: t[["left?", "always"]], [], "No column of the table can be used"),
    "no rows": (lambda t: t.head(0), [], "holds no rows"),
    "infinite": (lambda t: t.assign(visits=np.inf), [], "Column 'visits' holds an infinite number"),
    "method": (lambda t: t, ["--method", "magic"], "--method must be 'self-calibrated', "),
    "risk": (lambda t: t, ["--risk", "5"], "--risk must be a share"),
    "share": (lambda t: t, ["--test", "1.5"], "--test must be a file or a share"),
    "no test file": (lambda t: t, ["--test", "nowhere.csv"], "There is no file nowhere.csv"),
    "one group": (lambda t: t, ["--groups", "always"], "one group only"),
    "two groups": (
        lambda t: t.assign(g=np.arange(240) % 2),
        ["--groups", "g"],
        "The training part of t.csv holds one group only",
    ),
    "target as group": (lambda t: t, ["--groups", "left?"], "name another column for the groups"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_and_options_get_a_sentence(case, tmp_path):
    change, options, sentence = BAD[case]
    change(churn()).to_csv(tmp_path / "t.csv", index=False)
    target = [] if "--target" in options else ["--target", "left?"]
    assert sentence in refused("train", tmp_path / "t.csv", *target, *options, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_places_that_cannot_be_used_get_a_sentence(table, tmp_path):
    assert "is a folder" in refused("train", tmp_path, "--target", "y", "--out", tmp_path / "out")
    assert "There is no file" in refused("train", tmp_path / "no.csv", "--target", "y", "--out", tmp_path / "out")
    assert "--out must be a folder" in refused("train", table, "--target", "left?", "--out", table)
    assert "--out must be a folder" in refused("train", table, "--target", "left?", "--out", "/proc/nowhere")
    if os.geteuid():
        table.chmod(0)
        assert "no permission" in refused("train", table, "--target", "left?", "--out", tmp_path / "out")


def test_too_little_memory_gets_a_sentence(quick, table, tmp_path, monkeypatch):
    def fail(*args, **given):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr("calibrant.methods.core.method.solve", fail)
    assert "ran out of memory" in refused("train", table, "--target", "left?", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_second_run_on_one_folder_is_refused(quick, table, tmp_path):
    (tmp_path / "out").mkdir()
    with try_lock(tmp_path / "out" / ".train.lock") as mine:
        assert mine
        assert "Another `calibrant train` is writing" in refused(
            "train", table, "--target", "left?", "--out", tmp_path / "out"
        )
    assert invoke("train", table, "--target", "left?", "--out", tmp_path / "out").exit_code == 0


@pytest.fixture
def small_disk():
    """Limit the size of files, so that writing fails as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [2_000, 30_000])
def test_a_full_disk_gets_a_sentence(size, quick, table, tmp_path, small_disk):
    small_disk(size)
    found = refused("train", table, "--target", "left?", "--out", tmp_path / "out")
    assert "cannot be written: " in found
    assert "File too large" in found
    assert not (tmp_path / "out").exists()


def test_a_table_that_teaches_nothing_is_not_a_success(quick, tmp_path):
    table = pd.DataFrame({"x": np.tile([0, 0, 1, 1], 100), "case": np.arange(400), "left": np.tile(["no", "yes"], 200)})
    table.to_csv(tmp_path / "t.csv", index=False)
    done = invoke("train", tmp_path / "t.csv", "--target", "left", "--groups", "case", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "Accuracy is not clearly above that of always predicting" in done.stdout
    assert "Nothing was learned: on held-out training rows" in done.stdout
    assert pd.read_csv(tmp_path / "out" / "suspects.csv").empty
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Nothing was learned" in page


def test_free_text_is_learned_from_named_and_predicted(quick, tmp_path):
    rng = np.random.default_rng(0)
    levels, fields = ["Senior", "Junior", "Lead", "Chief"], ["Software", "Data", "Sales", "Nursing", "Legal", "Civil"]
    jobs = ["Engineer", "Manager", "Analyst", "Officer", "Consultant"]
    titles = [
        " ".join(words) for words in zip(*(rng.choice(part, 240) for part in (levels, fields, jobs)), strict=True)
    ]
    table = pd.DataFrame({"title": titles, "wine": rng.choice(["dry red", "dry white", "sweet red"], 240)})
    table["pay"] = np.where(table["title"].str.contains("Senior|Lead|Chief"), "high", "low")
    table.to_csv(tmp_path / "t.csv", index=False)
    done = invoke("train", tmp_path / "t.csv", "--target", "pay", "--out", tmp_path / "out", "--text", "wine", "--json")
    assert done.exit_code == 0, done.output
    kinds = json.loads(done.stdout)["data"]["columns"]
    assert kinds == {"title": "text (15 words)", "wine": "text (4 words)"}
    assert "Text: title (15 words), wine (4 words)." in done.stderr
    assert done.stderr.count("Column 'title' is read as free text") == 1
    assert "read as free text" in (tmp_path / "out" / "report.html").read_text()
    (tmp_path / "new.csv").write_text("title,wine\nSenior Welder,dry red\n,\n1234,5678\n")
    done = invoke("predict", tmp_path / "out" / "model.calibrant", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    assert pd.read_csv(tmp_path / "p.csv")["prob_high"].between(0, 1).all()
    assert "no text" not in done.stderr
    (tmp_path / "new.csv").write_text("title,wine\n,dry red\n1234,\n")
    done = invoke("predict", tmp_path / "out" / "model.calibrant", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    assert "Note: Column 'title' has no text" in done.stderr
    assert "Column 'wine' has no text" not in done.stderr
