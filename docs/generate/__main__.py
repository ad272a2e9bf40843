"""Write the measured numbers into the documentation: ``python -m docs.generate`` from the repository's root.

A page marks each generated section by two comments, ``<!-- results: NAME -->`` and ``<!-- end of results -->``. The
text between them is replaced by what ``SECTIONS[NAME]`` returns. All numbers come from ``results/*.json``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from docs.generate import (
    alternatives,
    coverage,
    first_paper,
    first_paper_data,
    images,
    readings,
    readme,
    sampling_noise,
    tables,
)

ROOT = Path(__file__).parents[2]
PAGES = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md")
PARTS = (first_paper, first_paper_data, readings, coverage, sampling_noise, tables, alternatives, readme)
SECTIONS: dict[str, Callable[[], str]] = {name: write for part in PARTS for name, write in part.SECTIONS.items()}
SECTION = re.compile(r"(<!-- results: ([a-z0-9-]+|written by [a-z_.]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def current(text: str) -> str:
    """The text of a page with its generated sections renewed."""
    return SECTION.sub(lambda section: f"{section[1]}\n{SECTIONS[section[2]]()}\n\n{section[3]}", text)


def main() -> None:
    """Renew all pages and the figures; name what changed."""
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = current(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"written: {page.relative_to(ROOT)}")
    for section in (alternatives, first_paper, images, sampling_noise):
        for path in section.draw(ROOT / "docs" / "figures"):
            print(f"drawn: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
