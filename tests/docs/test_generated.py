"""Tests that the generated sections of the documentation show the stored results."""

from __future__ import annotations

import pytest

from docs.generate.__main__ import PAGES, SECTION, SECTIONS, current

GENERATED = [page for page in PAGES if "<!-- results: " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.stem)
def test_pages_show_the_stored_results(page):
    """``python -m docs.generate`` updates them."""
    text = page.read_text(encoding="utf-8")
    assert current(text) == text


def test_every_section_is_used_once():
    found = [match[2] for page in GENERATED for match in SECTION.finditer(page.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(SECTIONS)


def test_an_old_number_is_replaced():
    text = "a\n<!-- results: bench -->\n0.123 old\n<!-- end of results -->\nb"
    renewed = current(text)
    assert "old" not in renewed
    assert renewed.startswith("a\n<!-- results: bench -->\n\n| what")
    assert renewed.endswith("<!-- end of results -->\nb")
