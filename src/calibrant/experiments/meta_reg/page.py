"""The report on the second paper: targets, tables, figures, shifted images and claims."""

from __future__ import annotations

from typing import Any

from calibrant.experiments.common.shared import failures, foot
from calibrant.experiments.meta_reg import figures, tables
from calibrant.experiments.meta_reg.claims import computed
from calibrant.experiments.meta_reg.groups import RunGroup, groups
from calibrant.experiments.meta_reg.measured_claims import measured
from calibrant.experiments.meta_reg.noisy import has_noisy_labels, noisy_groups, noisy_table, noisy_targets
from calibrant.experiments.meta_reg.paper import paper
from calibrant.experiments.meta_reg.searched import CAPTION, best, rows, searches, without_searches
from calibrant.experiments.meta_reg.searched import HEADINGS as SEARCH_HEADINGS
from calibrant.experiments.meta_reg.targets import TARGETS, judged, targets
from calibrant.report import Report, Results, Table

SUMMARY = """
γ-Net and SECE of "Towards Unbiased Calibration using Meta-Regularization" are compared with other methods. All methods
train on the same 80 % of the training set, except `ce-clean`. 10 % are used for temperatures and for choosing a state
of the network, and 10 % move outer variables, such as the focal γ, which training itself does not fit. ECE, MCE and
classwise ECE have 15 bins of equal width. ACE has 15 bins of equal mass, for the predicted class. `recommended` is
judged against `ce-average-ts`: cross-entropy with the same moving average of the weights, and a temperature.
"""


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
        report.text("The targets apply to full runs on CIFAR-10 and CIFAR-100. These results contain none.")
        with report.details("The same targets, applied to these runs"):
            report.verdicts(targets(clean))
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
    rows = [
        [c.statement, c.paper, "; ".join(filter(None, [c.measured, c.timing])), c.verdict, c.note or None]
        for c in (*computed(), *measured(found))
    ]
    report.section("The paper's claims", f"Values of the paper are quoted from {paper()['source']}")
    report.table(["claim", "paper", "measured here", "holds", "remark"], rows)


def _add(report: Report, table: Table, title: str = "") -> None:
    """Add a table with a title above it; nothing without rows."""
    if not table.rows:
        return
    if title:
        report.text(title)
    report.table(table.columns, table.rows, table.caption)
