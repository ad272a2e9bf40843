"""Targets of the recommended classifier on tables: ranks, its loss against the best rival of each table, and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from studies.common.shared import count
from studies.report import Record, Verdict
from studies.tables.compared import JUDGED, Compared, Ratio, ratios
from studies.tables.costs import PREDICTED, THREADS, costs_of
from studies.tables.peers import CROSSED, FORMER, OWN, RIVAL
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


def score_targets(scores: Compared, overlap: float) -> list[Verdict]:
    """Return the targets for scores."""
    verdicts = [_first(each, JUDGED[metric], len(scores.partial)) for metric, each in scores.rankings().items()]
    return [*verdicts, *_against_best(ratios(scores.records, overlap)), _crossed(scores)]


def cost_targets(records: Sequence[Record]) -> list[Verdict]:
    """Return the targets for the costs of single fits and of predictions."""
    return [_time(records), _memory(records), _prediction(records)]


def _first(each: Ranking, name: str, unranked: int) -> Verdict:
    statement = f"{OWN} has the best mean rank in {name} among all methods"
    if OWN not in each.methods or not each.tables or len(each.methods) < 2:
        return Verdict(statement)
    return _ranked_first(statement, each, OWN, f"; {unranked} not ranked because runs are missing" if unranked else "")


def _ranked_first(statement: str, each: Ranking, own: str, note: str = "") -> Verdict:
    """Judge whether a method has the best mean rank, and say how far the best of the others is behind."""
    means = each.mean_ranks
    rival = next(m for m in means if m != own)
    column, other = (each.ranks[:, each.methods.index(name)] for name in (own, rival))
    gap = other - column
    behind = (
        f"{_interval(column, np.mean, 2)}; best other method: {rival}, {other.mean():.2f}; difference "
        f"{gap.mean():.2f} {_interval(gap, np.mean, 2)}; {count(len(each.tables), 'table')}, "
        f"{count(len(each.methods), 'method')}"
    )
    return Verdict(statement, means[own], means[own] < means[rival], behind + note, digits=2)


def _against_best(by_table: list[Ratio]) -> list[Verdict]:
    statements = (
        f"Ratio of the NLL to the best rival's, median over tables: at most {MEDIAN:.2f}",
        f"NLL at most {NEAR} times the best rival's on at least {100 * SHARE:.0f} % of the tables",
        f"NLL nowhere above {FAR:.2f} times the best rival's",
    )
    if not by_table:
        return [Verdict(statement) for statement in statements]
    values = np.array([each.ratio.value for each in by_table])
    near, worst = values <= NEAR, max(by_table, key=lambda each: each.ratio.value)
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


def _crossed(scores: Compared) -> Verdict:
    statement = f"{CROSSED} has a better mean rank in NLL than CalibratedClassifierCV with the same trees and folds"
    each = ranking(scores.records, "nll", [CROSSED, *SAME_FOLDS])
    return _ranked_first(statement, each, CROSSED) if each.tables else Verdict(statement)


def _time(records: Sequence[Record]) -> Verdict:
    statement = (
        f"Seconds to fit {OWN} on {THREADS} threads, summed over tables: at most those of {RIVAL} and {FORMER} together"
    )
    names = (OWN, RIVAL, FORMER)
    seconds = np.array([[costs[name] for name in names] for costs in costs_of(records, "seconds", names).values()])
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
    megabytes = _costs_of_own(records, "peak_memory")
    if not len(megabytes):
        return Verdict(statement)
    note = f"MB, on {megabytes.idxmax()}; sum over {count(len(megabytes), 'table')}: {megabytes.sum():.0f} MB"
    return Verdict(statement, megabytes.max(), bool(megabytes.max() <= MEMORY), note, digits=0)


def _prediction(records: Sequence[Record]) -> Verdict:
    statement = (
        f"Seconds to predict {PREDICTED:,} rows with {OWN} on {THREADS} threads: at most {PREDICTION:g} on each table"
    )
    seconds = _costs_of_own(records, "predict_seconds")
    if not len(seconds):
        return Verdict(statement)
    within = (seconds <= PREDICTION).sum()
    note = f"on {seconds.idxmax()}; within the limit on {within} of {count(len(seconds), 'table')}"
    return Verdict(statement, seconds.max(), bool(seconds.max() <= PREDICTION), note, digits=1)


def _costs_of_own(records: Sequence[Record], quantity: str) -> pd.Series:
    return pd.Series({table: costs[OWN] for table, costs in costs_of(records, quantity, [OWN]).items()}, dtype=float)


def _interval(values: np.ndarray, statistic: Callable[..., Any], digits: int) -> str:
    low, high = interval(values, statistic)
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def interval(values: np.ndarray, statistic: Callable[..., Any], level: float = 0.95) -> tuple[float, float]:
    """Return a bootstrap percentile interval of a statistic over tables."""
    rows = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(statistic(np.asarray(values)[rows], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
