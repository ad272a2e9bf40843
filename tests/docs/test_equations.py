"""Tests that the docstring of the code for each numbered equation of both papers names the equation."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re

import pytest

from tests.package.source import FILES, STUDIES

from .pages import DOCS

FIRST = {
    1: "calibrant.base.inputs.top_label",
    2: "calibrant.metrics.confidence_gap",
    3: "calibrant.metrics._resampling.draw_outcomes",
    4: "calibrant.metrics.ece",
    5: "calibrant.bilevel.Bilevel",
    6: "calibrant.bilevel.Unrolled",
    7: "calibrant.bilevel.SGD",
    8: "calibrant.bilevel.gradients.hypergradients",
    9: "calibrant.estimators.BO4SCClassifier.confidence",
    10: "calibrant.bilevel.SampleWeights",
    11: "calibrant.losses.cross_entropy",
    12: "calibrant.bilevel.problem.objectives.bce_loss",
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
    9: "studies.meta_reg.claims.upper_bound",
    10: "studies.meta_reg.claims.upper_bound",
    11: "studies.meta_reg.claims.upper_bound",
    12: "calibrant.losses.sece",
}


SECOND_PAPER = "Meta-Regularization|second paper"


def numbers(text: str) -> set[int]:
    """The equations that a text names: "Eq. (4)", "Eq. 12–13", "Eq. (9)–(11)"."""
    found = re.findall(r"Eqs?\.\s+\(?(\d+)\)?(?:\s*[–-]\s*\(?(\d+))?", text)
    return {k for low, high in found for k in range(int(low), int(high or low) + 1)}


@pytest.mark.parametrize(("paper", "equations"), [("Sanguin|first paper", FIRST), (SECOND_PAPER, SECOND)])
def test_searching_a_number_finds_its_code(paper, equations):
    """The docstring says "Eq. (n)", and it or the docstring of its file names the paper."""
    for number, name in equations.items():
        found = pkgutil.resolve_name(name)
        assert f"Eq. ({number})" in found.__doc__, name
        about = found.__doc__ + (inspect.getmodule(found).__doc__ or "")
        assert re.search(paper, about), name


def docstrings():
    """All docstrings of the package and the studies with that of their file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for file in FILES + STUDIES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield file, text, ast.get_docstring(tree) or ""


def test_equations_have_one_form_and_a_paper():
    """No "Eq. 4" and no "Eq. (4)–(6)", which a search for a number would miss, and no number without a paper."""
    wrong = []
    for file, text, about in docstrings():
        found = re.search(r"Eqs?\. \d|Eqs|Eq\. \(\d+\)?[–-]", text)
        named = re.search(rf"Sanguin|first paper|{SECOND_PAPER}|(19|20)\d\d", text + about)
        if found or ("Eq. (" in text and not named):
            wrong.append((file.name, text))
    assert not wrong


@pytest.mark.parametrize(("page", "last"), [("first-paper", max(FIRST)), ("meta-regularisation", max(SECOND))])
def test_page_goes_through_all_equations(page, last):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    table = text.split("## Equation by equation")[1].split("\n## ")[0]
    rows = " ".join(line.split("|")[1].replace("), (", ")–(") for line in table.splitlines() if line.startswith("| Eq"))
    assert set(range(1, last + 1)) <= numbers(rows)
