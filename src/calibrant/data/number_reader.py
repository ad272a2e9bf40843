"""Reading the numbers and dates in the texts of a file, in the way of a training table if there is one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from calibrant.data.date_columns import check_dates, form_of_dates
from calibrant.data.date_texts import with_iso_dates
from calibrant.data.number_marks import NumberMarks
from calibrant.data.number_texts import (
    FULL,
    POINT_THOUSANDS,
    as_numbers,
    fits_thousands,
    has_commas,
    is_decimal,
    with_decimal_points,
    without_comma_groups,
    without_point_groups,
)
from calibrant.data.units import check_unit, without_unit

_ENGLISH = ("$", "£", "¥", "USD", "GBP")
"""Currencies of countries that separate thousands by commas."""
_ADVICE = "Write the numbers without points between thousands."


class NumberReader:
    """Read the numbers of one file, which may come in pieces, and remember their marks.

    ``1.200`` is 1200 or 1.2. If all points of a column may separate thousands, these rules decide:

    1. They separate thousands if they did so in this column of the training table.
    2. A column that had decimal points in training keeps them, unless columns changed from points to commas.
    3. A column that had decimal commas in training, or any column without a training table: points separate thousands
       if the file has decimal commas.
    4. In any other column points also separate thousands if the training table had decimal commas.

    Parameters
    ----------
    file : name of the file, for messages
    known : the marks of the training table
    used : the columns of the training table; the others are read without it
    target : the column of labels, if the file is a training table. In its other columns, numbers with a unit or with
        commas between thousands are read as numbers, and dates such as 26.01.2023 as dates
    """

    def __init__(
        self,
        file: str,
        known: NumberMarks | None = None,
        used: Collection[str] | None = None,
        *,
        target: str | None = None,
    ) -> None:
        self.file = file
        self.known = NumberMarks() if known is None else known
        self.used = used
        self.target = target
        self.found = NumberMarks()
        self.notes: dict[str, str] = {}
        """By column, a note for the user, such as that its marks differ from those of the training table."""
        self.file_note: str | None = None
        """A note on the whole file."""
        self._pointed: dict[str, str] = {}
        """By column, a value whose point can only be a decimal point."""
        self._grouped: dict[str, str] = {}
        """By column, a value whose points separate thousands."""

    @property
    def remarks(self) -> list[str]:
        """All notes for the user."""
        return [*([] if self.file_note is None else [self.file_note]), *self.notes.values()]

    def read(self, frame: Any, raw: Callable[[], Any], *, commas: bool, text: Collection[str]) -> None:
        """Replace text by numbers in a data frame.

        Parameters
        ----------
        raw : function that returns the same frame with all values as text
        commas : whether every column may have decimal commas; otherwise only those that had them in training
        text : columns that stay text
        """
        names = [str(name).strip() for name in frame.columns]
        kinds = [dtype.kind for dtype in frame.dtypes]
        done, unsigned = set(text), {}
        for place, own in enumerate(names):
            if kinds[place] in "biuf" or own in text:
                continue
            given = column = frame.iloc[:, place]
            if (dates := self._with_dates(own, column)) is not None:
                done.add(own)
                frame[frame.columns[place]] = dates
                continue
            if (found := self._without_unit(own, column)) is not None:
                column, self.found.signs[own] = found
                unsigned[place] = column
                frame[frame.columns[place]] = as_numbers(column)
            if (mended := self._with_points(own, column, commas)) is None:
                mended = self._without_comma_groups(own, column, commas)
            if mended is not None:
                done.add(own)
                frame[frame.columns[place]] = mended
            elif own not in self.known.signs and any(map(has_commas, unsigned.get(place, ()))):
                del unsigned[place], self.found.signs[own]  # commas without a clear meaning: the texts stay as they are
                frame[frame.columns[place]] = given
        if self.found.commas or self.known.commas or self.known.thousands:
            texts = raw()
            for place, own in enumerate(names):
                column = unsigned.get(place, texts.iloc[:, place])
                if own not in done and self._separates_thousands(own, column):
                    frame[frame.columns[place]] = without_point_groups(column)
        else:
            for place, own in enumerate(names):
                if kinds[place] == "f" and own not in done:
                    self.see(own, frame.iloc[:, place].to_numpy())
        self._compare()
        for own, unit in self.found.signs.items():
            if own not in self.known.signs:
                self.notes[own] = f"Column {own!r} has the unit {unit!r} and is read as numbers."

    def _may_be_amount(self, own: str) -> bool:
        """Whether a column of a training table may have dates, a unit, and commas between thousands."""
        return self.target is not None and own != self.target

    def _with_dates(self, own: str, column: Any) -> Any:
        """A column with dates in the ISO format; None if it has no dates in another form."""
        form = self.known.dates.get(own)
        if form is not None and self._is_used(own):
            check_dates(own, column, form, self.file)
        elif form is None and self._may_be_amount(own):
            form, note = form_of_dates(own, column)
            if note is not None:
                self.notes[own] = note
        if form is None:
            return None
        self.found.dates[own] = form
        return with_iso_dates(column, form)

    def _without_unit(self, own: str, column: Any) -> tuple[Any, str] | None:
        """A column without its unit, and the unit; None if it has none. Units must be those of the training table."""
        known = self.known.signs.get(own)
        if known is None:
            return without_unit(column, self.found.signs.get(own)) if self._may_be_amount(own) else None
        if self._is_used(own):
            check_unit(own, column, known, self.file)
        return without_unit(column, known)

    def _with_points(self, own: str, column: Any, commas: bool) -> Any:
        """A column with decimal points instead of commas; None if it has no decimal commas."""
        if not (commas or own in self.known.commas or own in self.found.signs):
            return None
        mended = with_decimal_points(column, sure=own in self.known.commas | self.found.commas)
        if mended is not None:
            self._check_earlier(own)
            self.found.commas.add(own)
            if any(isinstance(v, str) and FULL.fullmatch(v) for v in column):
                self.found.thousands.add(own)
        return mended

    def _without_comma_groups(self, own: str, column: Any, commas: bool) -> Any:
        """A column without commas between thousands; None if it has none."""
        if not (own in self.known.comma_thousands or self._may_be_amount(own)):
            return None
        english = not commas and self.found.signs.get(own) in _ENGLISH  # but 1,719 € may be the price of petrol
        mended = without_comma_groups(column, sure=english or own in self.known.comma_thousands)
        if mended is not None:
            self.found.comma_thousands.add(own)
        return mended

    def see(self, own: str, values: np.ndarray, *, typed: bool = False) -> None:
        """Remember a column of numbers with fractions. A ``typed`` one was not written with points."""
        values = np.abs(values[np.isfinite(values)])
        fractions = values[values != np.rint(values)]
        if not fractions.size:
            return
        self.found.points.add(own)
        if typed:
            return
        clear = (fractions < 1) | (np.abs(fractions * 1e3 - np.rint(fractions * 1e3)) > 1e-6)
        if clear.any() or values.max() >= 1e3:
            self._pointed.setdefault(own, f"{fractions[clear.argmax()]:g}")

    def _separates_thousands(self, own: str, column: Any) -> bool:
        """Whether points separate thousands in a column of texts."""
        values = {str(value): int(rows) for value, rows in column.value_counts(sort=False).items()}
        grouped = next((v.strip() for v in values if POINT_THOUSANDS.fullmatch(v)), None)
        clear = next(filter(is_decimal, values), None)
        if clear is not None:
            self.found.points.add(own)
            self._pointed.setdefault(own, clear.strip())
        if grouped is None:
            return False
        if not self._is_used(own):
            return clear is None and bool(self.found.commas) and fits_thousands(values)
        sure = own in self.known.thousands | self.found.thousands
        separates = sure or (own not in self._pointed and self._expected(own) and fits_thousands(values))
        if separates:
            self._grouped.setdefault(own, grouped)
            self._check_earlier(own)
            self.found.thousands.add(own)
            if own in self.known.points:
                self.notes.setdefault(
                    own,
                    f"Column {own!r} had decimal points in the training table, but here {grouped!r} is read as "
                    f"{grouped.replace('.', '')}, because {self.file} has decimal commas.",
                )
        else:
            self.found.points.add(own)
            if own in self.known.commas and own not in self._pointed:
                self.notes.setdefault(
                    own,
                    f"Column {own!r} had decimal commas in the training table, but here it has points "
                    f"({grouped!r}), which are read as decimal points.",
                )
        return separates

    def _expected(self, own: str) -> bool:
        """Whether points that may separate thousands do so, by the other columns and the training table."""
        if own in self.known.points:
            return bool(self.found.commas & self.known.points)
        trained = bool(self.known.commas or self.known.thousands) and own not in self.known.commas
        return trained or bool(self.found.commas)

    def _compare(self) -> None:
        """Raise an error if points have two meanings, and note columns that differ from those of training."""
        other = next((name for name in self._pointed if name in self.known.commas), None)
        for own, grouped in self._grouped.items():
            if own in self._pointed:
                raise ValueError(
                    f"Column {own!r} of {self.file} must have one kind of points; got points between thousands "
                    f"({grouped!r}) and decimal points ({self._pointed[own]!r}). {_ADVICE}"
                )
            if other is not None:
                raise ValueError(
                    f"{grouped!r} in column {own!r} of {self.file} is not clear: the training table has decimal commas "
                    f"and points between thousands, but column {other!r} has decimal points here "
                    f"({self._pointed[other]!r}). {_ADVICE}"
                )
        for own in filter(self._is_used, sorted(self.known.thousands & set(self._pointed))):
            self.notes.setdefault(
                own,
                f"Column {own!r} had points between thousands in the training table, but here it has decimal points "
                f"({self._pointed[own]!r}), which are read as such.",
            )

    def _is_used(self, own: str) -> bool:
        return self.used is None or own in self.used

    def _check_earlier(self, own: str) -> None:
        """Raise an error if points that separate thousands were read as decimal points in earlier pieces."""
        if own in self.found.points and own not in self._pointed and self._is_used(own):
            raise ValueError(
                f"Points in column {own!r} of {self.file} were read as decimal points, but decimal commas in later "
                f"rows show that they separate thousands. {_ADVICE}"
            )
