"""Check the seeds, sets and methods of a command, and write report sections that all experiments have."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from calibrant.base.words import count as count  # studies import it from here
from studies.report import Record, Report, Results, Table, Verdict, command, provenance, to_markdown
from studies.sets import FITTED_SETS, SETS

SEEDS, QUICK_SEEDS = 20, 3
"""Number of seeds that the targets are set for, and of a ``--quick`` run."""


def seed_count(seeds: int | None = None, *, quick: bool = False) -> int:
    """The number of seeds: the given one, or 20 by default, or 3 for a quick run."""
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds must be at least 1; got {seeds}.")
    return seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS


def checked_methods(methods: Sequence[str] | None, allowed: Iterable[str]) -> list[str]:
    """The chosen methods, in the order of ``allowed``; all methods if None."""
    allowed = list(allowed)
    if unknown := [m for m in methods or () if m not in allowed]:
        raise ValueError(f"methods must be among {', '.join(allowed)}; got {', '.join(unknown)}.")
    return [m for m in allowed if methods is None or m in methods]


def checked_sets(sets: Sequence[str] | None) -> list[str]:
    """The chosen synthetic sets, each once and in the given order; the first paper's five if None."""
    allowed = SETS | FITTED_SETS
    if unknown := [name for name in sets or () if name not in allowed]:
        raise ValueError(f"sets must be among {', '.join(allowed)}; got {', '.join(unknown)}.")
    return list(dict.fromkeys(SETS if sets is None else sets))


def settings_of(records: Sequence[Mapping[str, Any]]) -> dict[str, str | dict[str, str]]:
    """The settings of each method: one text, or one text per data set if they differ."""
    settings: dict[str, dict[str, str]] = {}
    for record in records:
        settings.setdefault(record["method"], {})[record["dataset"]] = record["settings"]
    return {
        name: next(iter(texts.values())) if len(set(texts.values())) == 1 else texts for name, texts in settings.items()
    }


def in_order(records: Iterable[Record], order: Mapping[str, Iterable[Any] | None]) -> list[Record]:
    """Sort records by some fields, each with its values in order, or None for the order of numbers and texts.

    Unknown values come last, and records without a field first.
    """
    places = {
        name: None if values is None else {value: place for place, value in enumerate(values)}
        for name, values in order.items()
    }

    def place(record: Record, name: str) -> tuple[Any, ...]:
        places_of_field, value = places[name], record.get(name, 0)
        if places_of_field is None:
            return (value,)
        return (False, places_of_field[value]) if value in places_of_field else (True, str(value))

    return sorted(records, key=lambda record: [place(record, name) for name in places])


def made() -> dict[str, str]:
    """The command and the date, stored in the result file. A report made later from this file shows them."""
    return {"command": command(), "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}


WIDTH = 100


def screen(title: str, table: Table, sentence: str) -> str:
    """The end of a study in a terminal: a table, and a sentence about it."""
    rows = to_markdown(table.columns, table.rows, group=table.group, exempt=table.exempt)
    return "\n".join([*textwrap.wrap(title, WIDTH), rows, *textwrap.wrap(sentence, WIDTH)])


def add_targets(report: Report, verdicts: Sequence[Verdict], *, judged: bool) -> None:
    """Add targets with their verdicts, or without them if the runs are too few or too small to judge them."""
    if judged:
        report.verdicts(verdicts)
    else:
        report.table(["target", "measured, not judged"], [[verdict.statement, verdict.shown] for verdict in verdicts])


def foot(report: Report, results: Results, *, hidden: Sequence[str] = ()) -> None:
    """End a report with the origin of its numbers; ``hidden`` names config entries that its tables show already."""
    config = results.config
    kept = {key: config[key] for key in ("command", "date") if key in config}
    shown = {key: value for key, value in config.items() if key not in (*hidden, *kept)}
    report.provenance(provenance(shown, versions=results.versions, **kept))


def failures(report: Report, records: Sequence[Mapping[str, Any]], consequence: str) -> None:
    """Add a table of the runs that failed, if there are any, with the ``consequence`` for the numbers."""
    failed = [r for r in records if r.get("failure")]
    if not failed:
        return
    where = "table" if "table" in failed[0] else "dataset"
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for r in failed:
        alike.setdefault((r[where], r["method"]), []).append(r)
    rows = [[*key, ", ".join(str(r["seed"]) for r in runs), runs[0]["failure"]] for key, runs in alike.items()]
    report.section("Failed runs", consequence)
    report.table(["table" if where == "table" else "set", "method", "seeds", "reason (first seed)"], rows)
