"""Read the stored results of one experiment by name, and write lists and sentences."""

from __future__ import annotations

import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from calibrant.metrics import Estimate, excludes_zero
from calibrant.plots import save_figure
from studies.report import Results, read_results

RESULTS = Path(__file__).parents[2] / "results"
SIGNS = {-1: "significantly lower", 1: "significantly higher", 0: "not significantly different"}
"""What the sign of `excludes_zero` says: the 95 % interval of a paired difference lies below, above or around zero."""


@cache
def stored(name: str) -> Results:
    """The content of ``results/NAME.json``."""
    return read_results(RESULTS / f"{name}.json")


def save_png(figure: Any, stem: Path) -> Path:
    """Save a figure as ``stem``.png alone, and close it."""
    from matplotlib import pyplot as plt

    svg, png = save_figure(figure, stem)
    svg.unlink()
    plt.close(figure)
    return png


def bullets(sentences: list[str]) -> str:
    """Sentences as a Markdown list, in lines of at most 150 characters."""
    return "\n".join(_wrapped(f"- {sentence}", "  ") for sentence in sentences)


def paragraph(*sentences: str) -> str:
    """Sentences as one paragraph, in lines of at most 150 characters; empty ones are left out."""
    return _wrapped(" ".join(filter(None, sentences)), "")


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, 150, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def words(names: list[str]) -> str:
    """Names as an English list: "a, b and c"; "none" for an empty list."""
    if not names:
        return "none"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def signs(gaps: dict[str, Estimate]) -> str:
    """How paired differences lie, by set: "significantly lower on a and b and not significantly different on c"."""
    by_sign = {sign: [name for name, gap in gaps.items() if excludes_zero(gap) == sign] for sign in SIGNS}
    every = "both sets" if len(gaps) == 2 else f"all {len(gaps)} sets"
    places = {sign: words(names) if len(names) < max(2, len(gaps)) else every for sign, names in by_sign.items()}
    return " and ".join(f"{word} on {places[sign]}" for sign, word in SIGNS.items() if by_sign[sign])
