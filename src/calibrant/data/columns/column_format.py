"""How the values of a column are written: fixed from the training table, stored, and applied to every later table."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from calibrant.data.columns.values import TRUTH, Code, are_codes, each, is_iso_date, is_number, objects

NUMBERS, TRUTH_VALUES, DATES, TEXT = "numbers", "truth values", "dates", "text"


@dataclass(frozen=True)
class Notation:
    """How numbers and dates are written in a file, and its encoding, as the user declares it.

    Parameters
    ----------
    decimal : the decimal mark, a point or a comma
    thousands : the mark between thousands; empty if there is none
    dates : formats of dates as in :meth:`datetime.datetime.strptime`, such as ``"%d.%m.%Y"``; a column is read in the
        first one that fits all its values. The ISO format (2024-12-31) needs none
    encoding : the encoding of text files
    """

    decimal: str = "."
    thousands: str = ""
    dates: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dates", (self.dates,) if isinstance(self.dates, str) else tuple(self.dates))
        if self.decimal not in (".", ","):
            raise ValueError(f"--decimal must be a point or a comma; got {self.decimal!r}.")
        if self.thousands and (len(self.thousands) > 1 or self.thousands.isalnum() or self.thousands in "+-"):
            raise ValueError(f"--thousands must be one mark, such as a comma; got {self.thousands!r}.")
        if self.thousands == self.decimal:
            raise ValueError(f"--thousands must differ from the decimal mark; got {self.thousands!r} for both.")
        for form in self.dates:
            if "%" not in form or _parsed(datetime(2024, 12, 31).strftime(form), form) is None:
                raise ValueError(f"--dates must be a format such as %d.%m.%Y; got {form!r}.")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise ValueError(f"--encoding must be an encoding such as cp1252; got {self.encoding!r}.") from None

    @property
    def formats(self) -> list[ColumnFormat]:
        """The formats that a column of text may have, in the order in which they are tried."""
        dates = [ColumnFormat(DATES, dates=form) for form in (*self.dates, "")]
        return [ColumnFormat(NUMBERS, self.decimal, self.thousands), ColumnFormat(TRUTH_VALUES), *dates]


@dataclass(frozen=True)
class ColumnFormat:
    """How the values of one column are written.

    Columns that have a type in their file, such as the numbers of a Parquet file, keep it. Only texts are read.
    """

    kind: str
    decimal: str = "."
    thousands: str = ""
    dates: str = ""
    """The format of dates; empty for the ISO format."""

    def __str__(self) -> str:
        if self.kind == NUMBERS:
            marks = ["a decimal comma"] if self.decimal == "," else []
            marks += [f"{self.thousands!r} between thousands"] if self.thousands else []
            return " with ".join(["numbers", " and ".join(marks)]) if marks else "numbers"
        if self.kind == DATES:
            return f"dates such as {datetime(2024, 12, 31).strftime(self.dates or '%Y-%m-%d')}"
        return "true or false" if self.kind == TRUTH_VALUES else self.kind

    def read(self, column: np.ndarray, name: str, file: str, *, first: int = 1) -> np.ndarray:
        """The values of a column of texts: numbers, truth values, or dates as text in the ISO format.

        A column of text stays, with its numbers marked as codes. ``first`` is the number of the first row.

        Raises
        ------
        ValueError
            that names the column, the row and the value, if a value is written in another way
        """
        if not is_text(column):
            return column
        if self.kind == TEXT:
            return objects(each(lambda v: Code(v) if v is not None and is_number(v) else v, column))
        values = self.parse(column.tolist())
        if values is not None:
            return values
        wrong = {v: self.parse([v]) is None for v in dict.fromkeys(column)}
        row = next(row for row, value in enumerate(column) if wrong[value])
        raise ValueError(
            f"Column {name!r} of {file} must hold {self}, as in the training table; got {column[row]!r} in row "
            f"{row + first}. Correct it, or leave it empty."
        )

    def parse(self, values: Sequence[str | None]) -> np.ndarray | None:
        """The values that texts stand for; None if one of them is written in another way."""
        if self.kind == NUMBERS:
            return self._numbers(values)
        convert = {TRUTH_VALUES: lambda v: _TRUTH.get(v.strip().lower()), DATES: self._iso_date}[self.kind]
        table = {v: None if v is None else convert(v) for v in dict.fromkeys(values)}
        if any(converted is None and v is not None for v, converted in table.items()):
            return None
        if self.kind == TRUTH_VALUES and None not in table:
            return np.array([table[v] for v in values], dtype=bool)
        return objects([table[v] for v in values])

    def _numbers(self, values: Sequence[str | None]) -> np.ndarray | None:
        if self.decimal != "." or self.thousands:
            pattern = re.compile(_number_pattern(re.escape(self.decimal), re.escape(self.thousands)))
            table = {v: v if v is None else v.strip() for v in dict.fromkeys(values)}
            if not all(v is None or pattern.fullmatch(v) for v in table.values()):
                return None
            marks = str.maketrans({self.thousands: "", self.decimal: "."} if self.thousands else {self.decimal: "."})
            values = [None if v is None else str(table[v]).translate(marks) for v in values]
        present = ["nan" if v is None else v for v in values] if None in values else values
        joined = "".join(present)  # type: ignore[arg-type]
        if not joined.isascii() or "_" in joined:  # float() reads these too
            return None
        for kind, dtype in ((int, np.int64), (float, np.float64)):
            with suppress(ValueError, OverflowError):
                return np.array(list(map(kind, present)), dtype=dtype)  # type: ignore[arg-type]
        return None

    def _iso_date(self, text: str) -> str | None:
        if self.dates:
            moment = _parsed(text.strip(), self.dates)
            return None if moment is None else str(moment).removesuffix(" 00:00:00")
        return text if is_iso_date(text) else None


_TRUTH = {word: bool(value) for word, value in TRUTH.items()}


def choose_format(column: np.ndarray, notation: Notation, *, text: bool = False) -> tuple[ColumnFormat, np.ndarray]:
    """The format of a training column, the first that fits all its values, and what these stand for.

    Texts with leading zeros (007) are codes and stay text, as columns do that are declared to be ``text``.
    """
    if column.dtype.kind in "biufM":
        kind = DATES if column.dtype.kind == "M" else NUMBERS
        return ColumnFormat(kind, *((notation.decimal, notation.thousands) if kind == NUMBERS else ())), column
    form = ColumnFormat(TEXT)
    if text or not is_text(column) or all(value is None or type(value) is Code for value in column):
        return form, form.read(column, "", "")
    values = column.tolist()
    for other in notation.formats:
        if (parsed := other.parse(values)) is not None:
            fractions = parsed.dtype.kind == "f" and bool(np.any(np.isfinite(parsed) & (parsed != np.rint(parsed))))
            codes = not fractions and are_codes(value for value in values if value is not None)
            return (form, form.read(column, "", "")) if codes else (other, parsed)
    return form, form.read(column, "", "")


def formats_to_json(formats: Mapping[str, ColumnFormat]) -> dict[str, Any]:
    """Formats by column as plain values."""
    return {name: asdict(form) for name, form in formats.items()}


def formats_from_json(content: Mapping[str, Any]) -> dict[str, ColumnFormat]:
    """What :func:`formats_to_json` returned."""
    try:
        formats = {str(name): ColumnFormat(**fields) for name, fields in content.items()}
        if all(form.kind in (NUMBERS, TRUTH_VALUES, DATES, TEXT) for form in formats.values()):
            return formats
    except (TypeError, AttributeError):
        pass
    raise ValueError("The model does not hold formats of columns that this version wrote. Train it again.")


def is_text(column: np.ndarray) -> bool:
    """Whether all values of a column of a file are texts or None."""
    return column.dtype.kind == "O" and set(map(type, column.tolist())) <= {str, Code, type(None)}


def _number_pattern(decimal: str, thousands: str) -> str:
    whole = rf"(\d+|\d{{1,3}}({thousands}\d{{3}})+)" if thousands else r"\d+"
    return rf"[+-]?({whole}({decimal}\d*)?|{decimal}\d+)([eE][+-]?\d+)?"


def _parsed(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None
