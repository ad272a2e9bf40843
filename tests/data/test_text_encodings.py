"""Tests of files that are not UTF-8: Windows-1252 and UTF-16 are read, and other files are refused."""

import gzip
import io
import warnings

import numpy as np
import pytest

pytest.importorskip("pandas")

from calibrant.data import read_columns
from calibrant.data.number_reader import NumberReader
from calibrant.data.table_chunks import read_chunks
from calibrant.data.text_encodings import text_encoding

TEXT = "town;price €;y\r\n" + "".join(f"Ort {k};{k},5;1\r\n" for k in range(50)) + "Köln;7,5;0\r\n“Zürich”;8,5;1\r\n"
SENTENCE = "is not UTF-8 and was read as Windows-1252; if letters look wrong, save it as CSV UTF-8."


def encoding(content):
    return text_encoding("t.csv", lambda: io.BytesIO(content))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("code", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_every_encoding_gives_the_same_columns(code, name, tmp_path):
    path, content = tmp_path / name, TEXT.encode(code)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    reader, pieces = NumberReader(name), NumberReader(name)
    columns = read_columns(path, reader=reader)
    assert list(columns) == ["town", "price €", "y"]
    assert columns["town"][-2:].tolist() == ["Köln", "“Zürich”"]
    assert columns["price €"][-1] == 8.5
    parts = list(read_chunks(path, 7, reader=pieces))  # the first pieces are plain ASCII
    assert all(list(part) == list(columns) for part in parts)
    assert np.concatenate([part["town"] for part in parts]).tolist() == columns["town"].tolist()
    assert reader.remarks == pieces.remarks == ([f"{name} {SENTENCE}"] if code == "cp1252" else [])


def test_a_file_read_from_python_gives_a_warning(tmp_path):
    (tmp_path / "t.csv").write_bytes(TEXT.encode("cp1252"))
    with pytest.warns(UserWarning, match=SENTENCE) as caught:
        read_columns(tmp_path / "t.csv")
    assert caught[0].filename == __file__
    (tmp_path / "t.csv").write_bytes(TEXT.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_columns(tmp_path / "t.csv")


def test_letters_at_the_edge_of_a_piece_are_utf8():
    assert encoding(b"a" * ((1 << 20) - 1) + "é\n".encode()) == "utf-8-sig"
    assert encoding(b"a" * ((1 << 20) - 1) + "é\n".encode("cp1252")) == "cp1252"


def test_utf16_letters_with_null_bytes_are_read():
    assert encoding("aĀ,b\n1,2\n".encode("utf-16")) == "utf-16"


@pytest.mark.parametrize(
    "content",
    [
        "a,y\nKöln,1\nGenève,2\nM".encode() + b"\xfcnchen,3\n",  # UTF-8 with one wrong letter
        b"\xef\xbb\xbfa,y\nK\xf6ln,1\n",
        b"a,y\nK\xf6ln\x00,1\n",
        b"a,y\nK\x8dln,1\n",  # undefined in Windows-1252
        "a,y\né,1\n".encode("utf-32"),
        "a,y\né,1\n".encode("utf-16")[:-1],
    ],
)
def test_damaged_and_binary_files_are_refused(content):
    with pytest.raises(ValueError, match=r"t\.csv is not text in UTF-8; save it in that encoding"):
        encoding(content)


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1"])
def test_spreadsheets_are_refused_with_advice(start):
    with pytest.raises(ValueError, match="is a spreadsheet or an archive, not text; save it as CSV"):
        encoding(start + b"abc")
