"""Tests of rows that come later or from another file: a split by time, shared groups, copies and dates out of range."""

import json
from datetime import datetime

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("typer")

from calibrant.tables import load_model, predict
from tests.tables.conftest import churn, parts_of
from tests.tables.test_train import invoke, refused

LATER = pd.date_range("2021-01-01", periods=120).strftime("%Y-%m-%d")


@pytest.fixture
def files(tmp_path):
    """A table of 100 customers, and a later one of 60 customers, 50 of them from the first."""
    churn(240).assign(customer=np.arange(240) % 100).to_csv(tmp_path / "old.csv", index=False)
    customers = [50.0 + k % 60 for k in range(119)] + [np.nan]
    churn(120, seed=4).assign(customer=customers, since=LATER).to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "old.csv", tmp_path / "new.csv"


def test_groups_shared_with_a_test_file(quick, files, tmp_path):
    old, new = files
    command = ["train", old, "--target", "left?", "--groups", "customer", "--test", new, "--out", tmp_path / "out"]
    assert "50 of 60 groups ('customer') of the test part are in training too, so" in refused(*command)
    done = invoke(*command, "--test-overlap")
    assert done.exit_code == 0, done.output
    note = "50 of 60 groups ('customer') of the test part are in training too: its scores hold for known groups"
    assert note in done.stderr
    assert any(note in line for line in json.loads((tmp_path / "out" / "metrics.json").read_text())["data"]["notes"])
    assert "of the test part are in training too" in (tmp_path / "out" / "report.html").read_text()


def test_groups_of_other_files_may_be_new_or_unknown(files, tmp_path):
    old, new = files
    source = pd.read_csv(new)
    source.assign(customer=1000 + np.arange(120)).to_csv(tmp_path / "others.csv", index=False)
    source.drop(columns="customer").to_csv(tmp_path / "none.csv", index=False)
    source.assign(customer=7777).to_csv(tmp_path / "one.csv", index=False)
    assert parts_of(old, groups="customer", test=tmp_path / "others.csv").notes == ()
    assert parts_of(old, groups="customer", test=tmp_path / "one.csv").notes == ()
    (note,) = parts_of(old, groups="customer", test=tmp_path / "none.csv").notes
    assert "none.csv has no column 'customer'" in note
    (note,) = parts_of(old, groups="customer", val=tmp_path / "none.csv", test=tmp_path / "others.csv").notes
    assert "none.csv has no column 'customer'" in note
    with pytest.raises(ValueError, match=r"60 of 60 groups .* of the test part"):
        parts_of(old, groups="customer", val=new, test=new)
    with pytest.raises(ValueError, match=r"groups .* of the test part"):  # of the validation file
        parts_of(old, groups="customer", val=new)


def test_copies_of_training_rows_in_a_test_file(files, tmp_path):
    old, new = files
    mixed = pd.concat([pd.read_csv(new, dtype=str), pd.read_csv(old, dtype=str).head(30)])
    mixed.to_csv(tmp_path / "mixed.csv", index=False)
    (note,) = parts_of(old, test=tmp_path / "mixed.csv").notes
    assert note.startswith("30 of 150 test rows are exact copies of training rows")


@pytest.mark.parametrize("kind", ["text", "days first", "parquet", "numbers"])
def test_the_newest_rows_are_the_test_part(kind, tmp_path):
    source = churn(240)
    days = pd.to_datetime(source["since"])
    path = tmp_path / ("t.parquet" if kind == "parquet" else "t.csv")
    written = {"days first": days.dt.strftime("%d.%m.%Y"), "parquet": days, "numbers": (days - days.min()).dt.days / 7}
    source = source.assign(since=written.get(kind, source["since"]))
    (source.to_parquet if kind == "parquet" else source.to_csv)(path, index=False)
    dates = "%d.%m.%Y" if kind == "days first" else ()
    parts = parts_of(path, time="since", dates=dates, test=0.25, seed=3)
    assert "since" not in parts.train.columns
    order = np.argsort(days.to_numpy())
    assert set(parts.test.numbers - 1) == set(order[-60:])
    start = "25.714" if kind == "numbers" else "2020-06-29"
    assert any(f"the newest 60 rows: from {start}" in note for note in parts.notes)


def test_rows_of_one_time_stay_together(tmp_path):
    churn(240).assign(year=2000 + np.arange(240) // 100).to_csv(tmp_path / "t.csv", index=False)
    for share, rows in ((0.05, 40), (0.2, 40), (0.5, 140), (0.9, 140)):
        assert len(parts_of(tmp_path / "t.csv", time="year", test=share).test) == rows


def test_training_by_time_needs_no_time_later(quick, files, tmp_path):
    old, new = files
    command = ["train", old, "--target", "left?", "--time", "since", "--out", tmp_path / "out"]
    assert "groups ('customer') of the test part are in training too" in refused(*command, "--groups", "customer")
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    assert "48 held-out rows, the newest by &#39;since&#39;" in (tmp_path / "out" / "report.html").read_text()
    pd.read_csv(new).drop(columns="since").to_csv(tmp_path / "timeless.csv", index=False)
    assert predict(tmp_path / "out" / "model.calibrant", tmp_path / "timeless.csv", tmp_path / "p.csv").notes == []


TIMES = {
    "not a date": (lambda t: t, "plan", "must hold dates such as 2024-12-31, or numbers, to be the --time"),
    "missing": (lambda t: t, "spent (€)", "got 20 rows without one. Fill them in"),
    "constant": (lambda t: t, "always", "cannot be divided by 'always', because all have the same value"),
    "target": (lambda t: t, "left?", "name another column for the time"),
    "unknown": (lambda t: t, "sinse", "Did you mean 'since'?"),
    "new class": (
        lambda t: t.assign(**{"left?": t["left?"].where(t["since"] < "2020-08-01", "maybe")}),
        "since",
        "The class 'maybe' of 'left?' has no training row, because --time holds the newest rows out",
    ),
}


@pytest.mark.parametrize("case", TIMES)
def test_columns_that_cannot_order_rows_get_a_sentence(case, tmp_path):
    change, time, sentence = TIMES[case]
    change(churn(240)).to_csv(tmp_path / "t.csv", index=False)
    assert sentence in refused(
        "train", tmp_path / "t.csv", "--target", "left?", "--time", time, "--out", tmp_path / "o"
    )


def test_time_and_a_test_file_exclude_each_other(files, tmp_path):
    old, new = files
    command = ["train", old, "--target", "left?", "--time", "since", "--test", new, "--out", tmp_path / "out"]
    assert "--test must be a share of its rows" in refused(*command)


def test_dates_outside_the_training_range_are_noted(quick, files, tmp_path):
    old, new = files
    command = ["train", old, "--target", "left?", "--drop", "customer", "--out", tmp_path / "out"]
    done = invoke(*command, "--test", new)
    outside = "Column 'since' has a date outside the training rows' range (2020-01-01 to 2020-08-27) in 120 of 120 "
    assert outside + "test rows." in done.stderr
    assert load_model(tmp_path / "out" / "model.calibrant").about["dates"]["since"] == tuple(
        (datetime.fromisoformat(day) - datetime(1970, 1, 1)).days for day in ("2020-01-01", "2020-08-27")
    )
    for chunk in (50, 1000):
        summary = predict(tmp_path / "out" / "model.calibrant", new, tmp_path / "p.csv", chunk=chunk)
        assert any(note.startswith(outside + "rows.") for note in summary.notes)
    assert predict(tmp_path / "out" / "model.calibrant", old, tmp_path / "p.csv").notes == []
    done = invoke(*command)  # rows drawn at random
    assert done.exit_code == 0
    assert "training rows' range" not in done.stderr


def test_accepting_an_overlap_needs_groups(files, tmp_path):
    command = ["train", files[0], "--target", "left?", "--test-overlap", "--out", tmp_path / "out"]
    assert "--test-overlap must come with --groups" in refused(*command)


def test_left_out_columns_of_a_test_file_are_not_read(tmp_path):
    source = churn(120).assign(note=1)
    source.to_csv(tmp_path / "t.csv", index=False)
    source.head(40).assign(note="none", visits="many").to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(ValueError, match=r"'visits' of test\.csv must hold numbers, as in .*; got 'many' in row 1\."):
        parts_of(tmp_path / "t.csv", drop=["note"], test=tmp_path / "test.csv")
    parts = parts_of(tmp_path / "t.csv", drop=["note", "visits"], test=tmp_path / "test.csv")
    assert len(parts.test) == 40
