"""The measurements in docs/selective.md: how often rules, bounds and prediction sets kept their promise."""

from __future__ import annotations

from calibrant.report import Column, to_markdown
from docs.generate.stored import stored
from studies.guarantees.measures import FIXED, SCORES, TESTS
from studies.guarantees.page import (
    bound_row,
    cases_of,
    rule_row,
    rule_verdicts,
    set_row,
    set_verdicts,
)

NAME = "guarantees"
ABOUT = ("learner", "classifier")
RISK = 0.1
"""The risk of the rules on the page; the report has the others too."""


def targets() -> str:
    """Whether the promises were kept, for each final classifier."""
    config, cases = stored(NAME).config, list(cases_of(stored(NAME).records))
    found = [*rule_verdicts(cases, config["risks"], 1 - config["confidence"]), *set_verdicts(cases, config["coverage"])]
    rows = [[v.statement, "; ".join(filter(None, [v.shown, v.note])), v.word] for v in found]
    return to_markdown(["target", "measured", "verdict"], rows)


def rules() -> str:
    """How often rules were found and broken, and how much they accept."""
    scores = [
        Column(f"{what} ({test})", digits=2 if what == "accepted" else 3)
        for test in TESTS
        for what in ("broken", "accepted")
    ]
    columns = [*ABOUT, "data sets", Column("rules found", digits=2), *scores]
    rows = []
    for case in cases_of(stored(NAME).records):
        learner, classifier, _, number, found, *cells = rule_row(case, RISK)
        rows.append([learner, classifier, number, found, *cells[: len(scores)]])
    return to_markdown(columns, rows)


def bounds() -> str:
    """How often bounds at fixed thresholds were exceeded, one table for each threshold."""
    parts = []
    for position, threshold in enumerate(FIXED):
        rows = []
        for case in cases_of(stored(NAME).records):
            about, cells = bound_row(case)[:3], bound_row(case)[3:]
            rows.append([*about, *cells[3 * position : 3 * position + 3]])
        columns = [*ABOUT, "data sets", "exceeded by fold models", "exceeded by classifier", "difference of risk"]
        parts += [f"Threshold {threshold:g}:", to_markdown(columns, rows)]
    return "\n\n".join(parts)


def sets() -> str:
    """Coverage and mean size of prediction sets, and the set with the lowest coverage."""
    names = [f"{score}: {what}" for score in SCORES for what in ("coverage", "size")]
    rows = [set_row(case) for case in cases_of(stored(NAME).records)]
    return to_markdown([*ABOUT, *names, "least covered"], rows)


SECTIONS = {
    "guarantees-targets": targets,
    "guarantees-rules": rules,
    "guarantees-bounds": bounds,
    "guarantees-sets": sets,
}
