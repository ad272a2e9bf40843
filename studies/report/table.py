"""Tables as values: columns and rows of plain numbers, and their rendering as Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibrant.metrics import Estimate
from calibrant.report import MISSING, format_number


@dataclass(frozen=True)
class Column:
    """One column: its heading, which direction is better (to mark the best), and the number of decimals."""

    name: str
    better: Literal["low", "high"] | None = None
    digits: int = 3
    note: str = ""  # what the heading means, as one sentence


@dataclass(frozen=True)
class Table:
    """Columns (or plain headings) and rows; every row has one cell for each column.

    Cells are text, numbers, `calibrant.metrics.Estimate` (value with interval), or None if nothing was measured. The
    best value of each column with a `better` direction is marked; with `group`, within rows that agree in that column.
    Rows that hold one of the texts `exempt` are shown but never marked: for example a noise floor or an ensemble.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    group: str | None = None
    exempt: Collection[str] = ()

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {i} must have {len(self.columns)} cells, one for each column; got {len(row)}.")
        if self.group is not None and self.group not in [c.name for c in self.columns]:
            raise ValueError(f"group must be the heading of a column; got {self.group!r}.")

    def is_numeric(self, column: int) -> bool:
        """Whether every measured cell is a number; such columns are aligned to the right."""
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and all(not math.isnan(number(cell)) or isinstance(cell, float) for cell in cells)

    def best(self) -> set[tuple[int, int]]:
        """Positions (row, column) of the best cells; values that look equal count as equal."""
        key = None if self.group is None else [c.name for c in self.columns].index(self.group)
        groups: dict[Any, list[int]] = {}
        for i, row in enumerate(self.rows):
            if not any(isinstance(cell, str) and cell in self.exempt for cell in row):
                groups.setdefault(None if key is None else row[key], []).append(i)
        cells = set()
        for j, column in enumerate(self.columns):
            if column.better is None:
                continue
            for members in groups.values():
                sign = 1 if column.better == "low" else -1
                rounded = {i: round(sign * number(self.rows[i][j]), column.digits) for i in members}
                rounded = {i: value for i, value in rounded.items() if not math.isnan(value)}
                if len(rounded) > 1:
                    cells |= {(i, j) for i, value in rounded.items() if value == min(rounded.values())}
        return cells


def with_digits(digits: int, *names: str) -> list[Column]:
    """Return columns of numbers with this many decimals."""
    return [Column(name, digits=digits) for name in names]


def make_table(
    columns: Sequence[Column | str], rows: Sequence[Sequence[Any]], caption: str = "", **options: Any
) -> Table:
    """Return a `Table`; headings given as text become columns without a better direction."""
    with_names = [Column(c) if isinstance(c, str) else c for c in columns]
    return Table(with_names, [list(row) for row in rows], caption, **options)


def number(cell: Any) -> float:
    """Return the number by which a cell is sorted and compared; NaN for text and None."""
    if isinstance(cell, Estimate):
        return float(cell.value)
    if isinstance(cell, bool | np.bool_) or not isinstance(cell, int | float | np.integer | np.floating):
        return math.nan
    return float(cell)


def to_markdown(columns: Sequence[Column | str], rows: Sequence[Sequence[Any]], **options: Any) -> str:
    """Return the table as Markdown, padded for terminals; the best values are bold."""
    table = make_table(columns, rows, **options)
    best = table.best()
    cells = [[_escape_markdown(c.name) for c in table.columns]]
    for i, row in enumerate(table.rows):
        texts = [_escape_markdown(format_number(v, c.digits)) for v, c in zip(row, table.columns, strict=True)]
        cells.append([f"**{text}**" if (i, j) in best else text for j, text in enumerate(texts)])
    widths = [max(3, *(len(line[j]) for line in cells)) for j in range(len(table.columns))]
    right = [table.is_numeric(j) or _all_numbers([line[j] for line in cells[1:]]) for j in range(len(table.columns))]
    rule = ["-" * (width - 1) + ":" if end else "-" * width for width, end in zip(widths, right, strict=True)]
    lines = [
        [text.rjust(width) if end else text.ljust(width) for text, width, end in zip(line, widths, right, strict=True)]
        for line in cells
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]])


_NUMBER = re.compile(r"\**[−-]?<?\d[\d.,]*( ± <?[\d.]+| \[[^]]+])?( \([\d.]+\))?\**")
"""A number as text, perhaps with its interval and with a second number in brackets."""


def _all_numbers(texts: Sequence[str]) -> bool:
    """Whether all texts but dashes are numbers; such columns are aligned to the right too."""
    values = [text for text in texts if text != MISSING]
    return bool(values) and all(_NUMBER.fullmatch(text) for text in values)


def _escape_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
