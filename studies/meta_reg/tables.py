"""Tables of the report: the paper's Tables 1 to 3 beside our runs, shifted images, and further values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from statistics import fmean
from typing import Any

from calibrant.methods.catalogue import IMAGE_METHODS, TABLE_3
from studies.common.verdicts import difference
from studies.images import SHIFTS
from studies.meta_reg.groups import RunGroup, spread, times
from studies.meta_reg.noisy import NOISY_METHODS
from studies.meta_reg.paper import METRICS, Printed, Quoted, paper, printed, quoted
from studies.meta_reg.plan import known_methods
from studies.meta_reg.targets import RIVAL
from studies.meta_reg.variants import variants
from studies.report import Column, Table

HEADINGS = {
    "error": ("error %", 2),
    "nll": ("NLL", 3),
    "ece": ("ECE %", 2),
    "mce": ("MCE %", 1),
    "ace": ("ACE %", 2),
    "classwise_ece": ("classwise ECE %", 3),
}
"""Headings and numbers of decimals in Table 1."""
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
    quotes = False
    for method in main_methods(group):
        rows.append([method, "ours", str(len(group.of(method))), *_scores(group, method)])
        cells = [_quote(group.dataset, method, m) for m in METRICS]
        if any(cells):
            quotes = True
            theirs = [_printed(cell, m) for cell, m in zip(cells, METRICS, strict=True)]
            rows.append([method, "paper", "5", *theirs, None])
    notes = ["Mean ± standard deviation over seeds, on the test images."]
    if quotes and group.records[0]["recipe"] != "paper":
        notes.append(SHORT)
    if quotes and not BILEVEL.isdisjoint(group.methods):
        notes.append(OURS)
    return Table(columns, rows, " ".join([*notes, *_left_out(group)]))


MOST_ROWS = 15
"""With more methods, the table for a terminal has only the paper's methods, ``recommended`` and its rival."""


def in_short(group: RunGroup) -> Table:
    """Table 1 for a terminal: ECE and error of the paper and ours in per cent, and the noise floor."""
    shown, rows = group.methods, []
    if len(shown) > MOST_ROWS:
        shown = [m for m in shown if _quote(printed_for(group), m, "ece") or m in ("recommended", RIVAL)]
    for method in shown:
        row: list[Any] = [method]
        for metric in ("ece", "error"):
            theirs = _quote(printed_for(group), method, metric)
            row += [theirs and f"{100 * theirs.mean:.2f}", spread(group.values(method, metric), 2, 100)]
        rows.append([*row, spread([fmean(group.values(method, "floor"))], 2, 100)])
    heads = ("method", "ECE, paper", "ECE", "error, paper", "error", "noise floor of ECE")
    return Table([Column(head) for head in heads], rows)


def _quote(dataset: str, method: str, metric: str) -> Printed | None:
    """A printed cell of Table 1, or of Table 2, where alone FLγ without SECE is."""
    return printed(dataset, method, metric) or printed(dataset, method, metric, table=2)


def printed_for(group: RunGroup) -> str:
    """The data set whose printed values stand beside a group's: its own, or CIFAR-10 if the paper lacks it."""
    return group.dataset if group.dataset in paper()["table1"] else "cifar10"


def variants_table(group: RunGroup) -> Table:
    """The variants of the ablation, with what each of them changes; no rows if none was run."""
    columns = [Column("variant"), Column("what it is or changes"), Column("seeds")]
    columns += [*(Column(name) for name, _ in HEADINGS.values()), Column("floor %")]
    rows = [
        [method, describe(method), str(len(group.of(method))), *_scores(group, method)]
        for method in group.methods
        if method in variants()
    ]
    return Table(
        columns,
        rows,
        "Mean ± standard deviation over seeds, on the test images. Each variant is trained on its own. On a GPU, two "
        "runs with the same seed differ, so small differences from Table 1 can be chance.",
    )


def methods_table(found: Sequence[RunGroup]) -> Table:
    """The ids of all methods that were run, with a description."""
    names = dict.fromkeys(method for group in found for method in group.methods)
    return Table([Column("method"), Column("description")], [[name, describe(name) or None] for name in names])


def main_methods(group: RunGroup) -> list[str]:
    """The methods of a group without the variants of the ablation."""
    return [method for method in group.methods if method not in variants()]


def _scores(group: RunGroup, method: str) -> list[str | None]:
    """The columns of Table 1, and the noise floor."""
    own = [spread(group.values(method, m), digits, scale(m)) for m, (_, digits) in HEADINGS.items()]
    return [*own, spread(group.values(method, "floor"), 2, 100)]


def _left_out(group: RunGroup) -> list[str]:
    return [f"Failed runs are left out: {'; '.join(group.failed)}."] if group.failed else []


def table2(group: RunGroup) -> Table:
    """Table 2: the gain from SECE, as paired differences over seeds in percentage points (NLL unscaled).

    It has no rows if no such pair was run.
    """
    names = ((n.replace(" %", ", points"), d + 1) for n, d in HEADINGS.values())
    columns = [Column("difference"), Column("seeds"), *(Column(n, digits=d) for n, d in names)]
    rows: list[list[Any]] = []
    for method, rival in RIVALS:
        if method in group.methods and rival in group.methods:
            gaps = [times(difference(group.records, m, group.dataset, method, rival), scale(m)) for m in HEADINGS]
            shared = {r["seed"] for r in group.of(method)} & {r["seed"] for r in group.of(rival)}
            rows.append([f"{method} − {rival}", str(len(shared)), *gaps])
    theirs = _printed_gain(group.dataset) if rows else []
    return Table(
        columns,
        rows + theirs,
        "Paired over the shared seeds, with 95 % intervals (Student's t). Below zero, SECE is better.",
    )


def _printed_gain(dataset: str) -> list[list[Any]]:
    pairs = [[printed(dataset, name, m, table=2) for name in ("flg-sece", "flg")] for m in METRICS]
    if not all(a and b for a, b in pairs):
        return []
    gaps = [(a.mean - b.mean) * scale(m) for (a, b), m in zip(pairs, METRICS, strict=True) if a and b]
    return [["paper's Table 2: flg-sece − flg", "5", *gaps]]


def table3(group: RunGroup) -> Table:
    """Table 3: published ECE and error beside our runs of the same method.

    It has no rows if none of them was run, or only the paper's own method in a study of few images.
    """
    columns = [
        Column("published by"),
        Column("ECE %", digits=2),
        Column("error %", digits=2),
        Column("our run"),
        Column("seeds"),
        Column("our ECE %"),
        Column("our error %"),
        Column("remark"),
    ]
    rows: list[list[Any]] = []
    whole = "flg-sece" in group.methods and not group.records[0]["limit"]
    if whole or any(name in TABLE_3 for name in group.methods):
        rows = [_quoted(group, row) for row in quoted(group.dataset)]
    return Table(columns, rows, "Published values are for other networks and recipes.")


def _quoted(group: RunGroup, row: Quoted) -> list[Any]:
    own = row.method if row.method in group.methods else None
    found = [None, None] if own is None else [spread(group.values(own, m), 2, 100) for m in ("ece", "error")]
    remark = ONLY_QUOTED.get(row.source, "" if own else "quoted only: not run with this setup")
    if own and row.source.startswith("Hebbalaguppe"):
        remark = "the paper prints two rows without saying how they differ; ours are without and with focal loss"
    source = row.source.replace("(Ours)", "(the paper itself)")
    seeds = None if own is None else str(len(group.of(own)))
    return [source, 100 * row.ece, 100 * row.error, own, seeds, *found, remark or None]


def shifts(group: RunGroup) -> Table:
    """Error, ECE and NLL on shifted images, without and with the temperature fitted on clean validation images."""
    rows = [[shift, method, *_shifted(group, method, [shift])] for shift in SHIFTS for method in group.methods]
    columns = [Column("shift"), Column("method"), *map(Column, _SHIFT_HEADINGS)]
    return Table(columns, rows, f"{_strengths()} T is fitted on clean validation images.")


def mean_shifts(group: RunGroup) -> Table:
    """The same scores as means over the shifts."""
    rows = [[method, *_shifted(group, method, list(SHIFTS))] for method in main_methods(group)]
    columns = [Column("method"), *map(Column, _SHIFT_HEADINGS)]
    return Table(
        columns,
        rows,
        f"Shifted test images: means over {len(SHIFTS)} shifts, then mean ± standard deviation over seeds. T is fitted "
        "on clean validation images.",
    )


_SHIFT_HEADINGS = ("error %", "ECE %", "ECE % with T", "NLL", "NLL with T")


def _shifted(group: RunGroup, method: str, names: Sequence[str]) -> list[str | None]:
    """The mean of each score over some shifts, for each seed, as text."""
    wanted = (("error", 2), ("ece", 2), ("ece_ts", 2), ("nll", 3), ("nll_ts", 3))
    cells = []
    for metric, digits in wanted:
        fields = [f"{metric}@{name}" for name in names]
        means = [fmean(r[field] for field in fields) for r in group.of(method) if all(field in r for field in fields)]
        cells.append(spread(means, digits, scale(metric.removesuffix("_ts"))))
    return cells


def _strengths() -> str:
    """The shifts and their strengths in words."""
    about = {
        "noise": "noise: Gaussian, standard deviation {} of the range of pixels",
        "blur": "blur: Gaussian, standard deviation {} pixels",
        "contrast": "contrast: times {}",
        "brightness": "brightness: times {}",
    }
    strengths: dict[str, list[str]] = {}
    for shift in SHIFTS.values():
        strengths.setdefault(shift.kind, []).append(f"{shift.strength:g}")
    told = "; ".join(about[kind].format(" and ".join(own)) for kind, own in strengths.items())
    return f"Strengths 1 and 2: {told}."


def further(group: RunGroup) -> Table:
    """Further values: validation scores, the temperature and the scores with it, γ, time and memory."""
    columns = ["method", "confidence − accuracy, points", "ECE % (val)", "NLL (val)", "T", "ECE % with T", "NLL with T"]
    columns += ["γ mean", "γ std", "γ on bound %", "seconds", "seconds without compilation", "GB"]
    wanted = (
        ("confidence_minus_accuracy", 2, 100.0),
        ("ece_val", 2, 100.0),
        ("nll_val", 3, 1.0),
        ("temperature", 3, 1.0),
        ("ece_ts", 2, 100.0),
        ("nll_ts", 3, 1.0),
        ("gamma_mean", 3, 1.0),
        ("gamma_std", 3, 1.0),
        ("gamma_on_bound", 1, 100.0),
        ("train_seconds", 1, 1.0),
        ("steady_seconds", 1, 1.0),
        ("peak_memory", 2, 1e-9),
    )
    rows = [[m, *(spread(_values(group, m, name), d, s) for name, d, s in wanted)] for m in group.methods]
    notes = [
        "(val) is the validation part, on which T, the temperature, is fitted; the other columns are for the test "
        "images. γ is that at the end of training; a published γ-Net has no upper bound. Seconds are the training time "
        "of the network, which some methods share: ce-average has the network of recommended. The targets compare the "
        "time without compilation, which is missing where other programs used the device. GB is the peak memory above "
        "that before the run, on the GPU if one is used."
    ]
    if "ce-clean" in group.methods:
        notes.append("ce-clean trains on the validation part too, so its columns with (val) and T mean little.")
    return Table([Column(name) for name in columns], rows, " ".join(notes))


def _values(group: RunGroup, method: str, metric: str) -> list[float]:
    """The values of all seeds; none for the bounds of a published γ-Net, which has no upper bound."""
    unbounded = metric == "gamma_on_bound" and getattr(known_methods().get(method), "form", None) == "published"
    return [] if unbounded else group.values(method, metric)


def _printed(cell: Printed | None, metric: str) -> str | None:
    if cell is None:
        return None
    digits = HEADINGS[metric][1]
    return f"{scale(metric) * cell.mean:.{digits}f} ± {scale(metric) * cell.std:.{digits}f}"


_ROW = re.compile(r"^\s*``(?P<name>\S+)``\s+(?P<text>.+)$", re.MULTILINE)
_REST = "…"


def describe(method: str) -> str:
    """What a method is, or what its variant changes; empty for an unknown method."""
    known = _known()
    if method in known:
        return known[method]
    several = (name for name in known if _REST in name and _pattern(name).match(method))
    longest = max(several, key=len, default=None)
    if longest is None or (found := _pattern(longest).match(method)) is None:
        return ""
    return known[longest].replace(_REST, found[1])


def _pattern(name: str) -> re.Pattern[str]:
    """The ids that a name with "…" stands for, such as ``published-…`` or ``…-mixed``; its group is what "…" is."""
    return re.compile("(.+)".join(map(re.escape, name.split(_REST))) + "$")


@cache
def _known() -> dict[str, str]:
    """Summaries of the methods by id; the variants have theirs in the table of :func:`variants`' docstring."""
    found: dict[str, str] = {}
    for entries in (IMAGE_METHODS, TABLE_3, NOISY_METHODS):
        found |= _spelled_out([(name, entry.summary) for name, entry in entries.items()])
    return found | _spelled_out([(row["name"], row["text"]) for row in _ROW.finditer(variants.__doc__ or "")])


def _spelled_out(rows: list[tuple[str, str]]) -> dict[str, str]:
    """Replace "the same" by the id of the row before, because a table may show the rows in another order."""
    before = [""] + [name for name, _ in rows]
    return {
        name: re.sub(r"^the same\b", f"like {previous}", text)
        for previous, (name, text) in zip(before, rows, strict=False)
    }
