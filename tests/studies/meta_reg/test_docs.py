"""The page of the second paper: its results section, and the names that it mentions."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from studies.meta_reg.claims import Claim, cheaper
from studies.meta_reg.docs import claims_in_words
from studies.meta_reg.plan import known_methods
from studies.meta_reg.tables import describe

DOCS = Path(__file__).parents[3] / "docs"
PAGE, RESULTS = DOCS / "meta-regularisation.md", DOCS / "meta-regularisation-results.md"


@pytest.mark.parametrize("name", re.findall(r"`(calibrant\.[A-Za-z_.]+)[`\[]", PAGE.read_text()))
def test_names_in_the_page_exist(name: str) -> None:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return
    pytest.fail(f"there is no {name}")


def test_methods_in_the_page_exist() -> None:
    command = re.search(r"--methods ([a-z0-9. -]+?) --", PAGE.read_text())
    assert command is not None
    assert set(command[1].split()) <= known_methods().keys()


def test_tables_of_the_page_fit_a_window() -> None:
    """Lists inside cells made cells of 450 characters; ten columns of scores did not fit beside each other."""
    rows = [line for line in RESULTS.read_text().splitlines() if line.startswith("| ")]
    cells = [cell.strip() for row in rows for cell in row.strip("|").split(" | ")]
    assert max(map(len, cells)) <= 150
    assert max(row.count(" | ") for row in rows) < 9
    assert not any(describe("recommended-late") in row for row in rows)  # descriptions are in a list
    assert f"`recommended-late`: {describe('recommended-late')}\n" in RESULTS.read_text()


def test_claims_share_their_remarks_below_the_table() -> None:
    notes = ("early", "late", "early", "")
    table, remarks = claims_in_words([Claim(f"claim {n}", "yes", "no", False, note) for n, note in enumerate(notes)])
    assert "early" not in table
    assert remarks.splitlines() == ["- No. 1, 3: early.", "- No. 2: late."]


def test_the_page_has_no_times_of_one_machine() -> None:
    """They would change with each writing of the page."""
    claim = cheaper((8,), repeats=1)
    assert " ms" in claim.timing
    assert " ms" not in "".join(claims_in_words([claim]))
