"""Tests of tables: the best values, and the renderings as Markdown and CSV."""

import csv
import io

import numpy as np
import pytest

from calibrant.metrics import Estimate
from studies.report import Column, Table, to_csv, to_markdown
from studies.report.table import make_table

COLUMNS = ["method", Column("ECE", better="low"), Column("accuracy", better="high", digits=2)]


def test_the_best_of_each_column_is_marked():
    rows = [["a", 0.030, 0.90], ["b", 0.020, 0.80], ["c", None, 0.95]]
    assert make_table(COLUMNS, rows).best() == {(1, 1), (2, 2)}


def test_what_is_shown_as_equal_is_equally_good():
    rows = [["a", 0.02001, 0.904], ["b", 0.02049, 0.896], ["c", 0.021, 0.5]]
    assert make_table(COLUMNS, rows).best() == {(0, 1), (1, 1), (0, 2), (1, 2)}


def test_exempt_rows_are_never_best_and_groups_are_apart():
    columns = ["data", *COLUMNS]
    rows = [
        ["x", "floor", 0.001, 0.99],
        ["x", "a", 0.020, 0.90],
        ["x", "b", 0.030, 0.91],
        ["y", "a", 0.005, 0.70],
        ["y", "b", 0.004, 0.60],
    ]
    assert make_table(columns, rows, group="data", exempt={"floor"}).best() == {(1, 2), (2, 3), (4, 2), (3, 3)}


def test_alone_nothing_is_best():
    assert make_table(COLUMNS, [["a", 0.1, 0.9], ["b", None, float("nan")]]).best() == set()


def test_intervals_are_compared_by_their_value():
    rows = [["a", Estimate(0.02, 0.0, 0.04, 0.95, ""), 1.0], ["b", np.float64(0.03), 0.5]]
    assert (0, 1) in make_table(COLUMNS, rows).best()


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="row 1 must have 3 cells"):
        make_table(COLUMNS, [["a", 0.1, 0.2], ["b", 0.1]])
    with pytest.raises(ValueError, match="heading of a column; got 'set'"):
        Table([Column("data")], [], group="set")


def test_markdown_aligns_numbers_right_and_keeps_bars_in_text():
    text = to_markdown(COLUMNS, [["a|b", 0.03, 0.9], ["c", 0.02, 0.8]])
    assert text.splitlines() == [
        "| method |       ECE | accuracy |",
        "| ------ | --------: | -------: |",
        "| a\\|b   |     0.030 | **0.90** |",
        "| c      | **0.020** |     0.80 |",
    ]


def test_csv_keeps_all_digits_and_intervals():
    rows = [['say "a", b', Estimate(1 / 3, 0.25, 0.5, 0.95, ""), 0.1], ["c", None, np.float64(0.2)]]
    lines = list(csv.reader(io.StringIO(to_csv(COLUMNS, rows))))
    assert lines[0] == ["method", "ECE", "ECE low", "ECE high", "accuracy"]
    assert lines[1] == ['say "a", b', repr(1 / 3), "0.25", "0.5", "0.1"]
    assert lines[2] == ["c", "", "", "", "0.2"]


def test_markdown_aligns_numbers_written_as_text_to_the_right():
    rows = [["5", "7.19 ± 0.18", "2.3 [1.4, 3.8]", "0.64 ± 0.15 (0.57)", "2 of 3"], ["12", None, "−1", "**3**", "4"]]
    rule = to_markdown(["seeds", "error", "rank", "ECE (floor)", "text"], rows).splitlines()[1]
    assert [cell.strip().endswith(":") for cell in rule.strip("|").split("|")] == [True, True, True, True, False]
