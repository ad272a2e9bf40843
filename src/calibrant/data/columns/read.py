"""Reading tables from CSV, TSV and Parquet files, compressed with gzip or not. A file is read once."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.base.files import check_file
from calibrant.data.columns.column_format import TEXT, ColumnFormat, Notation, choose_format
from calibrant.data.columns.forms import check_names
from calibrant.data.columns.parquet import parquet_pieces
from calibrant.data.columns.values import Columns, objects

NAMELESS = ("Unnamed: 0", "__index_level_0__", "")
"""How pandas and Parquet call a first column without a name, which R and pandas write for the names of the rows."""
MISSING = frozenset(
    ("", "?", "NA", "N/A", "n/a", "<NA>", "NULL", "null", "NaN", "nan", "-NaN", "-nan", "None", "#N/A", "#NA")
    + ("#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")
)
"""Texts of missing values: those of pandas, and question marks."""
ROWS = 1_000
"""Rows that are split into fields at a time; more are slower, since Python's memory is searched for cycles."""
LONGEST = 1 << 24
"""The longest value in letters; an open quotation mark would take the rest of the file."""
_START = 1 << 16
_ARCHIVE = b"PK\x03\x04"  # .xlsx and .ods files are zip archives
_OLD_EXCEL = b"\xd0\xcf\x11\xe0"


@dataclass(frozen=True)
class FileTable:
    """The columns of a file, their formats, and notes for the user."""

    columns: Columns
    formats: dict[str, ColumnFormat]
    notes: dict[str, str] = field(default_factory=dict)
    """By column."""


def read_columns(
    path: str | os.PathLike[str],
    *,
    decimal: str = ".",
    thousands: str = "",
    dates: str | Sequence[str] = (),
    encoding: str = "utf-8",
) -> Columns:
    """Read all columns of a file, by name. A first column that has no name and numbers the rows is left out.

    The header shows whether commas, semicolons, tabs or bars separate the columns of a ``.csv`` file. A column of text
    holds numbers, truth values or dates if all its values are written as such, and else text. Numbers that begin
    with a zero (007) are codes and stay text. Rows must have as many fields as the header.

    Parameters
    ----------
    path : path
        The file.
    decimal, thousands : str
        The decimal mark, and the mark between thousands.
    dates : str or sequence of str
        Formats of dates, such as ``"%d.%m.%Y"``. Dates in the ISO format need none.
    encoding : str
        The encoding of a text file.
    """
    return read_formatted(path, Notation(decimal, thousands, dates, encoding)).columns  # type: ignore[arg-type]


def read_formatted(
    path: str | os.PathLike[str],
    notation: Notation,
    formats: Mapping[str, ColumnFormat] | None = None,
    *,
    text: Collection[str] = (),
) -> FileTable:
    """Read all columns of a file, and fix their formats, or apply the ``formats`` of a training table.

    Columns named in ``text`` stay text. With ``formats``, so do the columns that these do not name.
    """
    path = Path(path)
    pieces = list(_pieces(path, notation.encoding, ROWS))
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    notes = {}
    if formats is None:
        chosen = {name: choose_format(column, notation, text=name in text) for name, column in columns.items()}
        for name in set(columns) - set(text):
            if chosen[name][0].kind == TEXT and (note := _plain_note(name, columns[name], notation)):
                notes[name] = note
        formats = {name: form for name, (form, _) in chosen.items()}
        columns = {name: values for name, (_, values) in chosen.items()}
    else:
        columns = _formatted(columns, formats, path.name)
    first = next(iter(columns))
    if first in NAMELESS and len(columns) > 1 and numbers_rows(columns[first]):
        if not np.all(np.diff(columns[first]) == 1):
            notes[first] = "The first column has no name and is left out, because its values are row numbers."
        del columns[first]
    return FileTable(columns, dict(formats), notes)


def read_chunks(
    path: str | os.PathLike[str], rows: int, formats: Mapping[str, ColumnFormat], encoding: str = "utf-8"
) -> Iterator[Columns]:
    """The columns of a file, ``rows`` rows at a time, in the formats of a training table.

    Columns that ``formats`` does not name stay text.
    """
    if rows < 1:
        raise ValueError(f"The number of rows in a piece must be at least 1; got {rows}.")
    path, first = Path(path), 1
    for piece in _pieces(path, encoding, rows):
        yield _formatted(piece, formats, path.name, first)
        first += len(next(iter(piece.values())))


def numbers_rows(column: np.ndarray) -> bool:
    """Whether a column holds row numbers: different whole numbers, or counts that start again, as in joined tables.

    Rows may be in any order, and some may be missing, as in a filtered or shuffled table.
    """
    if column.dtype.kind not in "iu":
        return False
    return len(np.unique(column)) == len(column) or bool(np.all((np.diff(column) == 1) | (column[1:] == column[0])))


def check_table_file(path: Path) -> None:
    """Raise an error if a file cannot be read or is empty."""
    check_file(path)
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path.name} is empty; give a file with a header and rows below it.")


def file_kind(path: Path) -> tuple[str, bool]:
    """The kind of a file by its name, ".csv", ".tsv" or ".parquet", and whether it is compressed with gzip."""
    suffixes = [s.lower() for s in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    kind = "".join((suffixes[:-1] if packed else suffixes)[-1:])
    kind = ".parquet" if kind == ".pq" else kind
    if kind not in (".csv", ".tsv", ".parquet"):
        advice = " Save it as CSV (in Excel: CSV UTF-8)." if kind in (".xlsx", ".xls", ".xlsm", ".ods") else ""
        raise ValueError(
            f"The file name must end in .csv, .tsv or .parquet, optionally with .gz; got {path.name}.{advice}"
        )
    return kind, packed


def _formatted(columns: Columns, formats: Mapping[str, ColumnFormat], file: str, first: int = 1) -> Columns:
    return {
        name: formats[name].read(column, name, file, first=first) if name in formats else column
        for name, column in columns.items()
    }


def _plain_note(name: str, column: np.ndarray, notation: Notation) -> str | None:
    """A note on a column of numbers that the declared marks do not fit."""
    plain, _ = choose_format(column, Notation())
    if plain.kind == TEXT or plain in notation.formats:
        return None
    example = next(value for value in column if value is not None)
    return (
        f"Column {name!r} is read as text, because {example!r} is not a number with the declared marks. Pass "
        f"--thousands too if it holds marks between thousands."
    )


def _pieces(path: Path, encoding: str, rows: int) -> Iterator[Columns]:
    """The columns of a file, some rows at a time: texts, None for missing ones, and the types of Parquet files."""
    check_table_file(path)
    kind, packed = file_kind(path)
    empty = True
    pieces = parquet_pieces(path, rows, packed) if kind == ".parquet" else _text(path, rows, kind, packed, encoding)
    for piece in pieces:
        empty = False
        yield piece
    if empty:
        raise ValueError(f"{path.name} holds no rows; give a table with a header and rows below it.")


def _text(path: Path, rows: int, kind: str, packed: bool, encoding: str) -> Iterator[Columns]:
    code = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    opening: Any = gzip.open if packed else partial(open, buffering=_START)
    try:
        with opening(path, "rb") as binary:
            start = binary.peek(_START)
            if start.startswith((_ARCHIVE, _OLD_EXCEL)):
                raise ValueError(
                    f"{path.name} is a spreadsheet or an archive, not text; save it as CSV (in Excel: CSV UTF-8)."
                )
            mark = "\t" if kind == ".tsv" else _separator(start.decode(code, errors="replace"))
            records = _records(path.name, io.TextIOWrapper(binary, encoding=code, newline=""), mark)
            names = _names([name for header in _take(records, 1) for name in header], path.name)
            while some := _take(records, rows):
                yield dict(zip(names, map(_texts, zip(*some, strict=True)), strict=True))
    except UnicodeError:
        raise ValueError(
            f"{path.name} is not text in {encoding.upper()}; save it as CSV UTF-8, or name its encoding, such as "
            "--encoding cp1252 (Windows)."
        ) from None
    except (gzip.BadGzipFile, EOFError):
        raise ValueError(f"{path.name} ends in .gz, but it is not a complete gzip file. Compress it again.") from None


def _separator(start: str) -> str:
    """The most frequent of comma, semicolon, tab and bar in the header outside quotes; a comma if there is none."""
    header = re.split("[\r\n]", re.sub(r'"[^"]*"', "", start).strip("\r\n "))[0]
    return max(",;\t|", key=header.count)  # the first of equally frequent ones


def _records(file: str, lines: Iterable[str], mark: str) -> Iterator[list[str]]:
    """The header of a text, and then its rows, with as many fields as the header.

    Blank lines are left out, and so are empty fields at the end of the header, or beyond it (a final comma). Rows with
    more fields are an error. Rows with fewer are one too, since it is unknown which value is missing.
    """
    reader = csv.reader(lines, delimiter=mark, strict=True)
    width = 0
    try:
        for row in reader:
            if width < 2 or len(row) != width:
                if not row or (len(row) == 1 and (width > 1 or row[0]) and not row[0].strip()):
                    continue
                if not width:
                    width = max((place for place, name in enumerate(row, 1) if name.strip()), default=len(row))
                elif len(row) < width or any(value.strip() for value in row[width:]):
                    raise _unequal(file, width, len(row), reader.line_num)
                row = row[:width]
            yield row
    except csv.Error as error:
        raise ValueError(
            f"{file} could not be read as a table: {error} in line {reader.line_num}. Check that every quotation mark "
            "is closed."
        ) from None


def _take(records: Iterator[list[str]], number: int) -> list[list[str]]:
    """The next records; their values may be longer than Python's csv usually allows."""
    before = csv.field_size_limit(LONGEST)
    try:
        return list(islice(records, number))
    finally:
        csv.field_size_limit(before)


def _unequal(file: str, fields: int, given: int, line: int) -> ValueError:
    reason = "A name is missing in the header, or a separator inside a value needs quotes around the value."
    if given < fields:
        reason = "A value or a separator is missing, or a quotation mark is not closed."
    return ValueError(
        f"Each line of {file} must have the {fields} fields of its header; got {given} in line {line}. {reason}"
    )


def _names(header: list[str], file: str) -> list[str]:
    """The names of columns. Those without a name are numbered, as by pandas; names that repeat are an error."""
    names = [name.strip() or f"Unnamed: {place}" for place, name in enumerate(header)]
    try:
        check_names(names)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return names


def _texts(values: Sequence[str]) -> np.ndarray:
    if MISSING.isdisjoint(values) and " " not in "".join(values):  # fast
        return objects(list(values))
    return objects([None if value.strip() in MISSING else value for value in values])
