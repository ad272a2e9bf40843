"""The results section of docs/hostile.md, written from the result file.

``python -m calibrant.experiments.hostile.docs`` takes results/hostile.json. The page and the file can be named instead:
``… docs/hostile.md results/hostile.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from calibrant.experiments.common.contents import read_own
from calibrant.experiments.common.sections import replace_section
from calibrant.experiments.common.shared import count
from calibrant.experiments.hostile.page import BEST, overview, verdicts, with_memory
from calibrant.experiments.hostile.study import NAME, arrange
from calibrant.report import Results, to_markdown

PAGE, RESULTS = Path("docs/hostile.md"), Path("results/hostile.json")
BEGIN, END = "<!-- results: written by calibrant.experiments.hostile.docs -->", "<!-- end of results -->"


def results_section(results: Results) -> str:
    """Targets, and one line for each case, as Markdown."""
    records = with_memory(results.records)
    seeds = count(len(results.config["seeds"]), "seed")
    judged = [[v.statement, v.word, v.note or None] for v in verdicts(records)]
    return "\n\n".join(
        [
            f"{seeds}: means with 95 % intervals (Student's t). The earlier version "
            f"was measured with {seeds_before(results)}. Fits ran side by side, each on one thread.",
            to_markdown(["target", "verdict", "where it is missed"], judged),
            BEST,
            to_markdown(*overview(results.config["cases"], records)),
        ]
    )


def seeds_before(results: Results) -> str:
    """How many seeds the earlier version was measured with."""
    seeds = [r["seed"] for r in results.records if r["method"] == "before"]
    return f"{count(len(set(seeds)), 'seed')}, {count(len(seeds), 'run')} in all"


def main(arguments: Sequence[str]) -> None:
    """Write the section into the page that comes first, from the result file after it; both have defaults."""
    page, source = [*arguments, *map(str, (PAGE, RESULTS)[len(arguments) :])]
    replace_section(page, BEGIN, END, results_section(read_own(source, NAME, arrange)))


if __name__ == "__main__":
    main(sys.argv[1:])
