"""What a result file or a store holds: whose it is, and its records in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.experiments.common.store import Store
from calibrant.report import Results, read_results
from calibrant.report.results import Record

Arrange = Callable[[Results], Results]
"""Puts the records of a store into the order of the tables, and completes the config by what the records tell."""


class Kind(NamedTuple):
    """A kind of result file.

    ``command`` writes it, its config must hold ``needed`` for a report to be made, and the fields ``identity`` of a
    record say which run it is.
    """

    command: str
    needed: tuple[str, ...]
    identity: tuple[str, ...] = ("dataset", "method", "seed")


KINDS = {
    "bo4sc": Kind("reproduce bo4sc", ("settings",)),
    "bo4sc-grid": Kind(
        "sweep bo4sc",
        ("criterion", "grid", "chosen", "seeds", "command", "date"),
        ("dataset", "steps", "weight_lr", "alpha", "width", "lr", "epochs"),
    ),
    "bo4sc-ablation": Kind("ablate bo4sc", ("sets", "variants", "seeds")),
    "noise": Kind("bench noise", ("rates", "sets", "methods", "seeds"), ("dataset", "method", "rate", "seed")),
    "meta-reg": Kind(
        "reproduce meta-reg",
        ("sets", "methods", "seeds"),
        ("dataset", "model", "recipe", "epochs", "limit", "method", "seed"),
    ),
    "networks": Kind("bench networks", ("tasks", "starts", "epochs", "stories"), ("task", "start", "seed")),
    "tables-ablation": Kind("ablate tables", ("rows", "tables", "methods"), ("table", "method", "seed")),
    "guarantees": Kind(
        "bench guarantees",
        ("sets", "rows", "new_rows", "risks", "confidence", "coverage"),
        ("dataset", "learner", "seed"),
    ),
    "hostile": Kind("bench hostile", ("cases", "methods", "seeds")),
    "tables": Kind("bench tables", ("split", "tables", "methods"), ("table", "method", "seed", "threads")),
}
"""By what a result file's config calls its ``experiment``."""


def contents(store: Store, arrange: Arrange) -> Results:
    """What counts in a store, as its result file has it."""
    found = arrange(store.results())
    return found._replace(records=[{k: v for k, v in r.items() if k != "settings"} for r in found.records])


def read_own(path: str | Path, experiment: str, arrange: Arrange) -> Results:
    """Read a result file or a store of one experiment, a name of ``KINDS``; another's is an error.

    ``arrange`` orders and completes what a store holds. Reports read fields that only their own experiment writes:
    without this check, another file would end in a ``KeyError``.
    """
    path = Path(path)
    store = Store(path) if path.suffix == ".jsonl" else None
    results = read_results(path) if store is None else store.results()
    found = experiment_of(results.config)
    if found is None:
        raise ValueError(f"{path} is not a result file of calibrant: its config names no experiment of a command.")
    whose = f"calibrant {KINDS[found].command}"
    if found != experiment:
        raise ValueError(f"{path} is a result file of `{whose}`; use `{whose} --from {path}`.")
    if store is not None and results.records:
        results = contents(store, arrange)
    lacking = [key for key in KINDS[found].needed if key not in results.config] + ["records"] * (not results.records)
    if lacking:
        raise ValueError(f"{path} is not a whole result file of `{whose}`: it lacks {', '.join(lacking)}.")
    return results


def experiment_of(config: Mapping[str, Any]) -> str | None:
    """Which experiment a config is of; files of `bench tables` did not always say so."""
    if "experiment" not in config and {"split", "nll_floor"} <= config.keys():
        return "tables"
    return next((name for name in KINDS if name == config.get("experiment")), None)


def in_order(records: Sequence[Record], place: Callable[[Record], tuple[Any, ...]]) -> list[Record]:
    """Records sorted by their ``place``; None, for what nobody knows the place of, comes last."""
    return sorted(records, key=lambda record: [(part is None, part) for part in place(record)])


def position(*lists: Iterable[Any]) -> dict[Any, int]:
    """The place of each name in some lists."""
    return {name: place for place, name in enumerate(name for names in lists for name in names)}


def settings_of(records: Sequence[Record]) -> dict[str, str | dict[str, str]]:
    """What each method ran with: one text, or one for each data set where they differ."""
    found: dict[str, dict[str, str]] = {}
    for record in records:
        found.setdefault(record["method"], {})[record["dataset"]] = record["settings"]
    return {name: next(iter(own.values())) if len(set(own.values())) == 1 else own for name, own in found.items()}
