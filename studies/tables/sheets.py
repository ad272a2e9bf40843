"""The tables of the report: ranks, best rivals, costs, and every method on one table."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.metrics import mean_interval
from studies.report import Column, Record, by_seed, with_digits
from studies.tables.compared import JUDGED, Compared, lower_on, ratios
from studies.tables.costs import PREDICTED, costs_of
from studies.tables.data import DEVELOPMENT
from studies.tables.peers import FORMER, OWN, RIVAL, kind
from studies.tables.ranks import Ranking, values_of

Sheet = tuple[list[Column | str], list[list[Any]]]
"""Columns and rows."""

COPIES = 0.01
"""The smallest share of copied rows that gets a line."""
SCORES = (
    Column("accuracy", better="high"),
    Column("nll", better="low"),
    Column("smooth_ece", better="low"),
    Column("ece15", better="low"),
    Column("floor_self15", note="ECE-15 of a perfectly calibrated model with the same confidences."),
    Column("brier", better="low"),
    Column("aurc", better="low"),
    Column("seconds", digits=1),
)


def rank_columns(scores: Compared, everywhere: str, untried: str, alone: str = "") -> dict[str, Ranking]:
    """Rankings by heading: each metric on all tables, and on those that no setting was tried on.

    The three texts follow the metric in a heading; ``{n}`` stands for the number of tables. If there are no tables of
    the second kind, the heading ends with ``alone``.
    """
    rankings, others = scores.rankings(), scores.untried()
    apart = others.rankings() if others else {}
    columns = {}
    for metric, name in JUDGED.items():
        columns[name + (everywhere if others else alone).format(n=len(rankings[metric].tables))] = rankings[metric]
        if metric in apart and apart[metric].tables:
            columns[name + untried.format(n=len(apart[metric].tables))] = apart[metric]
    return columns


def rank_sheet(scores: Compared) -> Sheet:
    """Return the mean ranks, the best in NLL first."""
    rankings = rank_columns(scores, ": rank, all {n}", ": rank, {n} untried", ": rank")
    values = values_of(scores.records, "nll")
    headings = [Column(name, "low", digits=2) for name in rankings]
    columns: list[Column | str] = ["method", "kind", *headings, f"{OWN} has the lower NLL on"]
    rows = []
    for method in scores.methods:
        ranks = [each.mean_ranks[method] if each.tables else None for each in rankings.values()]
        lower, tables = lower_on(values, method)
        beaten = None if method == OWN or not tables else f"{lower} of {tables}"
        rows.append([method, kind(method), *ranks, beaten])
    return columns, sorted(rows, key=lambda row: np.inf if row[2] is None else row[2])


def rival_sheet(scores: Compared, overlap: float) -> Sheet:
    """Return our NLL and that of the best rival on each table, the worst ratio first."""
    columns: list[Column | str] = ["table", f"NLL, {OWN}", "best rival", "its NLL", "ratio", "settings tried on it"]
    order = sorted(ratios(scores.records, overlap), key=lambda each: -each.ratio.value)
    rows = [
        [each.table, each.own, each.rival, each.best, each.ratio, "yes" if each.table in DEVELOPMENT else "no"]
        for each in order
    ]
    return columns, rows


def copy_sheet(scores: Compared, overlap: float) -> Sheet:
    """Return the ratios with and without copied rows, for tables whose test rows have copies in the training rows."""
    counted = [record for record in scores.records if "copied" in record]
    shares: dict[str, list[float]] = {}
    for record in counted:
        shares.setdefault(record["table"], []).append(record["copied"])
    shown = {table: float(np.mean(each)) for table, each in shares.items() if COPIES <= min(each) <= max(each) < 1}
    records = [record for record in counted if record["table"] in shown]
    every, new = ({each.table: each for each in ratios(records, overlap, metric)} for metric in ("nll", "nll_new"))
    columns: list[Column | str] = ["table", *with_digits(0, "copied, %")]
    for which in ("all rows", "rows without a copy"):
        columns += [f"ratio, {which}", f"best rival, {which}"]
    rows = [
        [table, 100 * shown[table], every[table].ratio, every[table].rival, new[table].ratio, new[table].rival]
        for table in sorted(new, key=lambda name: -shown[name])
    ]
    return columns, rows


def cost_sheet(records: list[Record]) -> Sheet:
    """Return seconds and megabytes of single fits and seconds to predict, one row per table; their sums and maxima."""
    names = (OWN, RIVAL, FORMER)
    seconds, memory, predicted = (
        costs_of(records, "seconds", names),
        costs_of(records, "peak_memory", names),
        costs_of(records, "predict_seconds", [OWN]),
    )
    columns: list[Column | str] = ["table", *with_digits(1, *(f"seconds, {name}" for name in names))]
    columns += with_digits(0, *(f"MB, {name}" for name in names))
    columns += with_digits(1, f"seconds to predict {PREDICTED:,} rows, {OWN}")
    rows: list[list[Any]] = []
    for table, of_methods in seconds.items():
        held = memory.get(table, {})
        quick = predicted.get(table, {}).get(OWN)
        rows.append([table, *(of_methods[name] for name in names), *(held.get(name) for name in names), quick])
    if not rows:
        return columns, []
    numbers = [[0.0 if value is None else value for value in row[1:]] for row in rows]
    for name, total in (("sum", np.sum), ("largest", np.max)):
        rows.append([name, *map(float, total(numbers, axis=0))])
    return columns, rows


def score_sheet(records: list[Record], table: str, methods: list[str], overlap: float) -> Sheet:
    """Return every method's means over splits on one table, with their intervals, the lowest NLL first."""
    on_table = [r for r in records if r["table"] == table]
    rows = []
    for method in methods:
        scores = [by_seed(on_table, column.name, method=method).values() for column in SCORES]
        rows.append([method, *(mean_interval(values, overlap=overlap) if values else None for values in scores)])

    def loss(row: list[Any]) -> float:
        return np.inf if row[2] is None or np.isnan(row[2].value) else float(row[2].value)

    return ["method", *SCORES], sorted(rows, key=loss)
