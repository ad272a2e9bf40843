"""Targets with several parts as a Markdown table: one column for each data set, and long notes below."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.report import Verdict, to_markdown
from calibrant.report.numbers import MISSING
from studies.common.verdicts import places_not_held

Cells = dict[str, tuple[str, str]]
"""By data set: the quantity and the measurement."""
NOTE = "Bold: this part misses the target."


def targets_table(verdicts: Sequence[Verdict]) -> str:
    """All targets, their measurements by data set, and their notes as a list.

    The place of a part begins with its data set; the rest names a quantity: ``cifar10 (rate × 1)``. A target with
    several quantities has one row for each. A quantity that differs between data sets becomes a note.
    """
    sets = list(dict.fromkeys(where.split(" ")[0] for verdict in verdicts for where, _, _ in verdict.parts))
    several = any(_quantity(cells) for verdict in verdicts for cells in _rows(verdict))
    rows, notes = [], []
    for verdict in verdicts:
        own = _rows(verdict)
        for position, cells in enumerate(own):
            first = [verdict.statement, verdict.word] if position == 0 else ["", ""]
            measured = [cells[name][1] if name in cells else None for name in sets]
            rows.append([first[0], *([_quantity(cells)] if several else []), *measured, first[1]])
        if note := "; ".join(filter(None, [*map(_different, own), _remark(verdict)])):
            notes.append(f"- {verdict.statement}: {note}.")
    table = to_markdown(["target", *(["quantity"] if several else []), *sets, "verdict"], rows)
    missed = any(holds is False for verdict in verdicts for _, _, holds in verdict.parts)
    return "\n\n".join(filter(None, [table, NOTE if missed else "", "\n".join(notes)]))


def _rows(verdict: Verdict) -> list[Cells]:
    """The parts of a target, row by row: the first part of each data set, then the second, and so on."""
    rows: list[Cells] = []
    for where, shown, holds in verdict.parts:
        name, _, quantity = where.partition(" ")
        row = next((row for row in rows if name not in row), None)
        if row is None:
            rows.append(row := {})
        row[name] = (_bare(quantity), _marked(shown, holds))
    return rows or [{}]


def _marked(shown: str, holds: bool | None) -> str:
    if holds is None and shown != MISSING:
        return f"{shown} (not judged)"
    return f"**{shown}**" if holds is False else shown


def _bare(quantity: str) -> str:
    """A quantity without the brackets around the whole of it."""
    return quantity[1:-1] if quantity.startswith("(") and quantity.endswith(")") else quantity


def _quantity(cells: Cells) -> str:
    """The quantity that all cells of a row share; empty if they differ."""
    quantities = {quantity for quantity, _ in cells.values()}
    return quantities.pop() if len(quantities) == 1 else ""


def _different(cells: Cells) -> str:
    """The quantities of a row by data set, if they differ."""
    if len({quantity for quantity, _ in cells.values()}) < 2:
        return ""
    return ", ".join(f"{quantity} on {name}" for name, (quantity, _) in cells.items())


def _remark(verdict: Verdict) -> str:
    """The note without the places, which the table shows."""
    return verdict.note.removeprefix(places_not_held(verdict)).removeprefix("; ")
