"""Read the stored results of one experiment by name."""

from __future__ import annotations

import textwrap
from functools import cache
from pathlib import Path

from calibrant.report import Results, read_results

RESULTS = Path(__file__).parents[2] / "results"


@cache
def stored(name: str) -> Results:
    """The content of ``results/NAME.json``."""
    return read_results(RESULTS / f"{name}.json")


def bullets(sentences: list[str]) -> str:
    """Sentences as a Markdown list, in lines of at most 150 characters."""
    options = {"width": 150, "subsequent_indent": "  ", "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.fill(f"- {sentence}", **options) for sentence in sentences)


def words(names: list[str]) -> str:
    """Names as an English list: "a, b and c"; "none" for an empty list."""
    if not names:
        return "none"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
