"""Tests of decimal commas and of points between thousands, with and without a training table."""

import re

import numpy as np
import pytest

pytest.importorskip("pandas")
import pandas as pd

from calibrant.data import read_columns
from calibrant.data.number_marks import NumberMarks
from calibrant.data.number_reader import NumberReader
from calibrant.data.table_chunks import read_chunks

TRAINING = NumberMarks(commas={"share"}, thousands={"euros"}, points={"rate"})


def read(tmp_path, text, known=None, *, rows=None, used=None):
    """The columns of a file, read at once or in pieces, and the reader."""
    path = tmp_path / "new.csv"
    path.write_text(text)
    reader = NumberReader(path.name, known, used)
    if rows is None:
        return read_columns(path, reader=reader), reader
    pieces = list(read_chunks(path, rows, reader=reader))
    return {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}, reader


def test_the_marks_of_a_file(tmp_path):
    text = "share;euros;rate;full;code;n\n0,5;999;1.25;1.234,5;007;7\n1,200;1.200;4000;0,5;012;8\n"
    columns, reader = read(tmp_path, text)
    assert columns["full"].tolist() == [1234.5, 0.5]
    assert reader.found == NumberMarks({"share", "full"}, {"euros", "full"}, {"rate"})
    assert NumberMarks.from_json(reader.found.to_json()) == reader.found
    assert not reader.notes


def test_english_files_have_decimal_points_and_stay_as_they_are(tmp_path):
    text = "a,b,c,d\n1.250,0.5,1200,1.5\n2.125,12.75,3,x\n"
    columns, reader = read(tmp_path, text)
    assert [columns[name].tolist() for name in "abc"] == [[1.25, 2.125], [0.5, 12.75], [1200, 3]]
    assert reader.found == NumberMarks(points={"a", "b"})
    again, second = read(tmp_path, text, reader.found)
    assert all((again[name] == columns[name]).all() for name in columns)
    assert not second.notes


@pytest.mark.parametrize("mark", [",", ";"])
@pytest.mark.parametrize("rows", [None, 1, 2])
def test_the_training_table_says_what_a_point_is(mark, rows, tmp_path):
    text = "share;euros;rate;n\n2;1.200;1.200;1.500\n;5000;2.250;7\n3;1.234.567;1.125;12.000\n".replace(";", mark)
    columns, reader = read(tmp_path, text, TRAINING, rows=rows)
    assert columns["euros"].tolist() == [1200, 5000, 1234567]
    assert columns["rate"].tolist() == [1.2, 2.25, 1.125]
    assert columns["n"].tolist() == [1500, 7, 12000]  # whole numbers in training, as it has no mark
    assert not reader.notes
    plain, _ = read(tmp_path, text)
    assert plain["n"].tolist() == [1.5, 7, 12]


def test_commas_are_decimal_where_training_had_decimal_commas(tmp_path):
    for text in ("share;n\n1,200;1\n2,125;2\n", 'share,n\n"1,200",1\n"2,125",2\n'):
        assert read(tmp_path, text)[0]["share"].tolist() == ["1,200", "2,125"]
        assert read(tmp_path, text, TRAINING)[0]["share"].tolist() == [1.2, 2.125]


def test_text_beside_points_between_thousands(tmp_path):
    values = ["1.200", "30", "unknown"]
    text = "share;euros\n" + "".join(f"{k};{v}\n" for k, v in enumerate(values))
    assert read(tmp_path, text, TRAINING)[0]["euros"].tolist() == ["1200", "30", "unknown"]
    many = "share;euros\n" + "".join(f"0,{k};{v}\n" for k, v in enumerate(values[:2] * 20 + values[2:]))
    assert read(tmp_path, many)[0]["euros"].tolist() == ["1200", "30"] * 20 + ["unknown"]
    few = "share;euros\n" + "".join(f"0,{k};{v}\n" for k, v in enumerate(values))
    assert read(tmp_path, few)[0]["euros"].tolist() == values  # text, not numbers with a typing error


def test_a_first_piece_without_commas_is_read_like_the_others(tmp_path):
    text = "share;euros\n1;1.200\n2;20.500\n0,5;3.125\n1,25;999\n"
    whole, _ = read(tmp_path, text)
    parts, _ = read(tmp_path, text, TRAINING, rows=2)
    assert whole["euros"].tolist() == parts["euros"].tolist() == [1200, 20500, 3125, 999]
    with pytest.raises(
        ValueError, match=r"'euros' of new\.csv were read as decimal points, but decimal commas in later"
    ):
        read(tmp_path, text, rows=2)  # without a training table, the first piece cannot know
    with pytest.raises(ValueError, match=r"'x' of new\.csv were read as decimal points"):
        read(tmp_path, "x;y\n1.200;1\n0,5;2\n", rows=1)


def test_a_first_piece_with_clear_decimal_points_keeps_them(tmp_path):
    text = "share;rate\n1;0.75\n2;20.500\n0,5;3.125\n1,25;999\n"
    assert read(tmp_path, text, rows=2)[0]["rate"].tolist() == [0.75, 20.5, 3.125, 999]


@pytest.mark.parametrize("rows", [None, 1])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("share;euros\n2;1.200\n3;1.5\n", r"'euros' of new\.csv must have one kind .*\('1\.200'\) .* \('1\.5'\)"),
        ("share;euros\n2;1.5\n3;1.200\n", r"'euros' of new\.csv must have one kind"),
        (
            "share;euros\n0.5;1.200\n0.2;300\n",
            r"'1\.200' in column 'euros' .* 'share' has decimal points here \('0\.5'",
        ),
        ("share;euros\n1;1.200\n0.2;300\n", r"'1\.200' in column 'euros' .* 'share' has decimal points here \('0\.2'"),
    ],
)
def test_points_with_two_meanings_are_refused(text, message, rows, tmp_path):
    with pytest.raises(ValueError, match=message + r".*Write the numbers without points between thousands\.$"):
        read(tmp_path, text, TRAINING, rows=rows)


@pytest.mark.parametrize(
    ("text", "name", "values", "note"),
    [
        ("share;n\n1.234.567;1\n", "share", ["1.234.567"], r"had decimal commas .* \('1\.234\.567'\)"),
        ("share;euros\n2;1200.5\n3;1.5\n", "euros", [1200.5, 1.5], "had points between thousands .* decimal points"),
        (
            "share;euros\n1.250;3\n2.125;4\n",
            "share",
            [1.25, 2.125],
            r"decimal commas .* \('1\.250'\), .* decimal points",
        ),
        (
            "rate;b\n0,5;1.250\n1,5;2.125\n",
            "b",
            [1250, 2125],
            r"'1\.250' is read as 1250, because new\.csv has decimal",
        ),
    ],
)
def test_other_marks_than_in_training_are_noted(text, name, values, note, tmp_path):
    known = NumberMarks({"share"}, {"euros"}) if "share" in text else NumberMarks(points={"rate", "b"})
    columns, reader = read(tmp_path, text, known, rows=1)
    assert columns[name].tolist() == values
    assert len(reader.notes) == 1
    assert re.search(note, reader.notes[name])


def test_columns_that_the_model_does_not_use_raise_nothing(tmp_path):
    text = "share;euros;other\n0.5;1200;1.250\n0.2;300;2.125\n"
    with pytest.raises(ValueError, match="in column 'other'"):
        read(tmp_path, text, TRAINING)
    columns, reader = read(tmp_path, text, TRAINING, used={"share", "euros"})
    assert columns["other"].tolist() == [1.25, 2.125]
    assert not reader.notes


def test_typed_columns_stay_and_text_columns_are_read(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {
            "price": ["1.200,50", None, "3,25"],
            "stock": ["1.200", "3.000", "7"],
            "size": [1.234, 2.5, np.nan],
            "code": ["007", "008", "012"],
            "word": ["a", "b,c", "1,5"],
            "when": pd.to_datetime(["2023-01-26"] * 3),
            "kind": pd.Categorical(["1,5", "2,5", "1,5"]),
            "list": [[1], [2], [3]],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    reader, pieces = NumberReader("t.parquet"), NumberReader("t.parquet")
    columns = read_columns(tmp_path / "t.parquet", reader=reader)
    assert columns["price"].tolist() == pytest.approx([1200.5, np.nan, 3.25], nan_ok=True)
    assert columns["stock"].tolist() == [1200, 3000, 7]
    assert columns["size"].tolist() == pytest.approx([1.234, 2.5, np.nan], nan_ok=True)
    assert [columns[name].tolist() for name in ("code", "word", "kind")] == [
        frame[name].tolist() for name in ("code", "word", "kind")
    ]
    assert columns["when"].dtype.kind == "M"
    assert (reader.found.commas, reader.found.points) == ({"price"}, {"size"})
    (part,) = read_chunks(tmp_path / "t.parquet", 10, reader=pieces, text=["price"])
    assert part["price"].tolist() == frame["price"].tolist()
