"""Tests of reading tables: correct values from good files, and one-sentence errors for bad ones."""

import gzip

import numpy as np
import pandas as pd
import pytest

from calibrant.data import TableEncoder, read_columns
from calibrant.data.columns import Notation
from calibrant.data.columns.labels import as_labels
from calibrant.data.columns.read import read_formatted

FRAME = pd.DataFrame(
    {
        "age": [31.5, None, 58.0, 24.0],
        "town": ["Köln", "Bern", None, "Bern"],
        "visits": [1, 2, 2, 7],
        "member": [True, False, True, True],
        "outcome": ["yes", "no", "no", "yes"],
    }
)
WRITERS = {
    "t.csv": lambda f, p: f.to_csv(p, index=False),
    "t.CSV.gz": lambda f, p: f.to_csv(p, index=False, compression="gzip"),
    "indexed.csv": lambda f, p: f.to_csv(p),
    "semicolons.csv": lambda f, p: f.to_csv(p, index=False, sep=";"),
    "excel.csv": lambda f, p: f.to_csv(p, index=False, encoding="utf-8-sig"),
    "t.tsv": lambda f, p: f.to_csv(p, index=False, sep="\t"),
    "tabs.csv": lambda f, p: f.to_csv(p, index=False, sep="\t"),
    "bars.csv": lambda f, p: f.to_csv(p, index=False, sep="|"),
    "my.own.table.tsv.gz": lambda f, p: f.to_csv(p, index=False, sep="\t"),
    "t.parquet": lambda f, p: f.to_parquet(p),
    "t.parquet.gz": lambda f, p: p.write_bytes(gzip.compress(f.to_parquet())),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_table(name, tmp_path):
    WRITERS[name](FRAME, tmp_path / name)
    columns = read_columns(tmp_path / name)
    assert list(columns) == ["age", "town", "visits", "member", "outcome"]
    np.testing.assert_array_equal(columns["age"], [31.5, np.nan, 58.0, 24.0])
    assert columns["town"][[0, 1, 3]].tolist() == ["Köln", "Bern", "Bern"]
    assert pd.isna(columns["town"][2])
    assert columns["visits"].tolist() == [1, 2, 2, 7]
    assert columns["member"].tolist() == [True, False, True, True]
    assert np.array_equal(TableEncoder().fit_transform(columns), TableEncoder().fit_transform(FRAME))


@pytest.mark.parametrize(
    ("before", "after", "names", "encoded"),
    [
        ("01 02 A1", "02 03 01", ["x=01", "x=02", "x=A1"], [[0, 1, 0], [0, 0, 0], [1, 0, 0]]),
        ("true false unknown", "true false", ["x=false", "x=true", "x=unknown"], [[0, 1, 0], [1, 0, 0]]),
    ],
    ids=["leading zeros", "truth values"],
)
def test_words_of_later_files_are_those_of_training(before, after, names, encoded, tmp_path):
    for name, words in (("train.csv", 2 * before.split()), ("new.csv", after.split())):
        (tmp_path / name).write_text("\n".join(["x", *words]) + "\n")
    encoder = TableEncoder(rare=0).fit(read_columns(tmp_path / "train.csv"))
    assert encoder.get_feature_names_out().tolist() == names
    assert encoder.transform(read_columns(tmp_path / "new.csv")).tolist() == encoded


def test_codes_beyond_64_bits_keep_their_zeros(tmp_path):
    codes = ["00012345678901234567890123", "99912345678901234567890123", "7"]
    (tmp_path / "t.csv").write_text("\n".join(["code", *codes]))
    assert read_columns(tmp_path / "t.csv")["code"].tolist() == codes


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        (["1.0", "-1.0", "1.0"], "i", [1, -1, 1]),
        (["True", "False", "True"], "b", [True, False, True]),
        (["1", "2", "many"], "U", ["1", "2", "many"]),
        (["3", "0", "3"], "i", [3, 0, 3]),
    ],
)
def test_labels_are_what_they_look_like(labels, kind, expected, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{k},{v}\n" for k, v in enumerate(labels)))
    found = as_labels(read_columns(tmp_path / "t.csv")["y"])
    assert found.dtype.kind == kind
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [(["a", None, "?"], "1 of the 3 labels in 'y' are missing"), ([0.5, 1], "got 1 values that are not whole")],
)
def test_labels_that_are_no_classes_are_refused(labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        as_labels(np.array(labels, dtype=object), name="y")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.csv", "x,y\n", "holds no rows"),
        ("t.csv", "", "is empty; give a file"),
        ("t.csv", "größe,y\n1,2\n".encode() + b"\xff", "not text in UTF-8"),
        ("t.csv", "größe,y\n1,2\n".encode("utf-16")[:-1], "not text in UTF-8"),
        ("t.csv", bytes(range(256)) * 4, "not text in UTF-8"),
        ("t.csv", b"PK\x03\x04\x14\x00", "is a spreadsheet or an archive, not text; save it as CSV"),
        ("t.xlsx", "PK", r"must end in \.csv, \.tsv or \.parquet, optionally with \.gz; got t\.xlsx\. Save it as CSV"),
        ("t.csv.gz", "x,y\n1,1\n", "not a complete gzip file"),
        ("text.parquet", "x,y\n1,2\n", r"^text\.parquet could not be read as a Parquet file: .*\.$"),
        ("cut.parquet", b"PAR1" + bytes(40), r"^cut\.parquet could not be read as a Parquet file: .*\.$"),
    ],
)
def test_errors_name_what_is_wrong(name, content, sentence, tmp_path):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=sentence):
        read_columns(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_columns(tmp_path / "none.csv")


SHORT = "A value or a separator is missing"
LONG = "A name is missing in the header, or a separator inside a value"


@pytest.mark.parametrize(
    ("text", "fields", "reason"),
    [
        ("id,a,target\n0,3,1,extra0\n1,4,0,extra1\n", "3 fields of its header; got 4 in line 2", LONG),
        ("id,a,target\n0,3,1\n\n1,4,0,x,y\n", "3 fields of its header; got 5 in line 4", LONG),
        ('id,a,target\n0,"3\n4",1\n1,4,0,x\n', "3 fields of its header; got 4 in line 4", LONG),
        ("a,b,c,y,d\n1,2,3,x,5\n1,3,x,5\n", "5 fields of its header; got 4 in line 3", SHORT),
        ("a;b;y\n1;2;0\n \n\n1;2\n", "3 fields of its header; got 2 in line 5", SHORT),
    ],
)
def test_rows_of_another_length_are_refused_and_not_shifted(text, fields, reason, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"^Each line of t\.csv must have the {fields}\. {reason}"):
        read_columns(tmp_path / "t.csv")


@pytest.mark.parametrize(
    "text",
    [
        "\na,b,y\n\n1,2,0\n  \n3,4,1\n\n",
        "a,b,y,\n1,2,0\n3,4,1,\n",
        "a,b,y\n1,2,0,\n3,4,1,,\n",
        'a,b,y\r\n"1",2,0\r\n3,"4",1',
    ],
)
def test_blank_lines_and_empty_last_fields_are_no_errors(text, tmp_path):
    (tmp_path / "t.csv").write_bytes(text.encode())
    columns = read_columns(tmp_path / "t.csv")
    assert [columns[name].tolist() for name in "aby"] == [[1, 3], [2, 4], [0, 1]]


def test_a_zip_code_is_not_read_as_a_number(tmp_path):
    (tmp_path / "t.csv").write_text("zip,y\n" + "01234,01\n1234,1\n9876,1\n" * 20)
    columns = read_columns(tmp_path / "t.csv")
    assert set(columns.pop("y")) == {"01", "1"}
    names = TableEncoder(categorical=["zip"]).fit(columns).get_feature_names_out().tolist()
    assert names == ["zip=01234", "zip=1234", "zip=9876"]
    part = {"zip": columns["zip"][columns["zip"] != "01234"]}
    assert TableEncoder().fit(part).get_feature_names_out().tolist() == ["zip=1234", "zip=9876"]


@pytest.mark.parametrize("values", [["05", "3.5", "12"], ["05", "-3", "12"], ["0", "0.5", "10"]])
def test_a_point_or_sign_shows_zeros_of_numbers(values, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{v},{k % 2}\n" for k, v in enumerate(values)))
    assert read_columns(tmp_path / "t.csv")["x"].tolist() == [float(v) for v in values]


def test_spaces_around_names_are_no_part_of_them(tmp_path):
    (tmp_path / "t.csv").write_text("a , b, target \n1, x, yes\n2, ?, no\n")
    columns = read_columns(tmp_path / "t.csv")
    assert list(columns) == ["a", "b", "target"]
    assert columns["b"].tolist() == [" x", None]
    for header in ("a,a ,target", "a,b,a"):
        (tmp_path / "t.csv").write_text(f"{header}\n1,2,0\n")
        with pytest.raises(ValueError, match=r"^t\.csv: .*got a twice\."):
            read_columns(tmp_path / "t.csv")


def test_question_marks_are_missing_in_parquet_too(tmp_path):
    pd.DataFrame({"x": ["a", "?", " ? "], "y": ["1", "2", "1"]}).to_parquet(tmp_path / "t.parquet")
    assert read_columns(tmp_path / "t.parquet")["x"].tolist() == ["a", None, None]


def test_an_open_quotation_mark_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text('a,b,y\n1,2,0\n1,"2,0\n3,4,1\n')
    with pytest.raises(ValueError, match=r"^t\.csv could not .* in line 4\. Check that every quotation mark is closed"):
        read_columns(tmp_path / "t.csv")


def test_values_may_be_long(tmp_path):
    (tmp_path / "t.csv").write_text(f"x,y\n{'long' * 50_000},0\nb,1\n")
    assert len(read_columns(tmp_path / "t.csv")["x"][0]) == 200_000


@pytest.mark.parametrize("rows", [[1, 2, 3, 4], [9, 2, 30, 4], [0, 1, 0, 1]])
def test_nameless_row_numbers_are_left_out(rows, tmp_path):
    (tmp_path / "t.csv").write_text('"",x\n' + "".join(f'"{k}",{k + 5}\n' for k in rows))
    table = read_formatted(tmp_path / "t.csv", Notation())
    assert list(table.columns) == ["x"]
    assert any("no name" in note for note in table.notes.values()) == (rows != [1, 2, 3, 4])


@pytest.mark.parametrize("values", [[1, 2, 2, 4], ["a", "b", "c", "d"], [0.5, 1, 2, 3]])
def test_a_nameless_column_of_other_values_is_kept(values, tmp_path):
    (tmp_path / "t.csv").write_text(",x\n" + "".join(f"{v},1\n" for v in values))
    assert list(read_columns(tmp_path / "t.csv")) == ["Unnamed: 0", "x"]
