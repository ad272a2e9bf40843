"""Tests of `train` and `predict` with files as spreadsheets write them: Windows-1252, and dates with slashes."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("typer")
import pandas as pd

from calibrant.tables import Order, load_model, predict, save_model, train
from tests.tables.conftest import make_quick
from tests.tables.test_train import invoke, refused


def visits(n=120, seed=0):
    """A table with true dates, whose class depends on the date."""
    rng = np.random.default_rng(seed)
    when = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    late = when.day_of_year.to_numpy() + rng.normal(0, 30, n) > 150
    return pd.DataFrame(
        {"when": when, "town": rng.choice(["Köln", "Zürich", "Bern"], n), "y": np.where(late, "ja", "nö")}
    )


def written(table, path, form, code="utf-8"):
    table.assign(when=[v if isinstance(v, str) else v.strftime(form) for v in table["when"]]).to_csv(
        path, index=False, encoding=code
    )
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of the table with ISO dates, and one of the table with slashes in Windows-1252; and what was printed."""
    folder, lines = tmp_path_factory.mktemp("exports"), []
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        train(Order(written(visits(), folder / "iso.csv", "%Y-%m-%d"), "y", folder / "iso"))
        path = written(visits(), folder / "slash.csv", "%d/%m/%Y", "cp1252")
        train(Order(path, "y", folder / "slash"), lines.append)
    return folder / "iso" / "model.calibrant", folder / "slash" / "model.calibrant", lines


def probs(model, path, **options):
    summary = predict(model, path, path.with_suffix(".out.csv"), **options)
    return pd.read_csv(path.with_suffix(".out.csv"))["prob_ja"].to_numpy(), summary


def test_training_says_how_the_file_was_read(models):
    lines = models[2]
    assert "Dates: when." in lines
    assert sum("slash.csv is not UTF-8 and was read as Windows-1252" in line for line in lines) == 1
    assert sum("Dates in column 'when' are read as day/month/year" in line for line in lines) == 1
    assert load_model(models[1]).marks.dates == {"when": "day/month/year"}


@pytest.mark.parametrize("chunk", [1, 1000])
def test_predictions_do_not_depend_on_form_and_encoding(models, chunk, tmp_path):
    table = visits(12, seed=1).assign(when=pd.date_range("2023-02-01", periods=6, freq="MS").repeat(2))  # days below 13
    wanted, _ = probs(models[0], written(table, tmp_path / "iso.csv", "%Y-%m-%d"))
    assert np.ptp(wanted) > 1e-4
    found, summary = probs(models[1], written(table, tmp_path / "slash.csv", "%d/%m/%Y", "cp1252"), chunk=chunk)
    assert np.allclose(found, wanted, atol=1e-6)
    assert summary.labelled == 12
    assert summary.notes == [
        "slash.csv is not UTF-8 and was read as Windows-1252; if letters look wrong, save it as CSV UTF-8."
    ]
    same, summary = probs(models[1], tmp_path / "iso.csv", chunk=chunk)
    assert np.allclose(same, wanted, atol=1e-6)
    assert not summary.notes


def test_wrong_dates_are_refused_and_models_without_forms_load(models, tmp_path):
    path = written(visits(3), tmp_path / "new.csv", "%m/%d/%Y")
    found = refused("predict", models[1], path, "--out", tmp_path / "out.csv")
    assert "'when' of new.csv must hold dates as in the training table (day/month/year); got" in found
    model = load_model(models[1])
    old = {name: value for name, value in model.about["marks"].items() if name != "dates"}
    save_model(replace(model, about={**model.about, "marks": old}), tmp_path / "old.calibrant")
    path = written(visits(12, seed=2), tmp_path / "iso.csv", "%Y-%m-%d")
    assert np.allclose(probs(tmp_path / "old.calibrant", path)[0], probs(models[1], path)[0], atol=1e-6)


def test_unclear_dates_stay_text_with_their_note(quick, tmp_path):
    table = visits(120).assign(when=[f"{k % 12 + 1}/{k // 12 + 1}/2023" for k in range(120)])
    done = invoke("train", written(table, tmp_path / "t.csv", ""), "--target", "y", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "Column 'when' is left out: " in done.stderr
    assert "look like dates. Write them as 2024-12-31 if they matter." in done.stderr


def test_evaluate_notes_the_encoding_too(tmp_path):
    path = tmp_path / "p.csv"
    rows = ["nö,0.3,0.7", "ja,0.8,0.2", "nö,0.6,0.4"] * 20
    path.write_bytes(("label,prob_ja,prob_nö\n" + "\n".join(rows) + "\n").encode("cp1252"))
    done = invoke("evaluate", path)
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("Note: p.csv is not UTF-8 and was read as Windows-1252")


def test_dates_as_categories_are_written_as_in_training(quick, tmp_path):
    table = visits().assign(when=np.resize(["26.01.2023", "1.2.2023", "03.04.2023"], 120))
    path = written(table, tmp_path / "t.csv", "")
    done = invoke("train", path, "--target", "y", "--categorical", "when", "--out", tmp_path / "out")
    assert "Categories: when (3)" in done.stderr, done.output
    done = invoke("predict", tmp_path / "out" / "model.calibrant", path, "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    assert "training did not see" not in done.stderr
