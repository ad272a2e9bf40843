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
from studies.tables.peers import OURS, OWN
from studies.tables.ranks import Ranking, ranking, values_of

JUDGED = {"nll": "NLL", "smooth_ece": "smooth ECE"}


@dataclass(frozen=True)
class Compared:
    """The scores of a result file.

    ``methods`` were measured on all splits, (table, seed), and are ranked. ``partial`` holds the others, with the
    number of splits that they were measured on.
    """

    records: list[Record]
    methods: list[str]
    partial: dict[str, int]

    def rankings(self) -> dict[str, Ranking]:
        """Ranks of the complete methods by each judged metric."""
        return {metric: ranking(self.records, metric, self.methods) for metric in JUDGED}

    def untried(self) -> Compared | None:
        """Return the same methods on tables that no setting was tried on; None if these are all or no tables."""
        records = [r for r in self.records if r["table"] not in DEVELOPMENT]
        return replace(self, records=records) if 0 < len(records) < len(self.records) else None


def compared(results: Results) -> Compared:
    """Return the scores of a result file, with complete and partial methods apart.

    The splits are those of self-calibrated, or of the method with most.
    """
    records = [r for r in results.records if not is_cost(r)]
    splits: dict[str, set[tuple[str, int]]] = {method: set() for method in results.config["methods"]}
    for record in records:
        splits[record["method"]].add((record["table"], record["seed"]))
    wanted = splits.get(OWN) or max(splits.values(), key=len, default=set())
    measured = {method: wanted & of_method for method, of_method in splits.items() if of_method}
    complete = [method for method, common in measured.items() if common == wanted]
    partial = {method: len(common) for method, common in measured.items() if common != wanted}
    return Compared(records, complete, partial)


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
    by_table = []
    for table, values in values_of(records, metric).groupby(level="table", sort=False):
        if own not in values or not len(values := values[values[own].notna()]):
            continue
        ours = values[own]
        rivals = values.drop(columns=[name for name in OURS if name in values]).replace(np.inf, np.nan)
        sums = rivals.dropna(axis=1).sum()
        if sums.empty:
            continue
        rival = str(sums.idxmin())
        if np.isfinite(ours).all():
            ratio = ratio_of_means(list(ours), list(values[rival]), overlap=overlap)
        else:
            ratio = Estimate(math.inf, math.nan, math.nan, 0.95, "a failed run")
        by_table.append(Ratio(str(table), float(ours.mean()), rival, float(values[rival].mean()), ratio))
    return by_table


def lower_on(values: pd.DataFrame, method: str, own: str = OWN) -> tuple[int, int]:
    """Compare ``own`` with a method by their means over common splits.

    Return the number of tables on which ``own`` is lower, and the number of tables with common splits.
    """
    if own not in values or method not in values:
        return 0, 0
    sums = values[[own]].assign(other=values[method]).dropna().groupby(level="table").sum()
    return int((sums[own] < sums["other"]).sum()), len(sums)


def earlier(records: Iterable[Record], made_by: Mapping[str, str]) -> list[Record]:
    """Return the records of an earlier version, whose numbers may differ.

    ``made_by`` has the last version that measured each method; a method without one has no earlier records.
    """
    return [r for r in records if r.get("code", "") != made_by.get(r["method"], r.get("code", ""))]
