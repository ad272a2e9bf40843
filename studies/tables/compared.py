"""The records to compare: methods that were measured on every split, and those that were not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from calibrant.metrics import Estimate, ratio_of_means
from studies.report import Record, Results
from studies.tables.costs import is_cost
from studies.tables.data import DEVELOPMENT
from studies.tables.peers import OURS, OWN, PEERS, RIVAL
from studies.tables.ranks import Ranking, ranking, values_of

JUDGED = {"nll": "NLL", "smooth_ece": "smooth ECE"}


@dataclass(frozen=True)
class Compared:
    """The scores of a result file.

    ``methods`` were measured on all ``splits``, (table, seed), and are ranked. ``partial`` holds the others, with the
    number of splits that they were measured on.
    """

    records: list[Record]
    methods: list[str]
    partial: dict[str, int]
    splits: frozenset[tuple[str, int]]

    def rankings(self) -> dict[str, Ranking]:
        """Ranks of the complete methods by each judged metric."""
        return {metric: ranking(self.records, metric, self.methods) for metric in JUDGED}

    def absent(self) -> list[str]:
        """Rivals named by the targets that were not measured on any split."""
        return [name for name in PEERS if name not in (*self.methods, *self.partial)] if RIVAL in self.methods else []

    def with_partial(self, rows: Sequence[str], metric: str) -> Ranking:
        """Rank these partial methods with the complete ones, on tables where they were measured on every split."""
        held = {(r["table"], r["seed"], r["method"]) for r in self.records}
        lacking = {table for table, seed in self.splits for m in rows if (table, seed, m) not in held}
        return ranking([r for r in self.records if r["table"] not in lacking], metric, [*self.methods, *rows])

    def untried(self) -> Compared | None:
        """Return the same methods on tables that no setting was tried on; None if these are all or no tables."""
        tables = {table for table, _ in self.splits}
        if not tables & DEVELOPMENT or tables <= DEVELOPMENT:
            return None
        records = [r for r in self.records if r["table"] not in DEVELOPMENT]
        found = compare(records, [*self.methods, *self.partial])
        return replace(found, methods=self.methods, partial={m: found.partial.get(m, 0) for m in self.partial})


def compared(results: Results) -> Compared:
    """Return the scores of a result file that can be compared."""
    return compare([r for r in results.records if not is_cost(r)], list(results.config["methods"]))


def compare(records: list[Record], methods: Sequence[str]) -> Compared:
    """Separate complete and partial methods. The splits are those of self-calibrated, or of the method with most."""
    splits: dict[str, set[tuple[str, int]]] = {m: set() for m in methods}
    for record in records:
        splits[record["method"]].add((record["table"], record["seed"]))
    measured = [m for m in methods if splits[m]]
    wanted = splits[OWN] if splits.get(OWN) else max((splits[m] for m in measured), key=len, default=set())
    whole = [m for m in measured if wanted <= splits[m]]
    partial = {m: len(wanted & splits[m]) for m in measured if m not in whole}
    return Compared(records, whole, partial, frozenset(wanted))


@dataclass(frozen=True)
class Ratio:
    """The ratio of our loss on one table to that of the best rival on this table."""

    table: str
    own: float
    rival: str
    best: float
    ratio: Estimate
    """The ratio of the means over splits, with its interval."""


def ratios(records: Sequence[Record], overlap: float, metric: str = "nll", own: str = OWN) -> list[Ratio]:
    """Return one ratio per table, by the loss ``metric``; infinite if ``own`` failed.

    Rivals are all methods except ours that were measured on every split of ``own`` there and did not fail.
    """
    found = []
    for table, values in values_of(records, metric).groupby(level="table", sort=False):
        if own not in values or not len(values := values[values[own].notna()]):
            continue
        mine = values[own]
        rivals = values.drop(columns=[name for name in OURS if name in values]).replace(np.inf, np.nan)
        sums = rivals.dropna(axis=1).sum()
        if sums.empty:
            continue
        rival = str(sums.idxmin())
        if np.isfinite(mine).all():
            ratio = ratio_of_means(list(mine), list(values[rival]), overlap=overlap)
        else:
            ratio = Estimate(math.inf, math.nan, math.nan, 0.95, "a failed run")
        found.append(Ratio(str(table), float(mine.mean()), rival, float(values[rival].mean()), ratio))
    return found


def lower_on(values: pd.DataFrame, method: str, own: str = OWN) -> tuple[int, int]:
    """Compare ``own`` with a method by their means over common splits.

    Return the number of tables on which ``own`` is lower, and the number of tables with common splits.
    """
    if own not in values or method not in values:
        return 0, 0
    sums = values[[own]].assign(other=values[method]).dropna().groupby(level="table").sum()
    return int((sums[own] < sums["other"]).sum()), len(sums)


def earlier(records: Iterable[Record], made_by: Mapping[str, str]) -> dict[str, int]:
    """Return how many scores of each method were measured with an earlier version, whose scores may differ."""
    outdated = [r["method"] for r in records if not is_cost(r) and _is_earlier(r, made_by)]
    return {method: outdated.count(method) for method in dict.fromkeys(outdated)}


def earlier_costs(records: Iterable[Record], method: str, made_by: Mapping[str, str]) -> list[str]:
    """Return the tables on which a method's cost was measured with an earlier version."""
    costs = (r for r in records if is_cost(r) and r["method"] == method and r["failure"] is None)
    return [record["table"] for record in costs if _is_earlier(record, made_by)]


def _is_earlier(record: Record, made_by: Mapping[str, str]) -> bool:
    """Whether another version measured the method last; without a known last version, nothing counts as earlier."""
    return record["method"] in made_by and record.get("code", "") != made_by[record["method"]]
