"""Tests of dates that are not in the ISO format, with and without a training table."""

import numpy as np
import pytest

pytest.importorskip("pandas")
import pandas as pd

from calibrant.data import read_columns
from calibrant.data.date_texts import DAY_FIRST, DOTS, MONTH_FIRST, date_form, iso_date
from calibrant.data.number_marks import NumberMarks
from calibrant.data.number_reader import NumberReader
from calibrant.data.table_chunks import read_chunks


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["26.01.2023", "1.2.2023", None, " "], DOTS),
        (["01.02.2023"], DOTS),
        (["26.01.2023 9:30", "01.02.2023 14:05:07", "1.2.2023"], DOTS),
        (["26/01/2023", "01/02/2023", np.nan], DAY_FIRST),
        (["01/26/2023", "1/2/2023"], MONTH_FIRST),
        (["01/02/2023", "12/12/2023"], None),  # the order is not clear
        (["26/01/2023", "01/26/2023"], None),
        (["26.01.2023", "31.02.2023"], None),
        (["01.26.2023"], None),
        (["26.01.2023 25:00"], None),
        (["26.01.2023", "26/01/2023"], None),
        (["26.01.2023", "2023-01-26"], None),
        (["26.01.2023", "unknown"], None),
        (["26.01.23"], None),
        (["1.234.567"], None),
        ([None], None),
    ],
)
def test_the_form_of_a_column(values, form):
    assert date_form(pd.Series(values, dtype=object)) == form


def test_dates_in_the_iso_format():
    assert iso_date(" 6.1.2023 ", DOTS) == "2023-01-06"
    assert iso_date("26.01.2023 9:30", DOTS) == "2023-01-26 09:30"
    assert iso_date("01/02/2023", DAY_FIRST) == "2023-02-01"
    assert iso_date("01/02/2023", MONTH_FIRST) == "2023-01-02"
    for value in ("01/02/2023", "31.02.2023", "x", None, 5.0):
        assert iso_date(value, DOTS) is None


def read(tmp_path, text, *marks, rows=None, **options):
    path = tmp_path / "t.csv"
    path.write_text(text)
    reader = NumberReader("t.csv", *marks, **options)
    pieces = [read_columns(path, reader=reader)] if rows is None else list(read_chunks(path, rows, reader=reader))
    return {name: np.concatenate([p[name] for p in pieces]).tolist() for name in pieces[0]}, reader


TABLE = (
    "dots;eu;us;unclear;y\n26.01.2023;26/01/2023;1/26/2023;1/2/2023;1.1.2023\n1.2.2023;1/2/2023;1/2/2023;;2.1.2023\n"
)


def test_dates_of_a_training_table(tmp_path):
    columns, reader = read(tmp_path, TABLE, target="y")
    assert columns["dots"] == columns["eu"] == ["2023-01-26", "2023-02-01"]
    assert columns["us"] == ["2023-01-26", "2023-01-02"]
    assert columns["unclear"][0] == "1/2/2023"
    assert columns["y"] == ["1.1.2023", "2.1.2023"]  # labels keep their names
    assert reader.found == NumberMarks(dates={"dots": DOTS, "eu": DAY_FIRST, "us": MONTH_FIRST})
    assert NumberMarks.from_json(reader.found.to_json()) == reader.found
    assert [note.partition(",")[0] for note in reader.remarks] == [
        "Dates in column 'eu' are read as day/month/year",
        "Dates in column 'us' are read as month/day/year",
    ]
    assert read(tmp_path, TABLE)[0]["dots"] == ["26.01.2023", "1.2.2023"]  # any other file


@pytest.mark.parametrize("rows", [None, 1])
def test_later_files_are_read_like_the_training_table(rows, tmp_path):
    _, training = read(tmp_path, TABLE, target="y")
    text = "dots;eu;us;new\n3.4.2023;3/4/2023;3/4/2023;3.4.2023\n;2023-05-06;?;1.1.2023\n"
    columns, reader = read(tmp_path, text, training.found, rows=rows)
    assert columns["dots"][0] == columns["eu"][0] == "2023-04-03"
    assert columns["us"][0] == "2023-03-04"
    assert columns["eu"][1] == "2023-05-06"
    assert columns["new"][0] == "3.4.2023"
    assert not reader.remarks


def test_dates_that_do_not_exist_are_refused(tmp_path):
    marks = NumberMarks(dates={"eu": DAY_FIRST})
    for value in ("01/26/2023", "31/02/2023"):
        with pytest.raises(ValueError, match=rf"'eu' of t\.csv .* \(day/month/year\); got '{value}'"):
            read(tmp_path, f"eu;n\n1/2/2023;1\n{value};2\n", marks)
    assert read(tmp_path, "eu;n\n1/2/2023;1\n01/26/2023;2\n", marks, used={"n"})[0]["eu"][1] == "01/26/2023"
