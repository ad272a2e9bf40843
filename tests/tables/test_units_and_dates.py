"""Tests of `train` and `predict` with units, and with dates in which years have two digits or months have names."""

import numpy as np
import pytest

pytest.importorskip("typer")
import pandas as pd

from calibrant.tables import load_model
from tests.tables.conftest import make_quick
from tests.tables.test_train import invoke, refused


def parcels(n=120, seed=0):
    """A table of plain numbers and ISO dates, whose class depends on weight, share and date."""
    rng = np.random.default_rng(seed)
    weight, share = rng.integers(1, 400, n) / 8, rng.integers(1, 400, n) / 4
    when = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    late = weight / 25 + share / 50 + when.day_of_year / 150 + rng.normal(size=n) > 3
    return pd.DataFrame(
        {
            "weight": weight,
            "share": share,
            "sent": when,
            "paid": when + pd.Timedelta(days=3),
            "door": rng.choice(["12A", "12B", "7A"], n),
            "pack": rng.choice(["1 kg", "2 kg", "500 g"], n),
            "late": np.where(late, "yes", "no"),
        }
    )


def written(table, path, *, plain=False):
    """Write the table with plain numbers and ISO dates, or with units and dates in other forms."""
    if plain:
        found = table.assign(sent=table["sent"].dt.strftime("%Y-%m-%d"), paid=table["paid"].dt.strftime("%Y-%m-%d"))
    else:
        found = table.assign(
            weight=[f"{v:g} kg" for v in table["weight"]],
            share=[f"{v:.2f} %".replace(".", ",") for v in table["share"]],
            sent=table["sent"].dt.strftime("%d-%m-%y"),
            paid=table["paid"].dt.strftime("%d-%b-%Y"),
        )
    found.to_parquet(path) if path.suffix == ".parquet" else found.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The models of the plain and of the other table, and what was printed for the latter."""
    folder = tmp_path_factory.mktemp("parcels")
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        for name in ("plain", "other"):
            path = written(parcels(), folder / f"{name}.csv", plain=name == "plain")
            done = invoke("train", path, "--target", "late", "--out", folder / name)
            assert done.exit_code == 0, done.output
    return folder / "plain" / "model.calibrant", folder / "other" / "model.calibrant", done.stderr


def test_training_says_how_columns_are_read(models):
    lines = models[2].splitlines()
    assert "Numbers: weight, share." in lines
    assert "Dates: sent, paid." in lines
    assert "Categories: door (3), pack (3)." in lines
    for note in (
        "Column 'weight' has the unit 'kg' and is read as numbers.",
        "Column 'share' has the unit '%' and is read as numbers.",
        "Column 'pack' is not taken as numbers, because its values have different units (g, kg). Write them in one "
        "unit if they are quantities.",
        "Dates in column 'sent' are read as day-month-year, because some numbers are above 12. Years of two digits are "
        "read as 1973 to 2072.",
    ):
        assert lines.count(f"Note: {note}") == 1
    assert "Dates in column 'paid'" not in models[2]  # no other reading is possible
    marks = load_model(models[1]).marks
    assert marks.signs == {"weight": "kg", "share": "%"}
    assert marks.dates == {"sent": "day-month-year from 1973", "paid": "day month-name year"}


@pytest.mark.parametrize("chunk", [1, 1000])
def test_predictions_are_those_of_plain_numbers_and_dates(models, chunk, tmp_path):
    new = parcels(12, seed=1).assign(sent=pd.date_range("2023-02-01", periods=6, freq="MS").repeat(2))  # days below 13
    found = {}
    plain, other = written(new, tmp_path / "plain.csv", plain=True), written(new, tmp_path / "other.csv")
    for name, model, path in (("plain", models[0], plain), ("other", models[1], other), ("mixed", models[1], plain)):
        out = tmp_path / f"{name}-out.csv"
        done = invoke("predict", model, path, "--chunk", chunk, "--out", out)
        assert done.exit_code == 0, done.output
        assert "Note:" not in done.stderr.replace("Note: all predictions are withheld", "")
        found[name] = pd.read_csv(out)["prob_yes"].to_numpy()
    assert np.ptp(found["plain"]) > 1e-4
    assert np.allclose(found["other"], found["plain"], atol=1e-6)
    assert np.allclose(found["mixed"], found["plain"], atol=1e-6)


def test_text_in_parquet_files_is_read_as_in_csv(models, quick, tmp_path):
    path = written(parcels(), tmp_path / "t.parquet")
    done = invoke("train", path, "--target", "late", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    of_csv, of_parquet = (
        [line for line in text.splitlines() if line.startswith(("Numbers", "Dates", "Categories", "Note: Column"))]
        for text in (models[2], done.stderr)
    )
    assert of_csv == of_parquet
    assert load_model(tmp_path / "out" / "model.calibrant").marks == load_model(models[1]).marks
    new, found = parcels(12, seed=1), []
    for kind, plain in (("csv", False), ("parquet", False), ("parquet", True)):
        file = written(new, tmp_path / f"new.{kind}", plain=plain)
        done = invoke("predict", models[1], file, "--chunk", 5, "--out", tmp_path / "p.csv")
        assert done.exit_code == 0, done.output
        found.append(pd.read_csv(tmp_path / "p.csv")["prob_yes"].to_numpy())
    assert np.ptp(found[0]) > 1e-4
    assert np.allclose(found[1], found[0], atol=1e-6)
    assert np.allclose(found[2], found[0], atol=1e-6)
    new.assign(weight="3 g").to_parquet(tmp_path / "new.parquet")
    message = refused("predict", models[1], tmp_path / "new.parquet", "--out", tmp_path / "p.csv")
    assert "'weight' of new.parquet must have the unit of the training table, 'kg'; got '3 g'" in message


def test_other_units_and_orders_are_refused(models, tmp_path):
    path = written(parcels(12, seed=2), tmp_path / "new.csv")
    text = path.read_text()
    for old, new, message in (
        (" kg,", " g,", "'weight' of new.csv must have the unit of the training table, 'kg'; got "),
        ("-23,", "-23x,", "Column 'sent' must hold dates such as 2024-12-31; got "),
        ("-23,", "-99-23,", "Column 'sent' must hold dates such as 2024-12-31; got "),
    ):
        path.write_text(text.replace(old, new))
        assert message in refused("predict", models[1], path, "--out", tmp_path / "out.csv")
    swapped = parcels(12, seed=2)
    other = pd.read_csv(written(swapped, path))
    other.assign(sent=swapped["sent"].dt.strftime("%m-%d-%y")).to_csv(path, index=False)
    found = refused("predict", models[1], path, "--out", tmp_path / "out.csv")
    assert "'sent' of new.csv must hold dates as in the training table (day-month-year); got" in found


def test_columns_that_are_left_out_have_no_notes(quick, tmp_path):
    path = written(parcels(), tmp_path / "t.csv")
    done = invoke("train", path, "--target", "late", "--drop", "weight", "--groups", "sent", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "'share' has the unit" in done.stderr
    assert "'weight'" not in done.stderr
    assert "column 'sent'" not in done.stderr
