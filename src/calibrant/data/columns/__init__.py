"""Columns of tables: reading them from files, how their values are written, and their encoding as numbers."""

from calibrant.data.columns.column_format import ColumnFormat, Notation
from calibrant.data.columns.values import (
    Code,
    Columns,
    days,
    each,
    is_missing,
    is_numeric,
    missing_count,
    numbers,
    set_of,
    texts,
)

__all__ = [
    "Code",
    "ColumnFormat",
    "Columns",
    "Notation",
    "days",
    "each",
    "is_missing",
    "is_numeric",
    "missing_count",
    "numbers",
    "set_of",
    "texts",
]
