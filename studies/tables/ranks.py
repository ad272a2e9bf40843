"""Comparisons of methods over tables: mean ranks, and Wilcoxon's tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Ranking:
    """Means over seeds, (tables, methods), and their ranks within each table: 1 is the lowest, ties share theirs."""

    tables: list[str]
    methods: list[str]
    means: np.ndarray
    ranks: np.ndarray

    @property
    def mean_ranks(self) -> dict[str, float]:
        """Each method's mean rank over tables, best first."""
        pairs = zip(self.methods, self.ranks.mean(0).tolist(), strict=True)
        return dict(sorted(pairs, key=lambda pair: pair[1]))

    def wins(self, method: str) -> int:
        """On how many tables the method is first, alone or with others."""
        return int((self.ranks[:, self.methods.index(method)] == self.ranks.min(1)).sum())


def values_of(records: Iterable[Mapping[str, Any]], metric: str) -> pd.DataFrame:
    """A metric by (table, seed) and method: infinity for a failed run, NaN for one that was not made."""
    rows = [(r["table"], r["seed"], r["method"], math.inf if r[metric] is None else r[metric]) for r in records]
    frame = pd.DataFrame(rows, columns=["table", "seed", "method", "value"])
    values = frame.pivot(index=["table", "seed"], columns="method", values="value")
    return values.reindex(frame["table"].unique(), level="table") if len(values) else values


def ranking(records: Iterable[Mapping[str, Any]], metric: str, methods: Sequence[str]) -> Ranking:
    """Rank methods on each table by the mean of a metric over the seeds that all of them were run with.

    Two splits of a table differ by more than two methods do, so means over other seeds are not comparable. Tables
    without a common seed are skipped. A method that failed on a table with any of these seeds is last there.
    """
    values = values_of(records, metric).reindex(columns=list(methods))
    means = values.dropna().groupby(level="table", sort=False).mean()
    return Ranking(list(means.index), list(methods), means.to_numpy(), means.rank(axis=1).to_numpy())


def against(ranked: Ranking, method: str) -> dict[str, float | None]:
    """P-values of Wilcoxon's signed-rank test of each other method against this one, corrected by Holm (1979).

    Pairs are the tables; the values compared are means over seeds. None below six tables, where no p-value of this
    test is below 0.05 (a failed run counts as a large loss: the test sees ranks only).
    """
    from scipy.stats import wilcoxon

    others = [m for m in ranked.methods if m != method]
    if len(ranked.tables) < 6 or method not in ranked.methods:
        return dict.fromkeys(others)
    finite = np.where(np.isfinite(ranked.means), ranked.means, 1e9)
    gaps = finite - finite[:, [ranked.methods.index(method)]]
    raw = {m: float(wilcoxon(gap).pvalue) if gap.any() else 1.0 for m, gap in zip(ranked.methods, gaps.T, strict=True)}
    order = sorted(others, key=raw.__getitem__)
    holm = np.maximum.accumulate([(len(order) - k) * raw[name] for k, name in enumerate(order)])  # never decreasing
    return dict(zip(order, np.minimum(holm, 1.0).tolist(), strict=True))
