"""The comparison of the recipes with the usual loops, with one epoch of one task."""

from __future__ import annotations

import sys

import pytest

from calibrant.report.results import read_results
from studies.benchmarks import recipes


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["recipes", *map(str, arguments)])
    recipes.main()
    return capsys.readouterr().out


def test_one_row_of_the_comparison_and_its_store(monkeypatch, capsys, tmp_path):
    out = tmp_path / "recipes.json"
    command = ("--tasks", "table", "--epochs", 1, "--seeds", 1, "--out", out)
    assert "Time is up" in call(monkeypatch, capsys, *command, "--minutes", -1)
    assert not out.exists()
    printed = call(monkeypatch, capsys, *command)
    records = read_results(out).records
    assert [r["who"] for r in records] == list(recipes.WHO)
    assert "| table | 1 | small perceptron: AdamW, one cycle up to " in printed
    assert "{" not in call(monkeypatch, capsys, *command)  # nothing is left to do
    again = call(monkeypatch, capsys, *command, "--again")
    assert again.count("'who'") == 1
    ours, rival = dict(recipes.chosen(records))["table"][0]
    assert rival["val_nll"] == min(r["val_nll"] for r in records if r is not ours)


def test_the_test_part_is_not_read_while_recipes_are_chosen():
    record = recipes.measure("table", 100, "SGD x 1", 1, "cpu", {})
    assert record["val_nll"] > 0
    assert "nll" not in record
    with pytest.raises(KeyError):
        recipes.measure("unknown", 100, "SGD x 1", 1, "cpu", {})
