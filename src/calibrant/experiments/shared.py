"""What all experiments share: how many seeds, which sets and methods, whose result file it is, a report's end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.data import SETS
from calibrant.report import Report, Results, provenance, read_results
from calibrant.report.results import command

SEEDS, QUICK_SEEDS = 20, 3
"""What the targets were set for, and what ``--quick`` runs."""


class Kind(NamedTuple):
    """A kind of result file: the command that writes it, and what its config must hold for a report to be made."""

    command: str
    needed: tuple[str, ...]


KINDS = {
    "bo4sc": Kind("reproduce bo4sc", ("settings",)),
    "bo4sc-grid": Kind("sweep bo4sc", ("criterion", "grid", "chosen", "seeds", "command", "date")),
    "bo4sc-ablation": Kind("ablate bo4sc", ("sets", "variants", "seeds")),
    "noise": Kind("bench noise", ("rates", "sets", "methods", "seeds")),
    "tables": Kind("bench tables", ("split", "tables", "methods")),
}
"""By what a result file's config calls its ``experiment``."""


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


def read_own(path: str | Path, experiment: str) -> Results:
    """Read a result file of one experiment, a name of ``KINDS``; another's is an error that names its command.

    Reports read fields that only their own experiment writes: without this, another file ends in a ``KeyError``.
    """
    results = read_results(path)
    found = _experiment(results.config)
    if found is None:
        raise ValueError(f"{path} is not a result file of calibrant: its config names no experiment of a command.")
    whose = f"calibrant {KINDS[found].command}"
    if found != experiment:
        raise ValueError(f"{path} is a result file of `{whose}`; use `{whose} --from {path}`.")
    lacking = [key for key in KINDS[found].needed if key not in results.config] + ["records"] * (not results.records)
    if lacking:
        raise ValueError(f"{path} is not a whole result file of `{whose}`: it lacks {', '.join(lacking)}.")
    return results


def _experiment(config: Mapping[str, Any]) -> str | None:
    """Which experiment a config is of; files of `bench tables` did not always say so."""
    if "experiment" not in config and {"split", "nll_floor"} <= config.keys():
        return "tables"
    return next((name for name in KINDS if name == config.get("experiment")), None)


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
