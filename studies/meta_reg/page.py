"""The report on the second paper: targets, tables, figures, shifted images and claims."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from studies.common.shared import add_targets, count, failures, foot, screen
from studies.meta_reg import figures, tables
from studies.meta_reg.claims import computed
from studies.meta_reg.data import DATASETS
from studies.meta_reg.groups import RunGroup, groups
from studies.meta_reg.measured_claims import MISSING, measured
from studies.meta_reg.noisy import has_noisy_labels, noisy_groups, noisy_table, noisy_targets
from studies.meta_reg.paper import paper
from studies.meta_reg.searched import CAPTION, best, rows, searches, without_searches
from studies.meta_reg.searched import HEADINGS as SEARCH_HEADINGS
from studies.meta_reg.targets import TARGETS, judged, targets
from studies.report import Report, Results, Table

SUMMARY = """
γ-Net and SECE of "Towards Unbiased Calibration using Meta-Regularization" are compared with other methods. All methods
train on the same 80 % of the training set, except `ce-clean`. 10 % are used for temperatures and for choosing a state
of the network, and 10 % move outer variables, such as the focal γ, which training itself does not fit. ECE, MCE and
classwise ECE have 15 bins of equal width. ACE has 15 bins of equal mass, for the predicted class. `recommended` is
judged against `ce-average-ts`: cross-entropy with the same moving average of the weights, and a temperature.
"""
UNJUDGED = "The targets are for full runs on CIFAR-10 and CIFAR-100. These results contain none, so none is judged."


def tell(results: Results) -> Report:
    """Build the report, in the order of the paper."""
    found = groups(without_searches(results.records))
    report = Report("Meta-regularisation", SUMMARY)
    with report.details("Methods"):
        _add(report, tables.methods_table(found))
    report.section("Targets", TARGETS)
    clean = [group for group in found if group not in noisy_groups(found)]
    if whole := judged(clean):
        report.verdicts(targets(whole))
    elif clean:
        report.text(UNJUDGED)
        with report.details("The same targets, measured on these runs"):
            add_targets(report, targets(clean), judged=False)
    if verdicts := noisy_targets(found):
        report.verdicts(verdicts)
    for position, group in enumerate(found, 1):
        _results(report, group, position)
    for group, base in searches(results.records):
        report.section(f"Settings of {base}, {group.label}", f"Lowest NLL: {best(group, base)}.")
        report.table(SEARCH_HEADINGS, rows(group, base), CAPTION)
    if clean:
        _claims(report, clean)
    failures(report, results.records, "The tables leave them out.")
    foot(report, results, hidden=("methods",))
    return report


def _results(report: Report, group: RunGroup, position: int) -> None:
    """Add the tables and figures of one setup."""
    report.section(group.label)
    if has_noisy_labels(group.dataset):
        _add(report, noisy_table(group))
    _add(report, tables.table1(group), "Table 1: scores")
    with report.details("Validation part, temperature, γ, time and memory"):
        _add(report, tables.further(group))
    _add(report, tables.table2(group), "Table 2: the gain from SECE")
    _add(report, tables.table3(group), "Table 3: published values beside ours")
    _add(report, tables.variants_table(group), "Variants of the methods")
    _add(report, tables.mean_shifts(group), "Shifted images")
    with report.details("Each shift"):
        _add(report, tables.shifts(group))
    if not figures.shown(group):
        return
    about, seed = group.label, figures.common_seed(group)
    which = "the last seed of each method" if seed is None else f"seed {seed}"
    _draw(
        report,
        figures.reliability(group, (15,)),
        f"Figure 2, {about}: reliability diagrams of {which}, 15 bins of equal width. {figures.COLOURS}",
        f"reliability-{position}",
    )
    if (drawn := figures.curves(group)) is not None:
        caption = (
            f"Figure 3, {about}: error and ECE (15 bins) of the test images as fractions, and γ over the test images, "
            "by epoch. Means over seeds, of the current weights. recommended and methods with a temperature are left "
            "out: their confidences are ready only at the end."
        )
        _draw(report, drawn, caption, f"curves-{position}")
    _draw(
        report,
        figures.reliability(group, (20, 50, 100)),
        f"Figure 4, {about}: the same with 20, 50 and 100 bins of equal width (rows), {which}.",
        f"reliability-bins-{position}",
    )
    _draw(
        report,
        figures.bin_sweep(group),
        f"Figure 5, {about}: ECE and MCE as fractions by number of bins, means over seeds. Thin dotted lines are noise "
        "floors: the score of a calibrated model with the same confidences.",
        f"bins-{position}",
    )


def _draw(report: Report, figure: Any, caption: str, name: str) -> None:
    """Add a figure, then close it to free pyplot's memory."""
    import matplotlib.pyplot as plt

    report.figure(figure, caption, name)
    plt.close(figure)


def _claims(report: Report, found: list[RunGroup]) -> None:
    small, large = ([group for group in found if group.small is kind] for kind in (True, False))
    rows = [
        [c.statement, c.paper, "; ".join(filter(None, [c.measured, c.timing])), c.verdict, c.note or None]
        for c in (*computed(), *(measured(large) if large else ()))
    ]
    report.section("The paper's claims", f"Values of the paper are quoted from {paper()['source']}")
    report.table(["claim", "paper", "measured here", "holds", "remark"], rows)
    if small:
        rows = [[c.statement, c.paper, c.measured] for c in measured(small) if c.measured != MISSING]
        about = "Claims about trained networks: runs with so few images cannot judge them."
        report.table(["claim", "paper", "measured, not judged"], rows, about)


def to_terminal(results: Results) -> str:
    """The paper's Table 1 beside ours, and the methods of lowest ECE: one screen of a terminal."""
    found = groups(without_searches(results.records))
    if not found:
        return "No run of these results belongs into the paper's Table 1. The page has them."
    group, *others = found
    theirs = tables.printed_for(group)
    lowest = min(group.methods, key=lambda method: fmean(group.values(method, "ece")))
    in_paper = {method: row["ece"][0] for method, row in paper()["table1"][theirs].items()}
    sentence = f"Lowest mean ECE: {lowest}; in the paper: {min(in_paper, key=in_paper.__getitem__)}."
    if theirs != group.dataset:
        sentence += f" The paper's values are for {DATASETS[theirs].title}: compare the order, not the numbers."
    if not judged([group]) and not has_noisy_labels(group.dataset):
        sentence += f" {UNJUDGED}"
    if others:
        sentence += f" The page also has {'; '.join(other.label for other in others)}."
    seeds = count(len({record["seed"] for record in group.records}), "seed")
    title = f"{group.label}, {seeds}: means ± standard deviations in %"
    return screen(title, tables.in_short(group), sentence)


def _add(report: Report, table: Table, title: str = "") -> None:
    """Add a table with a title above it; nothing without rows."""
    if not table.rows:
        return
    if title:
        report.text(title)
    report.table(table.columns, table.rows, table.caption)
