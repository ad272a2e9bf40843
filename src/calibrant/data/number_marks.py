"""Marks of numbers and dates in the columns of a text file: decimal commas, points between thousands, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass
class NumberMarks:
    """Names of the columns with decimal commas, with points between thousands, and so on."""

    commas: set[str] = field(default_factory=set)
    thousands: set[str] = field(default_factory=set)
    points: set[str] = field(default_factory=set)
    """Columns with decimal points."""
    comma_thousands: set[str] = field(default_factory=set)
    """Columns with commas between thousands (1,234.50)."""
    signs: dict[str, str] = field(default_factory=dict)
    """The unit of columns that have one: a currency, a percent sign, kg and so on."""
    dates: dict[str, str] = field(default_factory=dict)
    """How dates are written, such as "day.month.year", in columns whose dates are not in the ISO format."""

    @property
    def changed(self) -> set[str]:
        """The columns whose text was changed to be read as numbers or dates."""
        return {*self.commas, *self.thousands, *self.comma_thousands, *self.signs, *self.dates}

    def to_json(self) -> dict[str, Any]:
        """Return the names as lists, and the units and dates as dictionaries."""
        return {kind: names if isinstance(names, dict) else sorted(names) for kind, names in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> NumberMarks:
        """Read what `to_json` returned; marks that it does not have are empty."""
        found: dict[str, Any] = {}
        for kind in (own.name for own in fields(cls)):
            if kind in ("signs", "dates"):
                found[kind] = {str(name): str(how) for name, how in content.get(kind, {}).items()}
            else:
                found[kind] = set(map(str, content.get(kind, ())))
        return cls(**found)
