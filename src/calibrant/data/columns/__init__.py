"""Columns of tables: reading them from files, how their values are written, and their encoding as numbers."""

from calibrant.data.columns.column_format import ColumnFormat, Notation

__all__ = ["ColumnFormat", "Notation"]
