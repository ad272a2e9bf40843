"""Targets of the recommended classifier on tables: ranks, its loss against the best rival of each table, and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.experiments.common.shared import count
from calibrant.experiments.tables.ids import RIVAL
from calibrant.experiments.tables.ranks import Ranking
from calibrant.report import Verdict
from calibrant.report.results import Record

MEDIAN, NEAR, SHARE, FAR = 1.00, 1.02, 0.7, 1.10
"""Targets for NLL over the best rival's: the median, what counts as near, the share of tables that must be near, and
the most on any table."""
DRAWS = 2000


def target_verdicts(
    ranked: dict[str, Ranking],
    records: Sequence[Record],
    own: str,
    former: str,
    names: dict[str, str],
    where: str = "",
) -> list[Verdict]:
    """Verdicts on all methods of a run; ``ranked`` holds all of them, by metric. ``where`` ends every statement."""
    found = [_first(each, own, names[metric]) for metric, each in ranked.items()]
    found += _against_best(ranked["nll"], own)
    found.append(_time(records, own, former))
    return [replace(verdict, statement=verdict.statement + where) for verdict in found]


def _first(each: Ranking, own: str, name: str) -> Verdict:
    statement = f"{own} has the best mean rank in {name} among all methods"
    if own not in each.methods or not each.tables or len(each.methods) < 2:
        return Verdict(statement)
    mean = each.mean_ranks
    rival = next(m for m in mean if m != own)
    column, other = each.ranks[:, each.methods.index(own)], each.ranks[:, each.methods.index(rival)]
    low, high = interval(column, np.mean)
    below, above = interval(other - column, np.mean)
    note = (
        f"[{low:.2f}, {high:.2f}]; best of the others: {rival}, {mean[rival]:.2f}, behind by "
        f"{np.mean(other - column):.2f} [{below:.2f}, {above:.2f}]; {count(len(each.tables), 'table')}, "
        f"{len(each.methods)} methods"
    )
    return Verdict(statement, mean[own], mean[own] < mean[rival], note, digits=2)


def ratios(each: Ranking, own: str) -> dict[str, tuple[float, str]]:
    """For each table the mean loss over that of the best rival, and the rival; our own variants are no rivals."""
    rivals = [k for k, name in enumerate(each.methods) if not name.startswith(own)]
    if own not in each.methods or not rivals:
        return {}
    means, position = each.means, each.methods.index(own)
    best = [rivals[int(np.argmin(row[rivals]))] for row in means]
    return {
        table: (float(row[position] / row[k]), each.methods[k])
        for table, row, k in zip(each.tables, means, best, strict=True)
    }


def _against_best(each: Ranking, own: str) -> list[Verdict]:
    found = ratios(each, own)
    statements = (
        f"NLL over that of the best rival of each table: median at most {MEDIAN:.2f}",
        f"NLL at most {NEAR} times the best rival's on at least {100 * SHARE:.0f} % of the tables",
        f"NLL nowhere above {FAR:.2f} times the best rival's",
    )
    if not found:
        return [Verdict(statement) for statement in statements]
    values = np.array([ratio for ratio, _ in found.values()])
    median, near, most = float(np.median(values)), float((values <= NEAR).mean()), float(values.max())
    worst = max(found, key=lambda table: found[table][0])
    notes = (
        "[{:.3f}, {:.3f}] over tables".format(*interval(values, np.median)),
        f"{int((values <= NEAR).sum())} of {count(len(values), 'table')}",
        f"{worst}, against {found[worst][1]}",
    )
    shown = (median, median <= MEDIAN), (near, near >= SHARE), (most, most <= FAR)
    return [
        Verdict(statement, value, holds, note, digits=3)
        for statement, (value, holds), note in zip(statements, shown, notes, strict=True)
    ]


def _time(records: Sequence[Record], own: str, former: str) -> Verdict:
    """The sum over tables of mean fit times. Runs on a GPU do not count: the rival has none."""
    statement = f"Fit time of {own}, summed over tables, at most that of {RIVAL} and {former} together"
    seconds: dict[str, dict[str, list[float]]] = {}
    for r in records:
        if r["method"] in (own, former, RIVAL) and r["seconds"] is not None and r.get("device", "cpu") == "cpu":
            seconds.setdefault(r["method"], {}).setdefault(r["table"], []).append(r["seconds"])
    tables = set.intersection(*(set(each) for each in seconds.values())) if len(seconds) == 3 else set()
    if not tables:
        return Verdict(statement)
    sums = {name: sum(float(np.mean(each[table])) for table in tables) for name, each in seconds.items()}
    allowed = sums[former] + sums[RIVAL]
    note = f"{sums[own]:.1f} s of {allowed:.1f} s on {count(len(tables), 'table')}"
    return Verdict(statement, sums[own] / allowed, sums[own] <= allowed, note, digits=2)


def interval(values: np.ndarray, statistic: Callable[..., Any], level: float = 0.95) -> tuple[float, float]:
    """A percentile interval of a statistic of tables, by drawing tables again with replacement."""
    rows = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(statistic(np.asarray(values)[rows], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
