"""Tests of dates that are not in the ISO format, with and without a training table."""

import numpy as np
import pytest

pytest.importorskip("pandas")
import pandas as pd

from calibrant.data import read_columns
from calibrant.data.date_columns import date_forms
from calibrant.data.date_texts import DAY_FIRST, DOTS, MONTH_FIRST, NAMED, iso_date, order_of
from calibrant.data.number_marks import NumberMarks
from calibrant.data.number_reader import NumberReader
from calibrant.data.table_chunks import read_chunks

DAY_DASH, MONTH_DASH, YEAR_DASH = "day-month-year", "month-day-year", "year-month-day"


@pytest.mark.parametrize(
    ("values", "forms"),
    [
        (["26.01.2023", "1.2.2023", None, " "], [DOTS]),
        (["01.02.2023"], [DOTS]),
        (["26.01.2023 9:30", "01.02.2023, 14:05:07.25", "1.2.2023"], [DOTS]),
        (["26/01/2023", "01/02/2023", np.nan], [DAY_FIRST]),
        (["01/26/2023", "1/2/2023 3:05 PM"], [MONTH_FIRST]),
        (["26-01-2023", "01-02-2023"], [DAY_DASH]),
        (["01-26-2023", "01-02-2023"], [MONTH_DASH]),
        (["2023/1/26", "2023/02/01 14:05"], ["year/month/day"]),
        (["2023.01.26"], ["year.month.day"]),
        (["2023-1-26", "2023-02-01"], [YEAR_DASH]),
        (["3-Nov-2024", "26 January 2023", "Dec 1st, 2023", "03MAR2023 9:30"], [NAMED]),
        (["3. März 2024", "26. Okt. 2023"], [NAMED]),
        (["01/02/2023", "12/12/2023"], [DAY_FIRST, MONTH_FIRST]),  # the order is not clear
        (["01-02-2023", "12-12-2023"], [DAY_DASH, MONTH_DASH]),
        (["2023-01-26", "2023-02-01"], []),  # in the ISO format already
        (["26/01/2023", "01/26/2023"], []),
        (["26.01.2023", "31.02.2023"], []),
        (["01.26.2023"], []),
        (["26.01.2023 25:00"], []),
        (["1/26/2023 13:05 PM"], []),
        (["26.01.2023", "26/01/2023"], []),
        (["26.01.2023", "2023-01-26"], []),
        (["26.01.2023", "unknown"], []),
        (["3-Nov-2024", "3-Foo-2024"], []),
        (["1-Mar", "2-Sep"], []),
        (["1.234.567"], []),
        ([None], []),
    ],
)
def test_the_forms_of_a_column(values, forms):
    assert date_forms(pd.Series(values, dtype=object)) == forms


@pytest.mark.parametrize(
    ("values", "forms"),
    [
        (["03.11.24", "26.01.23 9:30"], [DOTS]),
        (["03-11-24", "31-01-23"], [DAY_DASH]),
        (["11-03-24", "01-31-23"], [MONTH_DASH]),
        ([f"{22 + k % 3}-03-{k:02d}" for k in range(9, 32)], [YEAR_DASH]),
        ([f"24/03/{k:02d}" for k in range(9, 32)], ["year/month/day"]),
        (["24-11-03", "23-01-31"], [DAY_DASH, YEAR_DASH]),
        ([f"01-{k:02d}-30" for k in range(3, 13)], [DAY_DASH, MONTH_DASH, YEAR_DASH]),  # in 2030, or on the 30th
        ([f"{k % 20 + 4:02d}-03-{(1, 15)[k % 2]:02d}" for k in range(60)], [DAY_DASH, YEAR_DASH]),
        ([f"{(1, 15)[k % 2]:02d}.03.{k % 20 + 4:02d}" for k in range(60)], [DOTS]),
        ([f"{k:02d}-03-01" for k in range(5, 24)], [DAY_DASH, YEAR_DASH]),
        ([f"{10 + k % 11}-03-{30 + k % 2}" for k in range(22)], [DAY_DASH, YEAR_DASH]),
        ([f"{(1, 15)[k % 2]:02d}-03-{k:02d}" for k in range(9, 32)], [DAY_DASH, YEAR_DASH]),
        (["03-11-24", "15-11-24"], [DAY_DASH]),
        (["3/11/24", "26/1/23"], [DAY_FIRST]),
        (["3-Nov-24", "26-Jan-23"], [NAMED]),
        (["26.01.23", "03.11.2024"], [DOTS]),
        (["24-11-03", "23-01-15"], [DAY_DASH, YEAR_DASH]),
        (["01-03-05", "01-04-23"], [DAY_DASH, MONTH_DASH, YEAR_DASH]),
        (["01.03.05", "01.04.23"], [DOTS]),
        ([f"{k:02d}-03-{20 + k % 3}" for k in range(1, 20)], [DAY_DASH]),
        (["3.11.10", "3.10.12", "3.9.18"], []),  # versions
        (["10.11.12", "12.10.13"], []),
        (["1.2.3", "10.2.3"], []),
        (["20-12-05", "40-44-01"], []),
        (["1/2/3", "5/10/15"], []),
    ],
)
def test_years_of_two_digits(values, forms):
    found = date_forms(values)
    assert list(map(order_of, found)) == forms
    assert all(iso_date(value, form) for form in found for value in values)


@pytest.mark.parametrize(
    ("years", "first"),
    [
        ([24], 1974),
        ([18, 20, 24], 1971),
        ([45, 80, 99, 5], 1925),
        ([99, 0], 1950),
        (range(100), 1950),
        ([50, 68], 1909),
    ],
)
def test_the_column_decides_the_century(years, first):
    """People born from 1945 to 2005 do not live in 2045, and visits from 2018 to 2024 are not split."""
    (form,) = date_forms([f"01/13/{year:02d}" for year in years])
    assert form == f"month/day/year from {first}"
    assert {int(iso_date(f"01/13/{k:02d}", form)[:4]) for k in range(100)} == set(range(first, first + 100))


def test_dates_in_the_iso_format():
    assert iso_date(" 6.1.2023 ", DOTS) == "2023-01-06"
    assert iso_date("26.01.2023 9:30", DOTS) == "2023-01-26 09:30"
    assert iso_date("01/02/2023", DAY_FIRST) == "2023-02-01"
    assert iso_date("01/02/2023", MONTH_FIRST) == "2023-01-02"
    assert iso_date("1/2/2023 12:05 am", MONTH_FIRST) == "2023-01-02 00:05"
    assert iso_date("1/2/2023 3:05:10 P.M.", MONTH_FIRST) == "2023-01-02 15:05:10"
    assert iso_date("2023/1/2", "year/month/day") == "2023-01-02"
    assert iso_date("MAY 3, 2024", NAMED) == iso_date("3 Mai 2024", NAMED) == "2024-05-03"
    assert iso_date("03.11.24", DOTS + " from 1925") == "2024-11-03"
    assert iso_date("03.11.25", DOTS + " from 1925") == "1925-11-03"
    for value in ("01/02/2023", "31.02.2023", "03.11.24", "x", None, 5.0):
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
    assert reader.remarks == [
        "Dates in column 'eu' are read as day/month/year, because some numbers are above 12.",
        "Dates in column 'us' are read as month/day/year, because some numbers are above 12.",
        "Dates in column 'unclear' stay text, because their order is not clear: '1/2/2023' may be day/month/year or "
        "month/day/year. Write them as 2024-12-31.",
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


@pytest.mark.parametrize("rows", [None, 1])
def test_other_forms_of_a_training_table_and_of_later_files(rows, tmp_path):
    table = "a,b,c,d,y\n26-01-2023,26.01.23,2023/1/26,26-Jan-2023,0\n01-02-2023,01.02.45,2023/2/1,1-Feb-2023,1\n"
    columns, training = read(tmp_path, table, target="y")
    assert columns["a"] == columns["c"] == columns["d"] == ["2023-01-26", "2023-02-01"]
    assert columns["b"] == ["2023-01-26", "2045-02-01"]
    assert training.remarks == [
        "Dates in column 'a' are read as day-month-year, because some numbers are above 12.",
        "Dates in column 'b' are read as day.month.year. Years of two digits are read as 1984 to 2083.",
    ]
    known = NumberMarks.from_json(training.found.to_json())
    text = "a,b,c,d\n03-04-2023,03.04.83,2023/04/03,3 April 2023\n2023-04-03,03.04.2023,,03APR2023\n"
    later, reader = read(tmp_path, text, known, rows=rows)
    assert later["a"] == ["2023-04-03"] * 2
    assert later["b"] == ["2083-04-03", "2023-04-03"]
    assert (later["c"][0], later["d"]) == ("2023-04-03", ["2023-04-03"] * 2)
    assert not reader.remarks
    with pytest.raises(ValueError, match=r"'a' of t\.csv .* \(day-month-year\); got '03-04-23'"):
        read(tmp_path, "a,b\n03-04-23,1\n", known)
