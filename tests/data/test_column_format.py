"""Tests of the formats of columns: declared in training, applied later, and values in other formats are errors."""

import gzip

import numpy as np
import pandas as pd
import pytest

from calibrant.data import TableEncoder, read_columns
from calibrant.data.columns import ColumnFormat, Notation
from calibrant.data.columns.column_format import choose_format, formats_from_json, formats_to_json
from calibrant.data.columns.hints import looks_like
from calibrant.data.columns.read import read_chunks, read_formatted

GERMAN = Notation(",", ".", ("%d.%m.%Y", "%d.%m.%Y %H:%M"))
TEXT = (
    "euros;share;when;seen;code;plan;member\n"
    "1.200;0,5;26.01.2023;26.01.2023 09:30;007;basic;true\n"
    "950;-1.234,75;1.2.2023;;012;plus;false\n"
    ";2e3;;01.02.2023 00:00;101;1.5;\n"
)


def texts(*values):
    return np.array([*values, None], dtype=object)


@pytest.mark.parametrize(
    ("notation", "values", "numbers"),
    [
        (Notation(), ["1", " 2 ", "-3"], [1, 2, -3]),
        (Notation(), ["1.5", "+.5", "2.", "1e3"], [1.5, 0.5, 2, 1000]),
        (Notation(thousands=","), ["1,234.5", "1234", "12,345,678"], [1234.5, 1234, 12345678]),
        (Notation(","), ["1,5", "2", ",25"], [1.5, 2, 0.25]),
        (Notation(",", "."), ["1.200", "0,5", "1.234.567,25"], [1200, 0.5, 1234567.25]),
        (Notation(",", "'"), ["1'200,5"], [1200.5]),
    ],
)
def test_numbers_are_read_as_declared(notation, values, numbers):
    form, _ = choose_format(texts(*values), notation)
    assert form == ColumnFormat("numbers", notation.decimal, notation.thousands)
    np.testing.assert_array_equal(form.read(texts(*values), "x", "t.csv"), [*numbers, np.nan])
    assert formats_from_json(formats_to_json({"x": form})) == {"x": form}


@pytest.mark.parametrize("content", [[], {"x": None}, {"x": {"kind": "words"}}, {"x": {"kind": "text", "size": 1}}])
def test_formats_of_another_version_are_refused(content):
    with pytest.raises(ValueError, match="does not hold formats of columns that this version wrote"):
        formats_from_json(content)


@pytest.mark.parametrize(
    ("notation", "value"),
    [
        (Notation(), "0,5"),
        (Notation(), "1_000"),
        (Notation(), "٣"),
        (Notation(), "12 kg"),
        (Notation(), "0x1A"),
        (Notation(","), "0.5"),
        (Notation(","), "1.200"),
        (Notation(",", "."), "1.20"),
        (Notation(",", "."), "1.2345"),
        (Notation(thousands=","), "1,23"),
    ],
)
def test_numbers_with_other_marks_are_text_and_later_errors(notation, value):
    assert choose_format(texts("5", value), notation)[0].kind == "text"
    form = ColumnFormat("numbers", notation.decimal, notation.thousands)
    with pytest.raises(ValueError, match=r"^Column 'x' of new\.csv must hold numbers") as error:
        form.read(texts("5", value), "x", "new.csv", first=41)
    assert f"; got {value!r} in row 42. Correct it, or leave it empty." in str(error.value)


@pytest.mark.parametrize(
    ("dates", "values", "iso"),
    [
        ((), ["2023-01-26", "2023-01-26T10:00:00+02:00"], ["2023-01-26", "2023-01-26T10:00:00+02:00"]),
        (("%d.%m.%Y",), ["26.01.2023", "1.2.2023"], ["2023-01-26", "2023-02-01"]),
        (("%d.%m.%Y", "%m/%d/%y"), ["12/31/24"], ["2024-12-31"]),
        (("%d-%b-%Y %H:%M",), ["3-Nov-2024 14:05"], ["2024-11-03 14:05:00"]),
    ],
)
def test_dates_are_read_as_declared(dates, values, iso):
    form, _ = choose_format(texts(*values), Notation(dates=dates))
    assert form.kind == "dates"
    assert form.read(texts(*values), "when", "t.csv").tolist() == [*iso, None]
    for wrong in ("31.02.2023", "soon"):
        with pytest.raises(ValueError, match=rf"must hold dates such as .*; got '{wrong}' in row 1\."):
            form.read(texts(wrong), "when", "t.csv")


def test_truth_values_are_words_for_true_and_false():
    form, _ = choose_format(texts("true", "False"), Notation())
    assert form.kind == "truth values"
    assert form.read(texts("TRUE", "false"), "x", "t.csv").tolist() == [True, False, None]
    with pytest.raises(ValueError, match="must hold true or false, as in the training table; got 'yes' in row 1"):
        form.read(texts("yes"), "x", "t.csv")


@pytest.mark.parametrize("rows", [1, 2, 50])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_a_later_file_is_read_in_the_formats_of_training(name, rows, tmp_path):
    (tmp_path / "train.csv").write_text(TEXT)
    table = read_formatted(tmp_path / "train.csv", GERMAN)
    kinds = {column: form.kind for column, form in table.formats.items()}
    assert list(kinds.values()) == ["numbers", "numbers", "dates", "dates", "text", "text", "truth values"]
    np.testing.assert_array_equal(table.columns["euros"], [1200, 950, np.nan])
    np.testing.assert_array_equal(table.columns["share"], [0.5, -1234.75, 2000])
    assert table.columns["seen"].tolist() == ["2023-01-26 09:30:00", None, "2023-02-01"]
    path = tmp_path / name
    if name == "t.parquet":
        pd.read_csv(tmp_path / "train.csv", sep=";", dtype=str).to_parquet(path)
    else:
        path.write_bytes(gzip.compress(TEXT.encode()) if name.endswith(".gz") else TEXT.encode())
    pieces = list(read_chunks(path, rows, table.formats))
    for column, values in table.columns.items():
        found = np.concatenate([piece[column] for piece in pieces])
        assert list(map(str, found)) == list(map(str, values.astype(found.dtype)))
    assert read_formatted(path, Notation(), table.formats).columns["euros"].tolist()[:2] == [1200, 950]


def test_errors_in_pieces_name_the_row_of_the_file(tmp_path):
    (tmp_path / "t.csv").write_text("x\n" + "1\n" * 9 + "many\n")
    with pytest.raises(ValueError, match=r"Column 'x' of t\.csv must hold numbers, .*; got 'many' in row 10\."):
        list(read_chunks(tmp_path / "t.csv", 4, {"x": ColumnFormat("numbers")}))


def test_typed_columns_keep_their_types(tmp_path):
    frame = pd.DataFrame({"x": [1.5, None], "n": [1, 2], "when": pd.to_datetime(["2024-01-01", "2024-01-02"])})
    frame.assign(c=pd.Categorical(["1", "2"])).to_parquet(tmp_path / "t.parquet")
    table = read_formatted(tmp_path / "t.parquet", GERMAN)
    assert [form.kind for form in table.formats.values()] == ["numbers", "numbers", "dates", "text"]
    assert [column.dtype.kind for column in table.columns.values()] == ["f", "i", "M", "O"]
    assert table.formats["x"] == ColumnFormat("numbers", ",", ".")  # for a later text file


def test_columns_declared_as_text_stay_text(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1.10,2\n1.1,3\n")
    table = read_formatted(tmp_path / "t.csv", Notation(), text=["a"])
    assert table.columns["a"].tolist() == ["1.10", "1.1"]
    assert table.columns["b"].tolist() == [2, 3]
    with pytest.warns(UserWarning, match="'a' is left out"):
        assert TableEncoder().fit(table.columns).dropped_ == {"a": "too many categories"}


def test_the_encoding_is_declared(tmp_path):
    for encoding in ("cp1252", "utf-16", "utf-8-sig"):
        (tmp_path / "t.csv").write_bytes("straße;y\nKöln;1\n".encode(encoding))
        assert read_columns(tmp_path / "t.csv", encoding=encoding)["straße"].tolist() == ["Köln"]
    (tmp_path / "t.csv").write_bytes("straße;y\nKöln;1\n".encode("cp1252"))
    with pytest.raises(ValueError, match=r"t\.csv is not text in UTF-8; .* such as --encoding cp1252"):
        read_columns(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"decimal": ";"}, "--decimal must be a point or a comma; got ';'"),
        ({"thousands": "12"}, "--thousands must be one mark"),
        ({"decimal": ",", "thousands": ","}, "--thousands must differ from the decimal mark"),
        ({"dates": "DD.MM.YYYY"}, "--dates must be a format such as %d.%m.%Y; got 'DD.MM.YYYY'"),
        ({"dates": ["%d.%m.%Y", "%Q"]}, "--dates must be a format"),
        ({"encoding": "ansi-german"}, "--encoding must be an encoding such as cp1252; got 'ansi-german'"),
    ],
)
def test_impossible_options_are_refused(options, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        read_columns(tmp_path / "t.csv", **options)


@pytest.mark.parametrize(
    ("values", "option"),
    [
        (["0,5", "1,25", "7"], "numbers with other marks ('0,5'). Pass --decimal and --thousands"),
        (["1.234.567", "2.345.678"], "numbers with other marks ('1.234.567')"),
        (["26.01.2023", "1.2.2023"], "dates ('26.01.2023'). Pass their format, such as --dates %d.%m.%Y, or"),
        (["26.01.23 09:30"], "dates ('26.01.23 09:30')"),
        (["3-Nov-2024", "14-Dec-2024"], "dates ('3-Nov-2024')"),
        (["31. Dezember 2024"], "dates ('31. Dezember 2024')"),
        ([f"{k} kg" for k in range(12, 30)], "a unit or other characters ('12 kg'). Write plain numbers in one unit"),
        ([f"${k}" for k in range(5, 20)], "a unit or other characters ('$5')"),
        ([f"{k}ml" for k in range(5, 20)], "a unit or other characters ('5ml')"),
        ([*map(str, range(20)), "many"], "because 'many' is not a number. Leave it empty if it is missing"),
    ],
)
def test_a_note_gives_the_option_to_pass(values, option):
    note = looks_like("x", values)
    assert note.startswith("Column 'x' is read as text, ")
    assert option in note


@pytest.mark.parametrize(
    "values", [["a", "b"], ["12 rue de Paris", "7 allée"], ["New York"], ["K-1", "K-2"], ["1", "2", "x"]]
)
def test_no_note_on_words_and_names(values):
    assert looks_like("x", values) is None
    assert looks_like("x", [f"{k}A" for k in range(20)]) is None


def test_an_encoder_gives_the_note_too():
    with pytest.warns(UserWarning, match="'share' is read as text, but looks like numbers with other marks"):
        TableEncoder().fit({"share": ["0,5", "1,5", "0,5"] * 9})


def test_points_that_the_declared_marks_do_not_explain_are_noted(tmp_path):
    (tmp_path / "t.csv").write_text("euros;share;y\n1.200;0,5;a\n2.500;1,5;b\n")
    table = read_formatted(tmp_path / "t.csv", Notation(","))
    assert table.formats["euros"].kind == "text"
    assert "'1.200' is not a number with the declared marks. Pass --thousands" in table.notes["euros"]
    assert list(table.notes) == ["euros"]
    assert not read_formatted(tmp_path / "t.csv", Notation(",", ".")).notes
