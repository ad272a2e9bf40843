"""Reading tables from CSV, TSV and Parquet files, compressed with gzip or not."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.data.columns import Columns, are_codes, as_columns, each
from calibrant.data.labels import as_labels

TARGET_NAMES = ("target", "class", "label", "y")
_MISSING = ["?"]  # in addition to pandas' own: empty, NA, NaN, null, None and others
_LEADING_ZERO = re.compile(rb"""(?:^|[,;\t\s"])0\d""")  # perhaps of a code: worth a look at the columns as text
_WITH_COMMA = re.compile(r"\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*")
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+\s*")  # 1,200 may be one of these, or 1.2
_POINT_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(\.\d{3})+\s*")
_BELOW_THOUSAND = re.compile(r"\s*[+-]?\d{1,3}\s*")
_SURE_THOUSANDS = re.compile(r"\s*[+-]?\d{1,3}((\.\d{3})+(,\d+)?|(,\d{3})+(,\d{3}|\.\d+))\s*")  # beside 0,5


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

    The header shows whether commas, semicolons, tabs or bars separate the columns of a ``.csv`` file.

    Numbers that begin with a zero (007) are codes and stay text. In files without commas between columns, a column may
    have decimal commas; a column whose commas may separate thousands (1,200) stays text. If a column has decimal
    commas, points in other columns of the file separate thousands where they can (1.200 is 1200). Rows must have as
    many fields as the header.
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


def read_columns(path: str | os.PathLike[str]) -> Columns:
    """All columns of a file by name. A first column that has no name and counts rows is left out."""
    frame = _read_frame(Path(path))
    if not len(frame):
        raise ValueError(f"{Path(path).name} holds no rows; give a table with a header and rows below it.")
    columns = frame_columns(frame, Path(path).name)
    first = next(iter(columns))
    if first in ("Unnamed: 0", "__index_level_0__", "") and columns[first].dtype.kind in "iu":
        steps = np.diff(columns[first])
        if np.all(steps == 1) and len(columns) > 1:
            del columns[first]
    return columns


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
        raise ValueError(f"The file name must end in .csv, .tsv or .parquet, optionally with .gz; got {path.name}.")
    return kind, packed


def need_pandas() -> Any:
    """The module pandas, or an error that says how to install it."""
    try:
        import pandas
    except ImportError:
        raise ImportError("Reading tables needs pandas. Install it with: pip install 'calibrant[tables]'.") from None
    return pandas


def _read_frame(path: Path) -> Any:
    pd = need_pandas()
    check_file(path)
    kind, packed = file_kind(path)
    try:
        content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    except (gzip.BadGzipFile, EOFError):
        raise ValueError(f"{path.name} ends in .gz, but it is not a complete gzip file. Compress it again.") from None
    if kind == ".parquet":
        try:
            return pd.read_parquet(io.BytesIO(content))
        except ImportError:
            raise ImportError(
                "Reading Parquet files needs pyarrow. Install it with: pip install 'calibrant[tables]'."
            ) from None
        except (ValueError, OSError) as error:  # those of pyarrow are of both kinds
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise ValueError(
                f"{path.name} could not be read as a Parquet file: {reason}. Write it again, or give another file."
            ) from None
    return read_text(path.name, content, "\t" if kind == ".tsv" else separator(content))


def read_text(
    file: str,
    content: bytes,
    separator: str,
    *,
    text: Collection[str] = (),
    commas: set[str] | None = None,
    line: int = 0,
) -> Any:
    """A data frame from the text of a table.

    Parameters
    ----------
    file : name of the file, for messages
    text : columns that always stay text
    commas : columns with decimal commas; those that are found are added
    line : number of the lines before these, for messages
    """
    pd = need_pandas()
    try:
        return _read_text(pd, file, content, separator, text, set() if commas is None else commas, line)
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not text in UTF-8; save it in that encoding.") from None
    except (pd.errors.EmptyDataError, pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise ValueError(
            f"{file} could not be read as a table: {str(error).strip().rstrip('.')}. Check its first lines."
        ) from None


def separator(content: bytes) -> str:
    """The most frequent of comma, semicolon, tab and bar in the header outside quotes; a comma if there is none."""
    header = re.sub(rb'"[^"]*"', b"", content[: 1 << 20]).strip(b"\r\n ").partition(b"\n")[0]
    return max(",;\t|", key=lambda mark: header.count(mark.encode()))  # the first of equally frequent ones


def _read_text(
    pd: Any, file: str, content: bytes, separator: str, text: Collection[str], commas: set[str], line: int
) -> Any:
    """A frame from text: columns of numbers as numbers; codes with leading zeros and all others as text."""

    def read(**options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # fields beyond the header's would be lost
            return pd.read_csv(
                io.BytesIO(content),
                sep=separator,
                na_values=_MISSING,
                encoding="utf-8-sig",
                low_memory=False,
                index_col=False,  # else a row with one field more than the header shifts all columns
                **options,
            )

    options: dict[str, Any] = {}
    try:
        frame = read()
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        options["usecols"] = range(_width(file, content, separator, line))
        frame = read(**options)
    else:
        _width(file, content, separator, line)  # pandas fills short rows up
    if text or _LEADING_ZERO.search(content):
        raw = read(dtype=str, **options)
        for place, name in enumerate(frame.columns):
            coded = frame.dtypes.iloc[place].kind in "iufO" and are_codes(raw.iloc[:, place].dropna())  # O: > 64 bits
            if coded or str(name).strip() in text:
                frame[name] = raw.iloc[:, place]
    if separator != ",":
        for place, name in enumerate(frame.columns):
            own = str(name).strip()
            if frame.dtypes.iloc[place].kind not in "biuf" and own not in text:
                mended = _with_points(frame.iloc[:, place], sure=own in commas)
                if mended is not None:
                    commas.add(own)
                    frame[name] = mended
    if commas:
        raw = read(dtype=str, **options)
        for place, name in enumerate(frame.columns):
            if str(name).strip() not in {*commas, *text} and _has_thousands(raw.iloc[:, place].dropna()):
                frame[name] = raw.iloc[:, place].str.replace(".", "").astype(float)
    return frame


def _has_thousands(values: Any) -> bool:
    """Whether all values are whole numbers, some with points between thousands (1.200) and none without (1200)."""
    grouped = [bool(_POINT_THOUSANDS.fullmatch(v)) for v in values]
    return any(grouped) and all(known or _BELOW_THOUSAND.fullmatch(v) for known, v in zip(grouped, values, strict=True))


def _width(file: str, content: bytes, separator: str, line: int = 0) -> int:
    """The number of fields in the header. Rows with more are an error, unless the others are empty (a final comma).

    Rows with fewer are an error too, except for blank lines, since it is unknown which value is missing.

    Raises
    ------
    ValueError
        that names the file, the line, and both numbers of fields
    """
    rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=separator)
    width = named = 0
    try:
        for row in rows:
            if len(row) < 2 and not "".join(row).strip():
                continue
            if not width:
                width = len(row)
                named = max((k for k, field in enumerate(row, 1) if field.strip()), default=0)
            elif len(row) < named:
                raise ValueError(
                    f"Each line of {file} must have the {width} fields of its header; got {len(row)} in line "
                    f"{line + rows.line_num}. A value or a separator is missing, or a quotation mark is not closed."
                )
            elif any(field.strip() for field in row[width:]):
                raise ValueError(
                    f"Each line of {file} must have the {width} fields of its header; got {len(row)} in line "
                    f"{line + rows.line_num}. A name is missing in the header, or a separator inside a value needs "
                    "quotes around the value."
                )
    except csv.Error:
        pass  # pandas says what is wrong
    return width


def _with_points(column: Any, *, sure: bool = False) -> Any:
    """A text column with decimal commas replaced by points, if most values are numbers and some clearly have one.

    Returns None if all commas may separate thousands (1,200), unless `sure` is true, or if points may do so too
    (1.200).

    Most values, not nearly all: a short new file with a typing error must be read like the training file.
    """
    values = [v for v in column if isinstance(v, str)]
    commas = sum(bool(_WITH_COMMA.fullmatch(v)) for v in values)
    whole = sum(bool(_WHOLE.fullmatch(v)) for v in values)
    if not commas or 2 * (commas + whole) < len(values):
        return None
    if not sure and all(_THOUSANDS.fullmatch(v) for v in values if _WITH_COMMA.fullmatch(v)):
        return None
    if any(_SURE_THOUSANDS.fullmatch(v) for v in values):
        return None
    mended = column.map(lambda v: v.replace(",", ".") if isinstance(v, str) and _WITH_COMMA.fullmatch(v) else v)
    return mended.astype(float) if commas + whole == len(values) else mended


def _without_marks(column: np.ndarray) -> np.ndarray:
    """The column with None for question marks, which pandas reads as text in Parquet files and after a space."""
    marks = each(lambda v: isinstance(v, str) and v.strip() in _MISSING, column) if column.dtype.kind == "O" else []
    if not any(marks):
        return column
    column = column.copy()
    column[marks] = None
    return column


def _find_target(columns: Columns) -> str | None:
    by_lower = {name.lower(): name for name in reversed(columns)}
    return next((by_lower[name] for name in TARGET_NAMES if name in by_lower), None)
