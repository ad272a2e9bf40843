"""Targets of the recommended classifier on tables: ranks, its loss against the best rival of each table, and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from studies.common.shared import count
from studies.report import Record, Verdict
from studies.tables.compared import JUDGED, Compared, Ratio, ratios
from studies.tables.costs import PREDICTED, THREADS, costs_of
from studies.tables.peers import CROSSED, FORMER, OURS, OWN, PEERS, RIVAL, base_of
from studies.tables.ranks import Ranking, ranking

MEDIAN, NEAR, SHARE, FAR = 1.00, 1.02, 0.7, 1.10
"""Targets for the ratio of NLL to the best rival's: the median, the limit for "near", the share of tables that must be
near, and the maximum on any table."""
MEMORY = 1000.0
"""The largest memory beyond the data, in megabytes."""
PREDICTION = 2.0
"""The longest time to predict ``PREDICTED`` rows, in seconds."""
SAME_FOLDS = ("hgb-isotonic", "hgb-sigmoid", RIVAL)
"""CalibratedClassifierCV with the trees and the folds of CROSSED."""
DRAWS = 2000


def score_targets(found: Compared, overlap: float) -> list[Verdict]:
    """Return the targets for scores."""
    unranked = [*found.partial, *found.absent()]
    verdicts = [_first(each, JUDGED[metric], unranked) for metric, each in found.rankings().items()]
    verdicts += _against_best(ratios(found.records, overlap))
    return [*verdicts, _crossed(found), *_with_unranked(found)]


def cost_targets(records: Sequence[Record]) -> list[Verdict]:
    """Return the targets for the costs of single fits and of predictions."""
    return [_time(records), _memory(records), _prediction(records)]


def _with_unranked(found: Compared) -> list[Verdict]:
    """Return the targets on ranks for each library that lacks splits, on the tables that it was measured on."""
    libraries: dict[str, list[str]] = {}
    for method in found.partial:
        if method in PEERS and method not in OURS:
            libraries.setdefault(base_of(method)[0].what, []).append(method)
    verdicts = []
    for library, rows in libraries.items():
        for metric, name in JUDGED.items():
            each = found.with_partial(rows, metric)
            if each.tables:
                verdicts.append(_first(each, name, [], f"all methods and {library}, on the tables that it has"))
    return verdicts


def _first(each: Ranking, name: str, unranked: Sequence[str], among: str = "all methods") -> Verdict:
    statement = f"{OWN} has the best mean rank in {name} among {among}"
    if OWN not in each.methods or not each.tables or len(each.methods) < 2:
        return Verdict(statement)
    mean = each.mean_ranks
    rival = next(m for m in mean if m != OWN)
    note = f"{_behind(each, OWN, rival)}; {count(len(each.tables), 'table')}, {count(len(each.methods), 'method')}"
    note += f"; {len(unranked)} not ranked because runs are missing" if unranked else ""
    return Verdict(statement, mean[OWN], mean[OWN] < mean[rival], note, digits=2)


def _behind(each: Ranking, own: str, rival: str) -> str:
    """Return the interval of a method's mean rank, and how far the best of the others is behind."""
    column, other = (each.ranks[:, each.methods.index(name)] for name in (own, rival))
    gap = other - column
    return (
        f"{_interval(column, np.mean, 2)}; best other method: {rival}, {other.mean():.2f}; difference "
        f"{gap.mean():.2f} {_interval(gap, np.mean, 2)}"
    )


def _against_best(found: list[Ratio]) -> list[Verdict]:
    statements = (
        f"Ratio of the NLL to the best rival's, median over tables: at most {MEDIAN:.2f}",
        f"NLL at most {NEAR} times the best rival's on at least {100 * SHARE:.0f} % of the tables",
        f"NLL nowhere above {FAR:.2f} times the best rival's",
    )
    if not found:
        return [Verdict(statement) for statement in statements]
    values = np.array([each.ratio.value for each in found])
    near, worst = values <= NEAR, max(found, key=lambda each: each.ratio.value)
    notes = (
        f"{_interval(values, np.median, 3)} over tables",
        f"{near.sum()} of {count(len(values), 'table')}; {_interval(near, np.mean, 2)}",
        f"[{worst.ratio.low:.3f}, {worst.ratio.high:.3f}] over splits; {worst.table}, against {worst.rival}",
    )
    median, share, most = float(np.median(values)), float(near.mean()), worst.ratio.value
    shown = (median, median <= MEDIAN), (share, share >= SHARE), (most, most <= FAR)
    return [
        Verdict(statement, value, holds, note, digits=3)
        for statement, (value, holds), note in zip(statements, shown, notes, strict=True)
    ]


def _crossed(found: Compared) -> Verdict:
    statement = f"{CROSSED} has a better mean rank in NLL than CalibratedClassifierCV with the same trees and folds"
    each = ranking(found.records, "nll", [CROSSED, *SAME_FOLDS])
    if not each.tables:
        return Verdict(statement)
    mean = each.mean_ranks
    rival = next(m for m in mean if m != CROSSED)
    note = f"{_behind(each, CROSSED, rival)}; {count(len(each.tables), 'table')}, 4 methods"
    return Verdict(statement, mean[CROSSED], mean[CROSSED] < mean[rival], note, digits=2)


def _time(records: Sequence[Record]) -> Verdict:
    statement = (
        f"Seconds to fit {OWN} on {THREADS} threads, summed over tables: at most those of {RIVAL} and {FORMER} together"
    )
    names = (OWN, RIVAL, FORMER)
    seconds = np.array([[own[name] for name in names] for own in costs_of(records, "seconds", names).values()])
    if not len(seconds):
        return Verdict(statement)
    ours, rival, former = seconds.sum(0)

    def share(rows: np.ndarray, axis: int = 0) -> np.ndarray:
        sums = rows.sum(axis)
        return np.asarray(sums[..., 0] / (sums[..., 1] + sums[..., 2]))

    note = (
        f"{_interval(seconds, share, 2)}; {ours:.0f} s of {rival:.0f} s + {former:.0f} s on "
        f"{count(len(seconds), 'table')}"
    )
    return Verdict(statement, ours / (rival + former), ours <= rival + former, note, digits=2)


def _memory(records: Sequence[Record]) -> Verdict:
    statement = f"Peak memory of {OWN} beyond the data: at most {MEMORY:.0f} MB on each table"
    found = {table: own[OWN] for table, own in costs_of(records, "peak_memory", [OWN]).items()}
    if not found:
        return Verdict(statement)
    worst = max(found, key=lambda table: found[table])
    note = f"MB, on {worst}; sum over {count(len(found), 'table')}: {sum(found.values()):.0f} MB"
    return Verdict(statement, found[worst], found[worst] <= MEMORY, note, digits=0)


def _prediction(records: Sequence[Record]) -> Verdict:
    statement = (
        f"Seconds to predict {PREDICTED:,} rows with {OWN} on {THREADS} threads: at most {PREDICTION:g} on each table"
    )
    found = {table: own[OWN] for table, own in costs_of(records, "predict_seconds", [OWN]).items()}
    if not found:
        return Verdict(statement)
    worst = max(found, key=lambda table: found[table])
    within = sum(seconds <= PREDICTION for seconds in found.values())
    note = f"on {worst}; within the limit on {within} of {count(len(found), 'table')}"
    return Verdict(statement, found[worst], found[worst] <= PREDICTION, note, digits=1)


def _interval(values: np.ndarray, statistic: Callable[..., Any], digits: int) -> str:
    low, high = interval(values, statistic)
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def interval(values: np.ndarray, statistic: Callable[..., Any], level: float = 0.95) -> tuple[float, float]:
    """Return a bootstrap percentile interval of a statistic over tables."""
    rows = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(statistic(np.asarray(values)[rows], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
