"""Comparisons of methods over tables: mean ranks, Friedman's and Wilcoxon's tests, and the critical difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ranking:
    """Means over seeds, (tables, methods), and their ranks within each table: 1 is the lowest, ties share theirs."""

    metric: str
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


def ranking(records: Iterable[Mapping[str, Any]], metric: str, methods: Sequence[str]) -> Ranking:
    """Rank methods on each table by the mean of a metric over the seeds that all of them were run with.

    Tables without such a seed are skipped. A method that failed on a table with any of these seeds is last there.
    """
    from scipy.stats import rankdata

    values: dict[str, dict[str, dict[int, float]]] = {}
    for record in records:
        value = math.inf if record[metric] is None else record[metric]
        values.setdefault(record["table"], {}).setdefault(record["method"], {})[record["seed"]] = value
    means, tables = np.empty((0, len(methods))), []
    for table, found in values.items():
        # Two splits of a table differ by more than two methods do: means over other seeds are not comparable.
        if shared := set.intersection(*(set(found.get(m, ())) for m in methods)) if methods else set():
            tables.append(table)
            means = np.vstack([means, [np.mean([found[m][seed] for seed in sorted(shared)]) for m in methods]])
    ranks = rankdata(means, axis=1) if len(tables) else means
    return Ranking(metric, tables, list(methods), means, ranks)


def friedman(ranked: Ranking) -> float | None:
    """P-value of "all methods are equal" (Friedman 1937, ties corrected); None below three methods or two tables."""
    from scipy.stats import friedmanchisquare

    tables, methods = ranked.ranks.shape
    if tables < 2 or methods < 3 or np.ptp(ranked.ranks) == 0:
        return None
    return float(friedmanchisquare(*ranked.ranks.T).pvalue)


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
    own = finite[:, ranked.methods.index(method)]
    differences = {m: finite[:, ranked.methods.index(m)] - own for m in others}
    raw = {m: float(wilcoxon(d).pvalue) if d.any() else 1.0 for m, d in differences.items()}
    corrected: dict[str, float | None] = {}
    least = 0.0
    for position, name in enumerate(sorted(raw, key=raw.__getitem__)):
        least = max(least, min(1.0, (len(raw) - position) * raw[name]))  # Holm: never below an earlier one
        corrected[name] = least
    return corrected


def critical_difference(tables: int, methods: int, level: float = 0.05) -> float:
    """Nemenyi's critical difference: mean ranks that are closer than this do not differ significantly.

    CD = q √(k(k + 1)/(6N)), q the studentised range's quantile over √2 (Demšar 2006, Section 3.2.2).
    """
    from scipy.stats import studentized_range

    q = studentized_range.ppf(1 - level, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * tables)))
