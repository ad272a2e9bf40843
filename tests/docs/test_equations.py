"""Tests that the docstring of the code for each numbered equation of both papers names the equation."""

from __future__ import annotations

import pkgutil
import re

import pytest

from .pages import DOCS

FIRST = {
    1: "calibrant._inputs.top_label",
    2: "calibrant.metrics.confidence_gap",
    3: "calibrant.metrics._resampling.draw_outcomes",
    4: "calibrant.metrics.ece",
    5: "calibrant.bilevel.Bilevel",
    6: "calibrant.bilevel.Unrolled",
    7: "calibrant.bilevel.SGD",
    8: "calibrant.bilevel.hypergradients",
    9: "calibrant.estimators.BO4SCClassifier.confidence",
    10: "calibrant.bilevel.SampleWeights",
    11: "calibrant.losses.cross_entropy",
    12: "calibrant.bilevel.outer_losses.bce_loss",
    13: "calibrant.losses.confidence_bce",
    14: "calibrant.methods.BO4SC",
}
SECOND = {
    1: "calibrant.losses.focal",
    2: "calibrant.bilevel.FocalWithGamma",
    3: "calibrant.bilevel.GammaNet",
    4: "calibrant.bilevel.GammaNet",
    5: "calibrant.losses.sece",
    6: "calibrant.losses.sece",
    7: "calibrant.losses.sece",
    8: "calibrant.metrics.kde_ece",
    9: "calibrant.experiments.meta_reg.claims.upper_bound",
    10: "calibrant.experiments.meta_reg.claims.upper_bound",
    11: "calibrant.experiments.meta_reg.claims.upper_bound",
    12: "calibrant.losses.sece",
}


def numbers(text: str) -> set[int]:
    """The equations that a text names: "Eq. (4)", "Eq. 12–13", "Eq. (9)–(11)"."""
    found = re.findall(r"Eqs?\.\s+\(?(\d+)\)?(?:\s*[–-]\s*\(?(\d+))?", text)
    return {k for low, high in found for k in range(int(low), int(high or low) + 1)}


@pytest.mark.parametrize(("number", "name"), [*FIRST.items(), *SECOND.items()])
def test_docstring_names_the_equation(number, name):
    assert number in numbers(pkgutil.resolve_name(name).__doc__)


@pytest.mark.parametrize(("page", "last"), [("first-paper", max(FIRST)), ("meta-regularisation", max(SECOND))])
def test_page_goes_through_all_equations(page, last):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    table = text.split("## Equation by equation")[1].split("\n## ")[0]
    rows = " ".join(line.split("|")[1].replace("), (", ")–(") for line in table.splitlines() if line.startswith("| Eq"))
    assert set(range(1, last + 1)) <= numbers(rows)
