"""Tests of amounts: currency and percent signs, and commas between thousands."""

import pytest

pytest.importorskip("pandas")
import pandas as pd

from calibrant.data import read_columns
from calibrant.data.number_marks import NumberMarks
from calibrant.data.number_reader import NumberReader
from calibrant.data.number_texts import without_comma_groups


def test_commas_between_thousands():
    assert without_comma_groups(pd.Series(["1,234.50", "3", "-12,000"])).tolist() == [1234.5, 3, -12000]
    for values in (["1,200", "3"], ["1,234.50", "x"], ["1,5", "2.5"]):
        assert without_comma_groups(pd.Series(values)) is None
    assert without_comma_groups(pd.Series(["1,200", "3"]), sure=True).tolist() == [1200, 3]


def test_amounts_of_a_training_table_and_of_later_files(tmp_path):
    def read(text, *marks, **options):
        (tmp_path / "t.csv").write_text(text)
        reader = NumberReader("t.csv", *marks, **options)
        return read_columns(tmp_path / "t.csv", reader=reader), reader

    text = 'paid,rate,sum,y\n"$1,200",5%,"1,234.50",10%\n$7,6.5%,3.25,20%\n'
    columns, reader = read(text, target="y")
    assert [columns[name].tolist() for name in ("paid", "rate", "sum")] == [[1200, 7], [5, 6.5], [1234.5, 3.25]]
    assert columns["y"].tolist() == ["10%", "20%"]  # labels keep their names
    assert reader.found.signs == {"paid": "$", "rate": "%"}
    assert NumberMarks.from_json(reader.found.to_json()) == reader.found
    assert read(text)[0]["paid"].tolist() == ["$1,200", "$7"]  # any other file
    later, _ = read('paid,rate,sum,y\n"$2,500",?,"1,200",20%\n7,x,,10%\nfree,6%,4,10%\n', reader.found)
    assert later["paid"].tolist() == ["2500", "7", "free"]
    assert later["sum"].tolist()[::2] == [1200, 4]
    assert later["rate"].tolist()[1:] == ["x", "6"]


def test_commas_that_may_be_decimal_stay(tmp_path):
    for text in ("a;y\n1,719 €;0\n1,805 €;1\n", "a;y\n$1,719;0\n$1,805;1\n", 'a,y\n"1,719 €",0\n"1,805 €",1\n'):
        (tmp_path / "t.csv").write_text(text)
        reader = NumberReader("t.csv", target="y")
        columns = read_columns(tmp_path / "t.csv", reader=reader)
        assert columns["a"][0] in ("1,719 €", "$1,719")
        assert not reader.found.signs


def test_amounts_with_decimal_commas(tmp_path):
    (tmp_path / "t.csv").write_text("a;b;c;y\n1.549,34 €;30,0 %;1.200 €;0\n12 €;5,5 %;30 €;1\n")
    reader = NumberReader("t.csv", target="y")
    columns = read_columns(tmp_path / "t.csv", reader=reader)
    assert [columns[name].tolist() for name in "abc"] == [[1549.34, 12], [30, 5.5], [1200, 30]]
    (tmp_path / "t.csv").write_text("a;b;c;y\n2.000 €;3 %;1.300 €;0\n")
    columns = read_columns(tmp_path / "t.csv", reader=NumberReader("t.csv", reader.found))
    assert [columns[name].tolist() for name in "abc"] == [[2000], [3], [1300]]
