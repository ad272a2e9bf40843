"""Tables of the report: the paper's Tables 1 to 3 beside our runs, shifted images, and further values."""

from __future__ import annotations

from typing import Any

from calibrant.data.vision import SHIFTS
from calibrant.experiments.common.verdicts import difference
from calibrant.experiments.meta_reg.groups import RunGroup, spread, times
from calibrant.experiments.meta_reg.paper import METRICS, Printed, printed, quoted
from calibrant.report import Column, Table

HEADINGS = {
    "error": ("error %", 2),
    "nll": ("NLL", 3),
    "ece": ("ECE %", 2),
    "mce": ("MCE %", 1),
    "ace": ("ACE %", 2),
    "classwise_ece": ("classwise ECE %", 3),
}
"""Headings and numbers of decimals in Table 1."""
RIVALS = (("flg-sece", "flg-dece"), ("ce-sece", "ce-dece"), ("flg-sece", "flg"))
"""Pairs of methods that differ only by SECE; the last one is that of the paper's Table 2."""
ONLY_QUOTED = {
    "Patra et al. (2023)": "quoted only: it prunes training data during training, which is a different protocol",
}


def scale(metric: str) -> float:
    """The factor for showing a metric: 100 for per cent, 1 for the NLL."""
    return 1.0 if metric == "nll" else 100.0


def table1(group: RunGroup) -> Table:
    """Table 1: mean ± standard deviation over seeds, with the paper's values in the row below ours."""
    columns = [Column("method"), Column("whose"), Column("seeds"), *(Column(name) for name, _ in HEADINGS.values())]
    columns += [Column("floor %", note="Noise floor of ECE: the score of a calibrated model with these confidences.")]
    rows: list[list[Any]] = []
    for method in group.methods:
        own = [spread(group.values(method, m), digits, scale(m)) for m, (_, digits) in HEADINGS.items()]
        floor = spread(group.values(method, "floor"), 2, 100)
        rows.append([method, "ours", str(len(group.of(method))), *own, floor])
        cells = [printed(group.dataset, method, m) for m in METRICS]
        if any(cells):
            theirs = [_printed(cell, m) for cell, m in zip(cells, METRICS, strict=True)]
            rows.append([method, "paper", "5", *theirs, None])
    return Table(columns, rows, "Mean ± standard deviation over seeds.")


def table2(group: RunGroup) -> Table:
    """Table 2: the gain from SECE, as paired differences over seeds in percentage points (NLL unscaled)."""
    columns = [Column("difference"), *(Column(n, digits=d + 1) for n, d in HEADINGS.values())]
    rows: list[list[Any]] = []
    for method, rival in RIVALS:
        if method in group.methods and rival in group.methods:
            gaps = [times(difference(group.records, m, group.dataset, method, rival), scale(m)) for m in HEADINGS]
            rows.append([f"{method} − {rival}", *gaps])
    theirs = _printed_gain(group.dataset)
    return Table(columns, rows + theirs, "Paired over seeds, with 95 % intervals. Below zero, SECE is better.")


def _printed_gain(dataset: str) -> list[list[Any]]:
    pairs = [[printed(dataset, name, m, table=2) for name in ("flg-sece", "flg")] for m in METRICS]
    if not all(a and b for a, b in pairs):
        return []
    gaps = [(a.mean - b.mean) * scale(m) for (a, b), m in zip(pairs, METRICS, strict=True) if a and b]
    return [["paper's Table 2: flg-sece − flg", *gaps]]


def table3(group: RunGroup) -> Table:
    """Table 3: published ECE and error beside our runs of the same method."""
    columns = [
        Column("published by"),
        Column("ECE %", digits=2),
        Column("error %", digits=2),
        Column("our run"),
        Column("our ECE %"),
        Column("our error %"),
        Column("remark"),
    ]
    rows: list[list[Any]] = []
    for row in quoted(group.dataset):
        own = row.method if row.method in group.methods else None
        found = [None, None] if own is None else [spread(group.values(own, m), 2, 100) for m in ("ece", "error")]
        remark = ONLY_QUOTED.get(row.source, "" if own else "quoted only: not run in this study")
        if own and row.source.startswith("Hebbalaguppe"):
            remark = "the paper prints two rows without saying how they differ; ours are without and with focal loss"
        rows.append([row.source, 100 * row.ece, 100 * row.error, own, *found, remark or None])
    return Table(columns, rows, "Published values are for other networks and recipes.")


def shifts(group: RunGroup) -> Table:
    """Error, ECE and NLL on shifted images, without and with the temperature fitted on clean validation images."""
    columns = [
        Column("shift"),
        Column("method"),
        *(Column(n) for n in ("error %", "ECE %", "ECE % with T", "NLL", "NLL with T")),
    ]
    wanted = (("error", 2), ("ece", 2), ("ece_ts", 2), ("nll", 3), ("nll_ts", 3))
    rows = [
        [
            shift,
            method,
            *(spread(group.values(method, f"{m}@{shift}"), d, scale(m.removesuffix("_ts"))) for m, d in wanted),
        ]
        for shift in SHIFTS
        for method in group.methods
    ]
    return Table(columns, rows, "T is fitted on clean validation images.")


def further(group: RunGroup) -> Table:
    """Further values: validation scores, the temperature and the scores with it, γ, time and memory."""
    columns = ["method", "ECE % (val)", "NLL (val)", "T", "ECE % with T", "NLL with T"]
    columns += ["γ mean", "γ std", "γ on bound %", "seconds", "GB"]
    wanted = (
        ("ece_val", 2, 100.0),
        ("nll_val", 3, 1.0),
        ("temperature", 3, 1.0),
        ("ece_ts", 2, 100.0),
        ("nll_ts", 3, 1.0),
        ("gamma_mean", 3, 1.0),
        ("gamma_std", 3, 1.0),
        ("gamma_on_bound", 1, 100.0),
        ("train_seconds", 1, 1.0),
        ("peak_memory", 2, 1e-9),
    )
    rows = [[m, *(spread(group.values(m, name), d, s) for name, d, s in wanted)] for m in group.methods]
    return Table(
        [Column(name) for name in columns],
        rows,
        "γ is measured on the test images at the end of training; (val) is the validation part.",
    )


def _printed(cell: Printed | None, metric: str) -> str | None:
    if cell is None:
        return None
    digits = HEADINGS[metric][1]
    return f"{scale(metric) * cell.mean:.{digits}f} ± {scale(metric) * cell.std:.{digits}f}"
