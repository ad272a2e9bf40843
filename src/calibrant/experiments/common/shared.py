"""What all experiments share: how many seeds, which sets and methods, and the end of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from calibrant.data import SETS
from calibrant.report import Report, Results, provenance
from calibrant.report.results import command

SEEDS, QUICK_SEEDS = 20, 3
"""What the targets were set for, and what ``--quick`` runs."""


def seed_count(seeds: int | None = None, *, quick: bool = False) -> int:
    """How many seeds to run: those asked for, or else 20, or 3 of a quick run."""
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds is how many, and must be at least 1; got {seeds}.")
    return seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS


def checked_methods(methods: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """The methods asked for, in the order in which they are known; all where none are named."""
    known = list(known)
    if unknown := [m for m in methods or () if m not in known]:
        raise ValueError(f"there is no method called {', '.join(unknown)}; the methods are {', '.join(known)}.")
    return [m for m in known if methods is None or m in methods]


def checked_sets(sets: Sequence[str] | None) -> list[str]:
    """The synthetic sets asked for, each once and in the order given; all where none are named."""
    if unknown := [name for name in sets or () if name not in SETS]:
        raise ValueError(f"there is no set called {', '.join(unknown)}; the sets are {', '.join(SETS)}.")
    return list(dict.fromkeys(SETS if sets is None else sets))


def made() -> dict[str, str]:
    """Command and date, for a result file: a report that is made from it later says these and not its own."""
    return {"command": command(), "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}


def foot(report: Report, results: Results, *, hidden: Sequence[str] = ()) -> None:
    """End a report with how the numbers of a result file were made; ``hidden`` names what its tables show already."""
    config = results.config
    kept = {key: config[key] for key in ("command", "date") if key in config}
    told = {key: value for key, value in config.items() if key not in (*hidden, *kept)}
    report.provenance(provenance(told, versions=results.versions, **kept))


def failures(report: Report, records: Sequence[Mapping[str, Any]], consequence: str) -> None:
    """A table of the trainings that broke down, if any did, and what follows for the numbers."""
    failed = [r for r in records if r.get("failure")]
    if not failed:
        return
    where = "table" if "table" in failed[0] else "dataset"
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for r in failed:
        alike.setdefault((r[where], r["method"]), []).append(r)
    rows = [[*key, ", ".join(str(r["seed"]) for r in own), own[0]["failure"]] for key, own in alike.items()]
    report.section("Failed runs", consequence)
    report.table(
        ["table" if where == "table" else "set", "method", "seeds", "what happened, to the first of them"], rows
    )


def count(number: int, noun: str) -> str:
    """A number and its noun: 1 table, 2 tables."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
