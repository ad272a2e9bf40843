"""Tests that every Python block of the documentation runs, page by page and in order."""

from __future__ import annotations

import inspect
import re

import matplotlib
import matplotlib.pyplot as plt
import pytest

import calibrant
from calibrant import SelfCalibratedClassifier

from .pages import DOCS, ROOT, blocks, run

PACKAGE = ROOT / "src" / "calibrant"
ELSEWHERE = {
    "images": "tests/data/vision/test_page.py writes the image files that the page reads",
    "train": "tests/tables/test_train.py writes the table that the page reads",
}
PAGES = [ROOT / "README.md", *sorted(p for p in DOCS.glob("*.md") if blocks(p) and p.stem not in ELSEWHERE)]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Train for a few steps, draw no windows, write into an empty folder."""
    defaults = inspect.unwrap(SelfCalibratedClassifier.__init__).__kwdefaults__
    for name, value in (("epochs", 30), ("folds", 3), ("repeats", 1), ("embedding", None), ("members", ("network",))):
        monkeypatch.setitem(defaults, name, value)
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    yield
    plt.close("all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_run(page, capsys):
    """A block of ``text`` shows lines that the code prints."""
    run(page, {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    shown = re.findall(r"^```text\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [line for block in shown for line in block.splitlines() if line not in printed] == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_blocks_left_out_say_why(page):
    text = page.read_text(encoding="utf-8")
    assert len(blocks(page)) == len(re.findall("^```python$", text, re.MULTILINE))
    assert all(block.reason is None or len(block.reason.split()) >= 3 for block in blocks(page))


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r"^([a-z-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {page.stem for page in DOCS.glob("*.md")} - {"index"} <= set(listed)


def test_every_public_package_has_an_api_page():
    listed = set(re.findall(r"^   (calibrant[a-z_.]*)$", (DOCS / "api.rst").read_text(encoding="utf-8"), re.MULTILINE))
    packages = {f"calibrant.{name}" for name in calibrant.__all__ if (PACKAGE / name / "__init__.py").exists()}
    assert packages <= listed


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page):
    """Sphinx checks the pages of the documentation, but not README.md."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s*]+)\)", text):
        name, _, heading = target.partition("#")
        if "://" not in target:
            file = page.parent / name if name else page
            assert file.exists(), target
            assert not heading or heading in headings(file), target


def headings(page):
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}
