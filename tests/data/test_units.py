"""Tests of numbers with units, in columns of a training table and of later files."""

import pytest

pytest.importorskip("pandas")
import pandas as pd

from calibrant.data import TableEncoder, read_columns
from calibrant.data.number_marks import NumberMarks
from calibrant.data.number_reader import NumberReader
from calibrant.data.table_chunks import read_chunks
from calibrant.data.units import several_units, split_unit, without_unit


@pytest.mark.parametrize(
    ("values", "found", "unit"),
    [
        (["$5", "-$7.50", "$ 1,200", None], ["5", "-7.50", "1,200", None], "$"),
        (["5 €", "1.549,34 €", "3"], ["5", "1.549,34", "3"], "€"),
        (["7.5%", " 12 % ", "+3%"], ["7.5", "12", "+3"], "%"),
        (["CHF 5", "7 CHF"], ["5", "7"], "CHF"),
        (["12 kg", "-3.5kg", "1.234,5 KG", None, "7"], ["12", "-3.5", "1.234,5", None, "7"], "kg"),
        (["37.5 °C", "38°C"], ["37.5", "38"], "°C"),
        (["5 μg", "7 µg"], ["5", "7"], "µg"),
        (["90 mg/dl", "110 mg/dl"], ["90", "110"], "mg/dl"),
        (["22.5 kg/m²", "30kg/m²"], ["22.5", "30"], "kg/m²"),
        (["1 year", "2 years", "3 Years"], ["1", "2", "3"], "year"),
        (["1 Jahr", "2 Jahre"], ["1", "2"], "Jahr"),
        (["1 room", "2 rooms"], ["1", "2"], "room"),
        (["12 kg"] * 19 + ["unknown"], ["12"] * 19 + ["unknown"], "kg"),
    ],
)
def test_the_unit_of_a_column_is_removed(values, found, unit):
    column, removed = without_unit(pd.Series(values, dtype=object))
    assert [None if pd.isna(v) else v for v in column] == found
    assert removed == unit


@pytest.mark.parametrize(
    "values",
    [
        ["$5", "7 €"],
        ["12 kg", "500 g"],
        ["5 mW", "7 MW"],
        ["A12", "A13"],
        ["12A", "13A"],
        ["12B", "13B"],
        ["12AB", "13AB"],
        ["B 12", "B 13"],
        ["10K", "20K"],
        ["4th", "5th"],
        ["3 pm", "4 pm"],
        ["5", "7"],
        ["5%", "about 7%"],
        ["$5%", "$5"],
        ["x"],
        ["%", "$"],
        ["kg", "kg"],
        ["1.2.3", "1.2.4"],
        ["1.2.3 beta", "1.2.4 beta"],
        ["030 1234", "030 1235"],
        ["+49 30 1234", "+49 30 1235"],
        ["0049-30-12", "0049-30-13"],
        ["SW1A 1AA", "SW1A 2AA"],
        ["1012 AB", "1013 AB"],
        ["10115 Berlin", "10117 Berlin"],
        ["10115 berlin", "10117 berlin"],
        ["007 kg", "012 kg"],
        ["12 kg", *map(str, range(20))],  # one typing error in a column of numbers
        ["12 kg", "unknown"],
        [None],
    ],
)
def test_other_texts_have_no_unit(values):
    assert without_unit(pd.Series(values, dtype=object)) is None


def test_a_known_unit_is_removed_beside_other_text():
    column = pd.Series(["5 %", "unknown", "7 €"], dtype=object)
    assert without_unit(column) is None
    assert without_unit(column, "%")[0].tolist() == ["5", "unknown", "7 €"]


def test_values_that_are_not_text_have_no_unit():
    assert [split_unit(value) for value in (None, 5, 5.0, "", "5")] == [None, None, None, None, ("5", "")]


@pytest.mark.parametrize(
    ("values", "units"),
    [
        (["12 kg", "500 g", "3"], ["g", "kg"]),
        (["5 €", "7 $"], ["$", "€"]),
        (["5 kg", "7 kg"], []),
        (["12 A", "14 C", "15 F"], []),  # doors
        (["12B", "14C"], []),
        (["1 low", "2 high"], []),
        (["5 kg", "7 g", "heavy"], []),
    ],
)
def test_several_units(values, units):
    assert several_units(values) == units


def test_columns_with_several_units_are_categories_with_a_note():
    weights = ["500 g", "1 kg", "2 kg"] * 4
    with pytest.warns(
        UserWarning, match=r"'w' is not taken as numbers, because its values have different units \(g, kg\)\."
    ):
        encoder = TableEncoder().fit({"w": weights})
    assert encoder.get_feature_names_out().tolist() == ["w=1 kg", "w=2 kg", "w=500 g"]


def read(tmp_path, text, known=None, *, rows=None, **options):
    (tmp_path / "t.csv").write_text(text)
    reader = NumberReader("t.csv", known, **options)
    if rows is None:
        return read_columns(tmp_path / "t.csv", reader=reader), reader
    pieces = list(read_chunks(tmp_path / "t.csv", rows, reader=reader))
    return {name: [v for piece in pieces for v in piece[name].tolist()] for name in pieces[0]}, reader


TABLE = "w,rate,far,room,mixed,code,y\n12 kg,35%,1.5 km,1 room,1 kg,12B,1 kg\n,4%,20 km,3 rooms,5 g,13B,2 kg\n"


def test_units_of_a_training_table(tmp_path):
    columns, reader = read(tmp_path, TABLE, target="y")
    assert columns["w"].tolist()[0] == 12
    assert [columns[name].tolist() for name in ("rate", "far", "room")] == [[35, 4], [1.5, 20], [1, 3]]
    assert [columns[name].tolist() for name in ("mixed", "code", "y")] == [
        ["1 kg", "5 g"],
        ["12B", "13B"],
        ["1 kg", "2 kg"],
    ]
    assert reader.found.signs == {"w": "kg", "rate": "%", "far": "km", "room": "room"}
    assert NumberMarks.from_json(reader.found.to_json()) == reader.found
    assert sorted(reader.remarks) == [
        "Column 'far' has the unit 'km' and is read as numbers.",
        "Column 'rate' has the unit '%' and is read as numbers.",
        "Column 'room' has the unit 'room' and is read as numbers.",
        "Column 'w' has the unit 'kg' and is read as numbers.",
    ]
    plain, reader = read(tmp_path, TABLE)  # any other file
    assert plain["rate"].tolist() == ["35%", "4%"]
    assert not reader.remarks


@pytest.mark.parametrize("rows", [None, 1])
def test_later_files_have_the_units_of_the_training_table(rows, tmp_path):
    known = NumberMarks(signs={"w": "kg", "rate": "%"})
    columns, reader = read(tmp_path, "w,rate,new\n12kg,5\u2009%,3 km\n7,6 %,4 km\n,x,5 km\n", known, rows=rows)
    assert [float(v) for v in columns["w"]][:2] == [12, 7]
    assert columns["rate"][2] == "x"  # the encoder decides on words
    assert list(columns["new"]) == ["3 km", "4 km", "5 km"]
    assert not reader.remarks
    for text in ("w,rate\n12 kg,5\n500 g,6\n", "w,rate\n500 g,5\n", "w,rate\n500 g,5 €\n"):
        with pytest.raises(ValueError, match=r"'w' of t\.csv must have the unit .* 'kg'; got '500 g'\. Convert it"):
            read(tmp_path, text, known, rows=rows)
    columns, _ = read(tmp_path, "w,rate\n500 g,5\n", known, rows=rows, used={"rate"})
    assert list(columns["w"]) == ["500 g"]


def test_units_behind_decimal_commas(tmp_path):
    text = "a;b;y\n12,5 kg;1.200 m;0\n7 kg;800 m;1\n"
    columns, reader = read(tmp_path, text, target="y")
    assert [columns[name].tolist() for name in "ab"] == [[12.5, 7], [1200, 800]]
    later, _ = read(tmp_path, 'a;b\n"3,125 kg";1.300 m\n', reader.found)
    assert [later[name].tolist() for name in "ab"] == [[3.125], [1300]]
    quoted, _ = read(tmp_path, 'a,y\n"12,5 %",0\n"7,25 %",1\n', target="y")
    assert quoted["a"].tolist() == [12.5, 7.25]
    unclear, reader = read(tmp_path, 'a,y\n"1,719 kg",0\n"1,805 kg",1\n', target="y")
    assert unclear["a"].tolist() == ["1,719 kg", "1,805 kg"]
    assert not reader.remarks


def test_codes_stay_as_they_are(tmp_path):
    codes = {
        "letter first": [f"A{k}" for k in range(30)],
        "letter last": [f"{k}B" for k in range(30)],
        "id": [f"{k:05d}-{k % 7}" for k in range(30)],
        "phone": [f"0171 {k + 4000}" for k in range(30)],
        "abroad": [f"+49 30 {k + 4000}" for k in range(30)],
        "dashes": [f"{k + 100}-{k + 1000}" for k in range(30)],
        "version": [f"3.{k % 12}.{k}" for k in range(30)],
        "minor": [f"3.{k % 12}.{k % 20 + 10}" for k in range(30)],
        "address": [f"192.168.0.{k}" for k in range(30)],
        "postcode": [f"SW1A {k % 9}AA" for k in range(30)],
        "Dutch": [f"{k + 1012} AB" for k in range(30)],
        "place": [f"{k + 10115} Berlin" for k in range(30)],
        "clock": [f"{k % 24}:30" for k in range(30)],
        "half": [f"{k % 12 + 1} pm" for k in range(30)],
        "gene": [f"{k % 28 + 1}-Mar" for k in range(30)],
        "fraction": [f"{k % 12 + 1}/{k % 7 + 1}" for k in range(30)],
        "range": [f"{k}-{k + 5}" for k in range(30)],
        "rank": [f"{k + 4}th" for k in range(16)] * 2,
        "sort code": [f"{k + 20}-{k + 30}-{k + 10}" for k in range(30)],
        "week": [f"2024W{k + 10}" for k in range(30)],
    }
    table = pd.DataFrame({name: values[:30] for name, values in codes.items()} | {"y": [0, 1] * 15})
    columns, reader = read(tmp_path, table.to_csv(index=False), target="y")
    assert all(columns[name].tolist() == values[:30] for name, values in codes.items())
    assert reader.found == NumberMarks()
    assert not reader.remarks
