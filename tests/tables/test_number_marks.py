"""Tests that a model reads the numbers of later files as those of its training table."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("typer")
import pandas as pd

from calibrant.data.number_marks import NumberMarks
from calibrant.tables import Order, load_model, predict, save_model, train
from tests.tables.conftest import make_quick
from tests.tables.test_train import invoke, refused


def german(n=120, seed=0):
    """Amounts with points between thousands, shares with decimal commas, and whole numbers, as a table of texts."""
    rng = np.random.default_rng(seed)
    euros, share = rng.integers(500, 90_000, n), rng.integers(0, 99, n)
    return pd.DataFrame(
        {
            "euros": [f"{v:,}".replace(",", ".") for v in euros],
            "share": [f"{v // 10},{v % 10}" for v in share],
            "visits": rng.integers(0, 9, n).astype(str),
            "label": np.where(euros + 900 * share + rng.normal(0, 2e4, n) > 9e4, "yes", "no"),
        }
    )


def plain(table):
    """The same numbers without commas and points between thousands."""
    return table.assign(
        euros=[v.replace(".", "") for v in table["euros"]], share=[v.replace(",", ".") for v in table["share"]]
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of the German table, saved."""
    folder = tmp_path_factory.mktemp("german")
    german().to_csv(folder / "train.csv", sep=";", index=False)
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        train(Order(folder / "train.csv", "label", folder / "out"))
    return folder / "out" / "model.calibrant"


def probs(model, table, folder, *, sep=";", **options):
    table.to_csv(folder / "new.csv", sep=sep, index=False)
    summary = predict(model, folder / "new.csv", folder / "probs.csv", **options)
    return pd.read_csv(folder / "probs.csv")["prob_yes"].to_numpy(), summary


@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_files_without_decimal_commas_are_read_like_the_training_table(model, chunk, tmp_path):
    table = german(12, seed=1).drop(columns="label")
    table["share"] = [v.partition(",")[0] for v in table["share"]]
    wanted, _ = probs(model, plain(table), tmp_path)
    found, summary = probs(model, table, tmp_path, chunk=chunk)
    assert np.allclose(found, wanted, atol=1e-6)
    assert not summary.notes
    alone, _ = probs(model, table[:1].assign(euros="1.200"), tmp_path)
    assert np.allclose(alone, probs(model, table[:1].assign(euros="1200"), tmp_path)[0], atol=1e-6)
    assert np.abs(alone - probs(model, table[:1].assign(euros="1.20"), tmp_path)[0]).max() > 1e-6


def test_pieces_before_the_first_comma_are_read_like_the_others(model, tmp_path):
    table = german(12, seed=2)
    table.loc[:5, "share"] = [v.partition(",")[0] for v in table["share"][:6]]
    whole, _ = probs(model, table, tmp_path)
    parts, summary = probs(model, table, tmp_path, chunk=3)
    assert np.allclose(whole, parts, atol=1e-6)
    assert (summary.labelled, summary.notes) == (12, [])


def test_a_plain_english_file_gives_the_same_predictions(model, tmp_path):
    table = german(12, seed=3)
    wanted, _ = probs(model, table, tmp_path)
    found, summary = probs(model, plain(table), tmp_path, sep=",", chunk=5)
    assert np.allclose(found, wanted, atol=1e-6)
    assert not summary.notes


def test_the_marks_are_saved_and_models_without_them_load(model, tmp_path):
    loaded = load_model(model)
    assert loaded.marks == NumberMarks({"share"}, {"euros"})
    assert loaded.about["marks"]["thousands"] == ["euros"]
    save_model(loaded, tmp_path / "again.calibrant")
    assert load_model(tmp_path / "again.calibrant").marks == loaded.marks
    save_model(
        replace(loaded, about={k: v for k, v in loaded.about.items() if k != "marks"}), tmp_path / "old.calibrant"
    )
    table = german(12, seed=4)
    wanted, _ = probs(model, table, tmp_path)
    assert np.allclose(probs(tmp_path / "old.calibrant", table, tmp_path)[0], wanted, atol=1e-6)


def test_contradictions_are_refused_or_noted(model, tmp_path):
    table = german(12, seed=5).drop(columns="label")
    table.assign(share=plain(table)["share"]).to_csv(tmp_path / "mixed.csv", sep=";", index=False)
    found = refused("predict", model, tmp_path / "mixed.csv", "--out", tmp_path / "out.csv")
    assert "in column 'euros' of mixed.csv is not clear" in found
    assert "column 'share' has decimal points here" in found
    assert not (tmp_path / "out.csv").exists()
    plain(table).assign(euros="1200.75").to_csv(tmp_path / "cents.csv", index=False)
    done = invoke("predict", model, tmp_path / "cents.csv", "--out", tmp_path / "out.csv")
    assert done.exit_code == 0
    assert "Note: Column 'euros' had points between thousands in the training table, but here" in done.stderr


def test_a_test_file_is_read_like_the_table(quick, tmp_path):
    german().to_csv(tmp_path / "train.csv", sep=";", index=False)
    test = german(20, seed=6).assign(share="3")
    test.to_csv(tmp_path / "test.csv", sep=";", index=False)
    result = train(Order(tmp_path / "train.csv", "label", tmp_path / "out", test=tmp_path / "test.csv"))
    found = pd.read_csv(tmp_path / "out" / "predictions.csv")["prob_yes"]
    wanted, _ = probs(result.folder / "model.calibrant", plain(test), tmp_path)
    assert np.allclose(found, wanted, atol=1e-6)
