"""Tables of the first paper's report: Table 1 beside our runs, noise floors, paired differences, weights and costs."""

from __future__ import annotations

import math
from typing import Any

from calibrant.metrics import Estimate, excludes_zero, mean_interval
from studies.bo4sc.targets import CANDIDATES, OWN
from studies.common.records import WEIGHT_SHARES
from studies.common.verdicts import ENSEMBLE, HEADINGS, POSTERIOR, Records, cell, datasets, difference, methods, ratio
from studies.report import Column, Table, by_seed
from studies.sets import FITTED_SETS

PAPER: dict[str, dict[str, dict[str, float]]] = {
    "ece": {
        "standard": {"blobs-1.3": 0.026, "blobs-1.7": 0.074, "spirals-2.5": 0.064, "spirals-3.5": 0.109, "bac": 0.018},
        "isotonic": {"blobs-1.3": 0.023, "blobs-1.7": 0.039, "spirals-2.5": 0.039, "spirals-3.5": 0.143, "bac": 0.004},
        "bo4sc": {"blobs-1.3": 0.017, "blobs-1.7": 0.016, "spirals-2.5": 0.025, "spirals-3.5": 0.067, "bac": 0.012},
    },
    "accuracy": {
        "standard": {"blobs-1.3": 0.94, "blobs-1.7": 0.876, "spirals-2.5": 0.91, "spirals-3.5": 0.815, "bac": 0.989},
        "isotonic": {"blobs-1.3": 0.94, "blobs-1.7": 0.876, "spirals-2.5": 0.91, "spirals-3.5": 0.815, "bac": 0.989},
        "bo4sc": {"blobs-1.3": 0.931, "blobs-1.7": 0.859, "spirals-2.5": 0.923, "spirals-3.5": 0.801, "bac": 0.994},
    },
}
"""Sanguin et al. 2024, Table 1. The paper states neither the number of runs nor the number of bins."""
for _cells in (row for rows in PAPER.values() for row in rows.values()):  # a fitted set stands for the set of its name
    _cells |= {name: _cells[name.removeprefix("fitted-")] for name in FITTED_SETS}


def beside_paper(records: Records) -> Table:
    """Table 1: the paper's three methods, with the printed values and ours."""
    rows: list[list[Any]] = []
    for dataset in datasets(records):
        for method in PAPER["ece"]:
            printed = [PAPER[metric][method].get(dataset) for metric in ("ece", "accuracy")]
            here = [cell(records, metric, dataset, method) for metric in ("ece10", "ece15", "accuracy")]
            rows.append([dataset, method, printed[0], *here[:2], printed[1], here[2]])
        floors = [cell(records, f"floor_posterior{bins}", dataset, "standard") for bins in (10, 15)]
        if floors[0] is not None:
            rows.append([dataset, POSTERIOR, None, *floors, None, None])
    columns = [
        Column("set"),
        Column("method"),
        Column("ECE, printed", "low"),
        Column("ECE-10", "low"),
        Column("ECE-15", "low"),
        Column("accuracy, printed", "high"),
        Column("accuracy", "high"),
    ]
    return Table(columns, rows, group="set", exempt=[POSTERIOR])


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


def everything(records: Records, dataset: str) -> Table:
    """All measured fields of one set, one row per method."""
    shown = [
        name for name in HEADINGS if any(r[name] is not None for r in records if r["dataset"] == dataset)
    ]  # only columns with values
    rows = [[m, *(cell(records, name, dataset, m) for name in shown)] for m in methods(records)]
    columns = [Column("method"), *(Column(*HEADINGS[name]) for name in shown)]
    return Table(columns, rows, exempt=[ENSEMBLE])


def paired(records: Records, method: str, metrics: tuple[str, ...] = ("ece10", "true_ece", "nll", "accuracy")) -> Table:
    """``method`` minus each other method, paired by seed, and the metrics whose interval excludes zero."""
    rows: list[list[Any]] = []
    for dataset in datasets(records):
        for other in methods(records):
            if other == method:
                continue
            found = {metric: difference(records, metric, dataset, method, other) for metric in metrics}
            rows.append([dataset, other, *found.values(), _clear(found, better=True), _clear(found, better=False)])
    columns = [Column("set"), Column("against"), *(Column(HEADINGS[m][0], None, HEADINGS[m][2]) for m in metrics)]
    return Table([*columns, Column("clearly better in"), Column("clearly worse in")], rows)


def beside_ensemble(records: Records) -> Table:
    """NLL of our methods minus the ensemble's, paired by seed. This difference is shown but not judged."""
    rows = [
        [m, *(difference(records, "nll", d, m, ENSEMBLE) for d in datasets(records))]
        for m in CANDIDATES
        if m in methods(records)
    ]
    return Table([Column("method"), *(Column(name, digits=4) for name in datasets(records))], rows)


def beside_floors(records: Records, method: str = OWN) -> Table:
    """ECE-15 of one method beside two noise floors: of the exact posterior, and of the method's own confidences.

    The last two columns are the ratios to these floors.
    """
    rows: list[list[Any]] = []
    for name in datasets(records):
        found = (ratio(records, "ece15", f"floor_{kind}15", name, method) for kind in ("posterior", "self"))
        cells = (cell(records, m, name, method) for m in ("ece15", "floor_posterior15", "floor_self15", "true_ece"))
        rows.append([name, *cells, *(None if math.isnan(r.value) else r for r in found)])
    heads = ("ECE-15", "posterior's", "calibrated", "true ECE")
    ratios = ("to posterior's", "to calibrated")
    return Table([Column("set"), *(Column(h, digits=4) for h in heads), *(Column(h, digits=2) for h in ratios)], rows)


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
    rows = []
    for method in methods(records):
        own = [r for r in records if r["method"] == method]
        peaks = [r["peak_memory"] for r in own if r["peak_memory"] is not None]
        rows.append(
            [
                method,
                sum(r["seconds"] for r in own) / len(own),
                sum(r["seconds"] for r in own),
                max(r["members"] for r in own),
                max(peaks) / 2**20 if peaks else None,
            ]
        )
    columns = [
        Column("method"),
        Column("seconds per run", digits=2),
        Column("seconds in total", digits=1),
        Column("largest population"),
        Column("its peak memory, MiB", digits=0),
    ]
    return Table(columns, rows)


def _clear(found: dict[str, Estimate], *, better: bool) -> str:
    names = []
    for metric, value in found.items():
        sign = excludes_zero(value) * (1 if HEADINGS[metric][1] == "high" else -1)
        if sign == (1 if better else -1):
            names.append(HEADINGS[metric][0])
    return ", ".join(names) or "–"
