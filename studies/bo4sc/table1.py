"""Tables of the first paper's report: Table 1 beside our runs, paired differences, weights and costs."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pandas as pd

from calibrant.metrics import mean_interval
from studies.common.records import WEIGHT_SHARES
from studies.common.verdicts import HEADINGS, POSTERIOR, Records, cell, datasets, difference, methods
from studies.report import Column, Table, by_seed
from studies.sets import FITTED_SETS


def _printed() -> dict[str, dict[str, dict[str, float]]]:
    """Table 1 by quantity, method and set; a fitted set stands for the set of its name."""
    content: dict[str, Any] = json.loads((resources.files("studies.bo4sc") / "paper.json").read_text(encoding="utf-8"))
    tables = {quantity: content[quantity] for quantity in ("ece", "accuracy")}
    for cells in (row for rows in tables.values() for row in rows.values()):
        cells |= {name: cells[name.removeprefix("fitted-")] for name in FITTED_SETS}
    return tables


PAPER = _printed()
"""Sanguin et al. 2024, Table 1. The paper states neither the number of runs nor the number of bins."""


def beside_paper(records: Records) -> Table:
    """Table 1: the paper's three methods, with the printed values and ours."""
    rows: list[list[Any]] = []
    for dataset in datasets(records):
        for method in PAPER["ece"]:
            ece10, ece15, accuracy = (cell(records, m, dataset, method) for m in ("ece10", "ece15", "accuracy"))
            printed = [PAPER[metric][method].get(dataset) for metric in ("ece", "accuracy")]
            rows.append([dataset, method, printed[0], ece10, ece15, printed[1], accuracy])
        floors = [cell(records, f"floor_posterior{bins}", dataset, "standard") for bins in (10, 15)]
        if floors[0] is not None:
            rows.append([dataset, POSTERIOR, None, *floors, None, None])
    columns = [Column(name, "low") for name in ("ECE, printed", "ECE-10", "ECE-15")]
    columns += [Column(name, "high") for name in ("accuracy, printed", "accuracy")]
    return Table([Column("set"), Column("method"), *columns], rows, group="set", exempt=[POSTERIOR])


def in_short(records: Records) -> Table:
    """Table 1 for a terminal: ECE with 10 bins, accuracy, and the noise floor."""
    shown = [method for method in PAPER["ece"] if method in methods(records)] or methods(records)
    rows: list[list[Any]] = []
    for dataset in datasets(records):
        floor = cell(records, "floor_posterior10", dataset, methods(records)[0])
        for method in shown:
            printed = [PAPER[metric].get(method, {}).get(dataset) for metric in ("ece", "accuracy")]
            ece, accuracy = (cell(records, metric, dataset, method) for metric in ("ece10", "accuracy"))
            rows.append([dataset, method, printed[0], ece, floor and floor.value, printed[1], accuracy])
    heads = ("set", "method", "ECE, paper", "ECE-10", "noise floor", "acc., paper", "accuracy")
    return Table([Column(head) for head in heads], rows)


def paired(records: Records, method: str, metrics: tuple[str, ...] = ("ece10", "true_ece", "nll", "accuracy")) -> Table:
    """``method`` minus each other method, paired by seed."""
    rows = [
        [dataset, other, *(difference(records, metric, dataset, method, other) for metric in metrics)]
        for dataset in datasets(records)
        for other in methods(records)
        if other != method
    ]
    columns = [Column(HEADINGS[m][0], None, HEADINGS[m][2]) for m in metrics]
    return Table([Column("set"), Column("against"), *columns], rows)


def weights(records: Records) -> Table:
    """Fig. 3 in numbers: BO4SC's final weights of misclassified and of correct training samples."""
    rows = []
    for dataset in datasets(records):
        values = [by_seed(records, name, dataset=dataset, method="bo4sc").values() for name in WEIGHT_SHARES]
        known = [[v for v in column if v is not None] for column in values]
        rows.append([dataset, *(mean_interval(column) if column else None for column in known)])
    heads = ("misclassified with w < 0.5", "correct with w > 0.5", "share of training samples misclassified")
    return Table([Column("set"), *(Column(head) for head in heads)], rows)


def costs(records: Records) -> Table:
    """Cost of a run: its share of the population's time, and the population's peak memory."""
    runs = pd.DataFrame(records).groupby("method", sort=False)
    seconds, memory = runs["seconds"].agg(["mean", "sum"]), runs["peak_memory"].max() / 2**20
    rows = [
        [method, *map(float, seconds.loc[method]), int(members), None if pd.isna(memory[method]) else memory[method]]
        for method, members in runs["members"].max().items()
    ]
    columns = [Column("seconds per run", digits=2), Column("seconds in total", digits=1), Column("largest population")]
    return Table([Column("method"), *columns, Column("its peak memory, MiB", digits=0)], rows)
