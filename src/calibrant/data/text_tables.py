"""Tables in text files: separators, codes with leading zeros, decimal commas, and rows of another length."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Collection
from typing import Any

from calibrant.data.columns import are_codes
from calibrant.data.number_reader import NumberReader

MISSING = ("?",)
"""Text of missing values, in addition to pandas' own: empty, NA, NaN, null, None and others."""
_LEADING_ZERO = re.compile(rb"""(?:^|[,;|\t\s"])0\d""")  # perhaps of a code: worth a look at the columns as text


def need_pandas() -> Any:
    """The module pandas, or an error that says how to install it."""
    try:
        import pandas
    except ImportError:
        raise ImportError("Reading tables needs pandas. Install it with: pip install 'calibrant[tables]'.") from None
    return pandas


def need_pyarrow() -> Any:
    """The module pyarrow with its submodule parquet, or an error that says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError("Parquet files need pyarrow. Install it with: pip install 'calibrant[tables]'.") from None
    return pyarrow


def read_text(
    file: str,
    content: bytes,
    separator: str,
    *,
    text: Collection[str] = (),
    reader: NumberReader | None = None,
    line: int = 0,
) -> Any:
    """A data frame from the text of a table.

    Parameters
    ----------
    file : name of the file, for messages
    text : columns that always stay text
    reader : what is known of decimal commas and of points in the columns, for a file that is read in pieces
    line : number of the lines before these, for messages
    """
    pd = need_pandas()
    try:
        return _read_text(pd, file, content, separator, text, reader or NumberReader(file), line)
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not text in UTF-8; save it in that encoding (in Excel: CSV UTF-8).") from None
    except (pd.errors.EmptyDataError, pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise ValueError(
            f"{file} could not be read as a table: {str(error).strip().rstrip('.')}. Check its first lines."
        ) from None


def separator(content: bytes) -> str:
    """The most frequent of comma, semicolon, tab and bar in the header outside quotes; a comma if there is none."""
    header = re.sub(rb'"[^"]*"', b"", content[: 1 << 20]).strip(b"\r\n ").partition(b"\n")[0]
    return max(",;\t|", key=lambda mark: header.count(mark.encode()))  # the first of equally frequent ones


def _read_text(
    pd: Any, file: str, content: bytes, separator: str, text: Collection[str], reader: NumberReader, line: int
) -> Any:
    """A frame from text: columns of numbers as numbers; codes with leading zeros and all others as text."""

    def read(**options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # fields beyond the header's would be lost
            return pd.read_csv(
                io.BytesIO(content),
                sep=separator,
                na_values=list(MISSING),
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
    reader.read(frame, lambda: read(dtype=str, **options), commas=separator != ",", text=text)
    return frame


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
