"""The report on the second paper: targets, claims, tables, figures and methods.

`sections` arranges the content once; `tell` makes the HTML page of it, and :mod:`studies.meta_reg.docs` the page of the
documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from calibrant.base.words import count
from studies.common.shared import failures, foot, screen
from studies.meta_reg import figures, tables
from studies.meta_reg.claims import Claim, computed
from studies.meta_reg.data import DATASETS
from studies.meta_reg.groups import RunGroup, groups
from studies.meta_reg.measured_claims import measured
from studies.meta_reg.paper import paper
from studies.meta_reg.plan import described
from studies.meta_reg.searched import searched_table, searches, without_searches
from studies.meta_reg.tables import Part
from studies.meta_reg.targets import TARGETS, judged, noisy_targets, targets
from studies.report import Column, Report, Results, Table

SUMMARY = """
γ-Net and SECE of "Towards Unbiased Calibration using Meta-Regularization" are compared with other methods. All methods
train on the same 80 % of the training set, except `ce-clean`. 10 % are used for temperatures and for choosing a state
of the network, and 10 % move outer variables, such as the focal γ, which training itself does not fit. ECE, MCE and
classwise ECE have 15 bins of equal width. ACE has 15 bins of equal mass, for the predicted class. `recommended` is
judged against `ce-average-ts`: cross-entropy with the same moving average of the weights, and a temperature.
"""
UNJUDGED = "The targets are for full runs on CIFAR-10 and CIFAR-100. These results contain none, so none is judged."
CLAIMS = (
    "`python -m studies.meta_reg.docs` computes every row: the first from formulas and simulated predictions, the "
    "others from the stored runs listed below. Claims about trained networks are judged on means over seeds; ± is the "
    "95 % interval of a paired difference. A claim whose runs are missing is shown as not yet measured."
)


class Section(NamedTuple):
    """A heading, the parts below it, and the runs that it is about, if it is about one setup."""

    title: str
    parts: Sequence[Part]
    group: RunGroup | None = None


def sections(results: Results) -> list[Section]:
    """The content of the report, apart from figures and further values."""
    study = groups(without_searches(results.records))
    clean = [group for group in study if not group.noisy]
    arranged = [Section("Targets", _targets(clean, study))] if study else []
    if clean:
        claims = [*computed(), *measured([group for group in clean if not group.small])]
        arranged.append(Section("Which of the paper's claims hold", [CLAIMS, *claims_table(claims)]))
    arranged += [Section(group.label, _tables(group), group) for group in study]
    for group, base in searches(results.records):
        title = f"Settings of `{base}` on the validation part, {group.label}"
        arranged.append(Section(title, [searched_table(group, base)]))
    names = described(method for group in study for method in group.methods)
    return [*arranged, Section("What the methods are", [names])] if names else arranged


def _targets(clean: Sequence[RunGroup], study: Sequence[RunGroup]) -> list[Part]:
    """All targets; without runs that can decide them, their measurements alone."""
    parts: list[Part] = [TARGETS]
    if whole := judged(clean):
        parts.append(targets(whole))
    elif clean:
        rows = [[verdict.statement, verdict.shown] for verdict in targets(clean)]
        parts += [UNJUDGED, Table([Column("target"), Column("measured, not judged")], rows)]
    noisy = noisy_targets([group for group in study if group.noisy])
    return [*parts, "With noisy labels:", noisy] if noisy else parts


def claims_table(claims: Iterable[Claim]) -> list[Part]:
    """A numbered table, and the remarks below it; claims with the same remark share one."""
    rows, remarks = list[list[object]](), dict[str, list[str]]()
    for number, claim in enumerate(claims, 1):
        rows.append([number, claim.statement, claim.paper, claim.measured, claim.verdict])
        if claim.note:
            remarks.setdefault(claim.note, []).append(str(number))
    heads = ("no.", "claim", "paper", "measured here", "holds")
    sentences = tuple(f"No. {', '.join(numbers)}: {note}." for note, numbers in remarks.items())
    return [Table([Column(head) for head in heads], rows), sentences]


def _tables(group: RunGroup) -> list[Part]:
    """Table 1, and Tables 2 and 3 and the variants if they were run; for noisy labels, their own table."""
    if group.noisy:
        return [tables.noisy_table(group)]
    builders = (tables.table1, tables.table2, tables.variants_table, tables.table3)
    return [part for table in builders for part in table(group)]


def tell(results: Results) -> Report:
    """Build the report."""
    report = Report("Meta-regularisation", SUMMARY)
    for number, section in enumerate(sections(results)):
        report.section(section.title.replace("`", ""))
        for part in section.parts:
            _add(report, part)
        if section.group is not None:
            with report.details("Validation part, temperature, γ, time and memory"):
                _add(report, tables.further(section.group))
            for which, figure, caption in figures.drawn(section.group):
                caption = f"Figure {which}, {section.group.label}: {caption}"
                report.figure(figure, caption, f"figure-{which}-{number}")
    failures(report, results.records, "The tables leave them out.")
    foot(report, results, hidden=("methods",))
    return report


def _add(report: Report, part: Part) -> None:
    match part:
        case str():
            report.text(part)
        case Table():
            report.table(part.columns, part.rows, part.caption)
        case list():
            report.verdicts(part)
        case tuple():
            report.text("\n\n".join(part))


def to_terminal(results: Results) -> str:
    """The paper's Table 1 beside ours, and the methods of lowest ECE: one screen of a terminal."""
    study = groups(without_searches(results.records))
    if not study:
        return "No run of these results belongs into the paper's Table 1. The page has them."
    group, *others = study
    theirs = tables.printed_for(group)
    lowest = min(group.methods, key=lambda method: fmean(group.values(method, "ece")))
    in_paper = {method: row["ece"][0] for method, row in paper()["table1"][theirs].items()}
    sentence = f"Lowest mean ECE: {lowest}; in the paper: {min(in_paper, key=in_paper.__getitem__)}."
    if theirs != group.dataset:
        sentence += f" The paper's values are for {DATASETS[theirs].title}: the numbers differ."
    if not judged([group]) and not group.noisy:
        sentence += f" {UNJUDGED}"
    if others:
        sentence += f" The page also has {'; '.join(other.label for other in others)}."
    seeds = count(len({record["seed"] for record in group.records}), "seed")
    title = f"{group.label}, {seeds}: means ± standard deviations in %"
    return screen(title, tables.in_short(group), sentence)
