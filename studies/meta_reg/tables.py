"""Tables of the report: the paper's Tables 1 to 3 beside our runs, variants, noisy labels, and further values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from calibrant.methods.catalogue import TABLE_3
from studies.common.verdicts import Verdict
from studies.meta_reg.groups import RunGroup, spread, times
from studies.meta_reg.paper import METRICS, Printed, Quoted, paper, printed, quoted
from studies.meta_reg.plan import known_methods
from studies.meta_reg.targets import RIVAL
from studies.meta_reg.variants import variants
from studies.report import Column, Table

Part = str | Table | tuple[str, ...] | list[Verdict]
"""A part of a section: a text, a table, sentences, or targets with their verdicts."""
MAIN = {
    "error": Column("error %", digits=2),
    "nll": Column("NLL", digits=3),
    "ece": Column("ECE %", digits=2),
    "floor": Column("floor %", digits=2, note="Noise floor of ECE: the score of a calibrated model."),
}
"""The scores of the first of two tables."""
FURTHER = {
    "mce": Column("MCE %", digits=1),
    "ace": Column("ACE %", digits=2),
    "classwise_ece": Column("classwise ECE %", digits=3),
}
SCORES = MAIN | FURTHER
BILEVEL = {"flg", "flg-dece", "flg-sece", "ce-dece", "ce-sece"}
"""Methods of the paper that share its names and not its form."""
RIVALS = (("flg-sece", "flg-dece"), ("ce-sece", "ce-dece"), ("flg-sece", "flg"))
"""Pairs of methods that differ only by SECE; the last one is that of the paper's Table 2."""
OURS = (
    "How ours differ: `flg-…` have a bounded γ-Net without attention, half of the focal loss in the layers before the "
    "head, a head treated as solved, and a γ that moves in the second half of the run; `flg-sece` has CE + 10·SECE² "
    "with h = 0.02 outside, `flg-dece` CE + 0.5·DECE, `flg` CE. `ce-dece` and `ce-sece` have the same solved head and "
    "late start. None of these five is the paper's form."
)
SHORT = (
    "The short recipe is 30 epochs of one cycle up to a rate of 0.2 with Nesterov momentum and batches of 256, and "
    "keeps the last state. The paper trains for 350 epochs, so its rows have lower errors."
)
"""What the captions say about our methods and about the short recipe."""


def scale(metric: str) -> float:
    """The factor for showing a metric: 100 for per cent, 1 for the NLL."""
    return 1.0 if metric.startswith("nll") else 100.0


Row = tuple[list[str], Mapping[str, Any]]
"""The first cells of a row, and its scores by metric."""


def in_two(heads: Sequence[str], scores: Mapping[str, Column], rows: Sequence[Row], caption: str) -> list[Part]:
    """Two tables that fit a page, with the main scores and with the further ones."""
    tables = []
    for names in (MAIN, FURTHER):
        shown = {name: scores[name] for name in names if name in scores}
        cells = [[*first, *(values.get(name) for name in shown)] for first, values in rows]
        tables.append(Table([*map(Column, heads), *shown.values()], cells))
    return [tables[0], "Further scores:", replace(tables[1], caption=caption)]


def table1(group: RunGroup) -> list[Part]:
    """Table 1: mean ± standard deviation over seeds, with the paper's values in the row below ours."""
    rows: list[Row] = []
    methods = main_methods(group)
    for method in methods:
        rows.append(([method, "ours", str(len(group.of(method)))], _scores(group, method)))
        cells = {metric: cell for metric in METRICS if (cell := _in_paper(group.dataset, method, metric))}
        if cells:
            rows.append(([method, "paper", "5"], {metric: _as_text(cell, metric) for metric, cell in cells.items()}))
    notes = ["Mean ± standard deviation over seeds, on the test images."]
    if len(rows) > len(methods):
        notes += [SHORT] * (group.records[0]["recipe"] != "paper")
        notes += [OURS] * (not BILEVEL.isdisjoint(group.methods))
    if group.failed:
        notes.append(f"Failed runs are left out: {'; '.join(group.failed)}.")
    return in_two(["method", "whose", "seeds"], SCORES, rows, " ".join(notes))


def main_methods(group: RunGroup) -> list[str]:
    """The methods of a group without the variants of the ablation."""
    return [method for method in group.methods if method not in variants()]


def variants_table(group: RunGroup) -> list[Part]:
    """The variants of the ablation; empty if none was run."""
    run = [method for method in group.methods if method in variants()]
    rows: list[Row] = [([method, str(len(group.of(method)))], _scores(group, method)) for method in run]
    caption = (
        "Mean ± standard deviation over seeds, on the test images. Each variant is trained on its own. On a GPU, two "
        "runs with the same seed differ, so small differences from Table 1 can be chance."
    )
    return ["Variants of the methods:", *in_two(["variant", "seeds"], SCORES, rows, caption)] if rows else []


def table2(group: RunGroup) -> list[Part]:
    """Table 2: the gain from SECE, as paired differences over seeds in percentage points (NLL unscaled).

    It is empty if no such pair was run.
    """
    columns = {
        metric: Column(SCORES[metric].name.replace(" %", ", points"), digits=SCORES[metric].digits + 1)
        for metric in METRICS
    }
    rows: list[Row] = []
    for method, rival in RIVALS:
        if {method, rival} <= set(group.methods):
            gaps = {metric: times(group.gap(metric, method, rival), scale(metric)) for metric in METRICS}
            rows.append(([f"{method} − {rival}", str(len(group.seeds([method, rival])))], gaps))
    if not rows:
        return []
    if group.dataset in paper()["table2"]:
        means = paper()["table2"][group.dataset]
        gains = {metric: means["flg-sece"][metric][0] - means["flg"][metric][0] for metric in METRICS}
        rows.append((["paper's Table 2: flg-sece − flg", "5"], gains))
    caption = "Paired over the shared seeds, with 95 % intervals (Student's t). Below zero, SECE is better."
    return ["The gain from SECE (Table 2):", *in_two(["difference", "seeds"], columns, rows, caption)]


def table3(group: RunGroup) -> list[Part]:
    """Table 3: published ECE and error beside our runs of the same method.

    It is empty if none of them was run, or only the paper's own method in a study of few images.
    """
    whole = "flg-sece" in group.methods and not group.records[0]["limit"]
    if not (whole or any(name in TABLE_3 for name in group.methods)):
        return []
    percent = [Column("ECE %", digits=2), Column("error %", digits=2)]
    heads = [Column(name) for name in ("our run", "seeds", "our ECE %", "our error %", "remark")]
    rows = [_beside_quoted(group, row) for row in quoted(group.dataset)]
    caption = "Published values are for other networks and recipes."
    return ["Table 3:", Table([Column("published by"), *percent, *heads], rows, caption)] if rows else []


def _beside_quoted(group: RunGroup, row: Quoted) -> list[Any]:
    cells: list[Any] = [row.source.replace("(Ours)", "(the paper itself)"), 100 * row.ece, 100 * row.error]
    if row.source.startswith("Patra"):
        remark = "quoted only: it prunes training data during training, which is a different protocol"
        return [*cells, None, None, None, None, remark]
    if row.method is None or row.method not in group.methods:
        return [*cells, None, None, None, None, "quoted only: not run with this setup"]
    scores = _scores(group, row.method)
    cells += [row.method, str(len(group.of(row.method))), scores["ece"], scores["error"]]
    two_rows = "the paper prints two rows without saying how they differ; ours are without and with focal loss"
    return [*cells, two_rows if row.source.startswith("Hebbalaguppe") else None]


def noisy_table(group: RunGroup) -> Table:
    """Scores with noisy training labels, error compared with ``ce``, and the weights of right and wrong labels."""
    columns = [Column(name) for name in ("method", "seeds", "error %", "NLL", "ECE %")]
    columns += [Column("error minus ce's, points", digits=2), Column("weight, right"), Column("weight, wrong")]
    rows: list[list[Any]] = []
    for method in group.methods:
        scores = _scores(group, method)
        gap = None if method == "ce" else times(group.gap("error", method, "ce"), 100)
        weights = [spread(group.values(method, f"weight_{kind}"), 2) for kind in ("right", "wrong")]
        seconds = spread(group.values(method, "train_seconds"), 0)
        cells = [scores["error"], scores["nll"], scores["ece"], gap, *weights, seconds]
        rows.append([method, str(len(group.of(method))), *cells])
    share = group.values(group.methods[0], "wrong_share")
    wrong = f"{100 * share[0]:.1f} % of the training labels are wrong; all other parts have clean labels. "
    caption = (
        f"{wrong if share else ''}Scores are mean ± standard deviation over seeds; differences are paired, with 95 % "
        "intervals. Weights are means over the training samples with a right or a wrong label."
    )
    return Table([*columns, Column("seconds")], rows, caption)


MOST_ROWS = 15
"""With more methods, the table for a terminal has only the paper's methods, ``recommended`` and its rival."""


def in_short(group: RunGroup) -> Table:
    """Table 1 for a terminal: ECE and error of the paper and ours in per cent, and the noise floor."""
    shown = group.methods
    if len(shown) > MOST_ROWS:
        shown = [m for m in shown if _in_paper(printed_for(group), m, "ece") or m in ("recommended", RIVAL)]
    rows: list[list[Any]] = []
    for method in shown:
        theirs = {metric: _in_paper(printed_for(group), method, metric) for metric in ("ece", "error")}
        ece, error = (cell and f"{100 * cell.mean:.2f}" for cell in theirs.values())
        ours, floor = _scores(group, method), fmean(group.values(method, "floor"))
        rows.append([method, ece, ours["ece"], error, ours["error"], f"{100 * floor:.2f}"])
    heads = ("method", "ECE, paper", "ECE", "error, paper", "error", "noise floor of ECE")
    return Table([Column(head) for head in heads], rows)


def printed_for(group: RunGroup) -> str:
    """The data set whose printed values stand beside a group's: its own, or CIFAR-10 if the paper lacks it."""
    return group.dataset if group.dataset in paper()["table1"] else "cifar10"


OTHERS: dict[str, tuple[str, int, float]] = {
    "confidence_minus_accuracy": ("confidence − accuracy, points", 2, 100.0),
    "ece_val": ("ECE % (val)", 2, 100.0),
    "nll_val": ("NLL (val)", 3, 1.0),
    "temperature": ("T", 3, 1.0),
    "ece_ts": ("ECE % with T", 2, 100.0),
    "nll_ts": ("NLL with T", 3, 1.0),
    "gamma_mean": ("γ mean", 3, 1.0),
    "gamma_std": ("γ std", 3, 1.0),
    "gamma_on_bound": ("γ on bound %", 1, 100.0),
    "train_seconds": ("seconds", 1, 1.0),
    "steady_seconds": ("seconds without compilation", 1, 1.0),
    "peak_memory": ("GB", 2, 1e-9),
}
"""Further fields of a record: heading, number of decimals, and factor."""


def further(group: RunGroup) -> Table:
    """Further values: validation scores, the temperature and the scores with it, γ, time and memory."""
    rows: list[list[Any]] = []
    for method in group.methods:
        # A published γ-Net has no upper bound; older records count its values above 5.
        unbounded = getattr(known_methods().get(method), "form", None) == "published"
        values = {m: [] if unbounded and m == "gamma_on_bound" else group.values(method, m) for m in OTHERS}
        rows.append([method, *(spread(values[m], digits, factor) for m, (_, digits, factor) in OTHERS.items())])
    caption = (
        "(val) is the validation part, on which T, the temperature, is fitted; the other columns are for the test "
        "images. γ is that at the end of training; a published γ-Net has no upper bound. Seconds are the training time "
        "of the network, which some methods share: ce-average has the network of recommended. The targets compare the "
        "time without compilation, which is missing where other programs used the device. GB is the peak memory above "
        "that before the run, on the GPU if one is used. ce-clean trains on the validation part too."
    )
    return Table([Column("method"), *(Column(heading) for heading, _, _ in OTHERS.values())], rows, caption)


def _scores(group: RunGroup, method: str) -> dict[str, str | None]:
    """The scores of Table 1 and the noise floor, as mean ± standard deviation over seeds."""
    return {m: spread(group.values(method, m), column.digits, scale(m)) for m, column in SCORES.items()}


def _in_paper(dataset: str, method: str, metric: str) -> Printed | None:
    """A printed cell of Table 1, or of Table 2, where alone FLγ without SECE is."""
    return printed(dataset, method, metric) or printed(dataset, method, metric, table=2)


def _as_text(cell: Printed, metric: str) -> str:
    digits = SCORES[metric].digits
    return f"{scale(metric) * cell.mean:.{digits}f} ± {scale(metric) * cell.std:.{digits}f}"
