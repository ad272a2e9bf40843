"""Tests that the generated sections of the documentation show the stored results."""

from __future__ import annotations

import re

import pytest
from docs.generate.__main__ import PAGES, SECTIONS, current

GENERATED = [page for page in PAGES if "<!-- results: " in page.read_text(encoding="utf-8")]
OWN = [page for page in GENERATED if page.stem != "meta-regularisation-results"]


@pytest.mark.parametrize("page", OWN, ids=lambda page: page.stem)
def test_pages_show_the_stored_results(page):
    """``python -m docs.generate`` updates them."""
    text = page.read_text(encoding="utf-8")
    assert current(text) == text


def test_every_section_is_used_once():
    found = [name for page in OWN for name in re.findall(r"<!-- results: ([a-z0-9-]+) -->", page.read_text("utf-8"))]
    assert sorted(found) == sorted(SECTIONS)


def test_an_old_number_is_replaced():
    text = "a\n<!-- results: bench -->\n0.123 old\n<!-- end of results -->\nb"
    renewed = current(text)
    assert "old" not in renewed
    assert renewed.startswith("a\n<!-- results: bench -->\n\n| what")
    assert renewed.endswith("<!-- end of results -->\nb")
