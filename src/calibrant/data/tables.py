"""Reading tables from CSV, TSV and Parquet files, compressed with gzip or not."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._warnings import warn
from calibrant.data.columns import Columns, each
from calibrant.data.labels import as_labels
from calibrant.data.number_reader import NumberReader
from calibrant.data.table_forms import as_columns
from calibrant.data.text_encodings import UTF8, Open, encoding_note, text_encoding
from calibrant.data.text_tables import MISSING, need_pandas, need_pyarrow, read_text, separator

TARGET_NAMES = ("target", "class", "label", "y")
NAMELESS = ("Unnamed: 0", "__index_level_0__", "")
"""How pandas and Parquet call a first column without a name, which R and pandas write for the names of the rows."""


@dataclass(frozen=True)
class LabelledTable:
    """Named columns and the labels of the rows: numbers, text or truth values."""

    columns: Columns
    labels: np.ndarray
    target: str

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: np.ndarray) -> LabelledTable:
        """The rows of an index or mask, in its order."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return LabelledTable(columns, self.labels[index], self.target)


def read_table(path: str | os.PathLike[str], *, target: str | None = None) -> LabelledTable:
    """Read a table with labels from a ``.csv``, ``.tsv`` or ``.parquet`` file, or one of these with ``.gz`` added.

    ``target`` names the column of the labels. The default is the first that is called target, class, label or y, in
    upper or lower case. Labels must not be missing; other values may.

    Text is read as UTF-8, as UTF-16 if it begins with a byte order mark, or else as Windows-1252, with a warning.

    The header shows whether commas, semicolons, tabs or bars separate the columns of a ``.csv`` file.

    Numbers that begin with a zero (007) are codes and stay text. In files without commas between columns, a column may
    have decimal commas; a column whose commas may separate thousands (1,200) stays text. If a column has decimal
    commas, points in all columns of the file separate thousands where they can (1.200 is 1200). Rows must have as
    many fields as the header. Text columns of a Parquet file are read like those of a file without commas between
    columns.
    """
    columns = read_columns(path)
    name = target if target is not None else _find_target(columns)
    if name is None or name not in columns:
        which = f"called {target!r}" if target is not None else f"called {', '.join(TARGET_NAMES[:-1])} or y"
        raise ValueError(
            f"{Path(path).name} has no column {which}; name the one that holds the labels (target=…). "
            f"Its columns are {', '.join(columns)}."
        )
    try:
        labels = as_labels(columns.pop(name), name=name)
    except ValueError as error:
        raise ValueError(f"{Path(path).name}: {error}") from None
    if not columns:
        raise ValueError(
            f"{Path(path).name} must have a column besides {name!r}; got none, so there is nothing to learn from."
        )
    return LabelledTable(columns, labels, name)


def read_columns(path: str | os.PathLike[str], *, reader: NumberReader | None = None) -> Columns:
    """Read all columns of a file, by name. A first column that has no name and numbers the rows is left out.

    ``reader`` knows how numbers were written in a training table, and remembers how they are written in this file.
    """
    frame = _read_frame(Path(path), reader)
    if not len(frame):
        raise ValueError(f"{Path(path).name} holds no rows; give a table with a header and rows below it.")
    columns = frame_columns(frame, Path(path).name)
    first = next(iter(columns))
    if first in NAMELESS and len(columns) > 1 and numbers_rows(columns[first]):
        if reader is not None and not np.all(np.diff(columns[first]) == 1):
            reader.notes[first] = "The first column has no name and is left out, because its values are row numbers."
        del columns[first]
    return columns


def numbers_rows(column: np.ndarray) -> bool:
    """Whether a column holds row numbers: different whole numbers, or counts that start again, as in joined tables.

    Rows may be in any order, and some may be missing, as in a filtered or shuffled table.
    """
    if column.dtype.kind not in "iu":
        return False
    return len(np.unique(column)) == len(column) or bool(np.all((np.diff(column) == 1) | (column[1:] == column[0])))


def frame_columns(frame: Any, file: str) -> Columns:
    """The columns of a data frame that was read from a file, by name."""
    frame.columns = [str(name).strip() for name in frame.columns]
    try:
        return {name: _without_marks(column) for name, column in as_columns(frame).items()}
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def check_file(path: Path) -> None:
    """Raise an error if a file cannot be read: missing, a folder, no permission, or empty."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file in it.")
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}. Check the name and the folder.")
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path} cannot be read: no permission. Give another file, or change its mode.")
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


def _read_frame(path: Path, reader: NumberReader | None) -> Any:
    pd = need_pandas()
    check_file(path)
    kind, packed = file_kind(path)
    try:
        content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    except (gzip.BadGzipFile, EOFError):
        raise ValueError(f"{path.name} ends in .gz, but it is not a complete gzip file. Compress it again.") from None
    if kind == ".parquet":
        need_pyarrow()
        try:
            frame = pd.read_parquet(io.BytesIO(content))
        except (ValueError, OSError) as error:  # those of pyarrow are of both kinds
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise ValueError(
                f"{path.name} could not be read as a Parquet file: {reason}. Write it again, or give another file."
            ) from None
        return read_typed(frame, reader or NumberReader(path.name))
    encoding = find_encoding(path.name, lambda: io.BytesIO(content), reader)
    if encoding != UTF8:
        content = content.decode(encoding).encode()
    return read_text(path.name, content, "\t" if kind == ".tsv" else separator(content), reader=reader)


def read_typed(frame: Any, reader: NumberReader, text: Collection[str] = ()) -> Any:
    """The frame of a file whose columns have types, with its text columns read as in a text file.

    Columns in ``text`` stay text. Numbers, dates and categories stay as they are.
    """
    infer = need_pandas().api.types.infer_dtype
    places = [place for place in range(frame.shape[1]) if infer(frame.iloc[:, place], skipna=True) == "string"]
    texts = frame.iloc[:, places].astype(object)
    found = texts.copy()
    reader.read(found, lambda: texts, commas=True, text=text)
    for own, place in enumerate(places):
        frame.isetitem(place, found.iloc[:, own])
    for place, dtype in enumerate(frame.dtypes):
        if dtype.kind == "f" and place not in places:
            values = frame.iloc[:, place].to_numpy(dtype=float, na_value=np.nan)
            reader.see(str(frame.columns[place]).strip(), values, typed=True)
    return frame


def find_encoding(file: str, open_file: Open, reader: NumberReader | None) -> str:
    """The encoding of a text file. A note on it is left to the reader, or is a warning if there is no reader."""
    encoding = text_encoding(file, open_file)
    note = encoding_note(file, encoding)
    if reader is not None:
        reader.file_note = note
    elif note is not None:
        warn(note)
    return encoding


def _without_marks(column: np.ndarray) -> np.ndarray:
    """The column with None for question marks, which pandas reads as text in Parquet files and after a space."""
    marks = each(lambda v: isinstance(v, str) and v.strip() in MISSING, column) if column.dtype.kind == "O" else []
    if not any(marks):
        return column
    column = column.copy()
    column[marks] = None
    return column


def _find_target(columns: Columns) -> str | None:
    by_lower = {name.lower(): name for name in reversed(columns)}
    return next((by_lower[name] for name in TARGET_NAMES if name in by_lower), None)
