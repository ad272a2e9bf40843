"""Read the records of a result file or a store, and check which experiment wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.report import Results, read_results
from calibrant.report.results import Record
from studies.common.store import Store

Arrange = Callable[[Results], Results]
"""Sorts the records of a store for the tables, and adds to the config what the records say."""


class ResultKind(NamedTuple):
    """A kind of result file.

    ``command`` writes the file. A report needs the keys ``needed`` of its config. The fields ``identity`` of a record
    identify its run.
    """

    command: str
    needed: tuple[str, ...]
    identity: tuple[str, ...] = ("dataset", "method", "seed")


KINDS = {
    "bo4sc": ResultKind("reproduce bo4sc", ("settings",)),
    "bo4sc-grid": ResultKind(
        "sweep bo4sc",
        ("criterion", "grid", "chosen", "seeds", "command", "date"),
        ("dataset", "steps", "outer_learning_rate", "alpha", "width", "learning_rate", "epochs"),
    ),
    "bo4sc-ablation": ResultKind("ablate bo4sc", ("sets", "variants", "seeds")),
    "meta-reg": ResultKind(
        "reproduce meta-reg",
        ("sets", "methods", "seeds"),
        ("dataset", "model", "recipe", "epochs", "limit", "method", "seed"),
    ),
    "tables-ablation": ResultKind("ablate tables", ("rows", "tables", "methods"), ("table", "method", "seed")),
    "tables": ResultKind("bench tables", ("split", "tables", "methods"), ("table", "method", "seed", "threads")),
}
"""Kinds by the value of ``experiment`` in a result file's config."""


def contents(store: Store, arrange: Arrange) -> Results:
    """The current records of a store, in the form of a result file."""
    found = arrange(store.results())
    return found._replace(records=[{k: v for k, v in r.items() if k != "settings"} for r in found.records])


def read_own(path: str | Path, experiment: str, arrange: Arrange) -> Results:
    """Read a result file or a store of one experiment, a name of ``KINDS``.

    ``arrange`` sorts and completes the records of a store. A file of another experiment raises a ``ValueError`` that
    names the right command. Without this check, the report would fail with a ``KeyError``.
    """
    path = Path(path)
    store = Store(path) if path.suffix == ".jsonl" else None
    results = read_results(path) if store is None else store.results()
    found = experiment_of(results.config)
    if found is None:
        raise ValueError(
            f"{path} is not a result file of calibrant: its config does not name an experiment. Give a file that a "
            "command of calibrant wrote."
        )
    whose = f"python -m studies {KINDS[found].command}"
    if found != experiment:
        raise ValueError(f"{path} is a result file of `{whose}`; use `{whose} --from {path}`.")
    if store is not None and results.records:
        results = contents(store, arrange)
    lacking = [key for key in KINDS[found].needed if key not in results.config] + ["records"] * (not results.records)
    if lacking:
        raise ValueError(
            f"{path} is not a complete result file of `{whose}`: it lacks {', '.join(lacking)}. Run the command again."
        )
    return results


def experiment_of(config: Mapping[str, Any]) -> str | None:
    """The experiment that a config belongs to, or None. Old files of `bench tables` do not name it."""
    if "experiment" not in config and {"split", "nll_floor"} <= config.keys():
        return "tables"
    return next((name for name in KINDS if name == config.get("experiment")), None)


def in_order(records: Sequence[Record], place: Callable[[Record], tuple[Any, ...]]) -> list[Record]:
    """Records sorted by ``place``; unknown places (None) come last."""
    return sorted(records, key=lambda record: [(part is None, part) for part in place(record)])


def position(*lists: Iterable[Any]) -> dict[Any, int]:
    """The position of each name in the concatenated lists."""
    return {name: place for place, name in enumerate(name for names in lists for name in names)}


def settings_of(records: Sequence[Record]) -> dict[str, str | dict[str, str]]:
    """The settings of each method: one text, or one text per data set if they differ."""
    found: dict[str, dict[str, str]] = {}
    for record in records:
        found.setdefault(record["method"], {})[record["dataset"]] = record["settings"]
    return {name: next(iter(own.values())) if len(set(own.values())) == 1 else own for name, own in found.items()}
