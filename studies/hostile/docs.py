"""The results section of docs/hostile.md, written from the result file.

``python -m studies.hostile.docs`` takes results/hostile.json. The page and the file can be named instead:
``… docs/hostile.md results/hostile.json``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.report import Column, Results, to_markdown
from studies.common.sections import replace_section
from studies.common.shared import count
from studies.hostile.contenders import BEFORE, OWN
from studies.hostile.page import BEST, overview, verdicts, with_costs
from studies.hostile.study import STUDY

PAGE, RESULTS = Path("docs/hostile.md"), Path("results/hostile.json")
COSTS = ("s, now", "MB, now")
NOW = ("ECE, now", *COSTS)
BETWEEN = "Costs, and the earlier version. `s` are the seconds of one fit, and `MB` is its peak memory beyond the data:"
BEGIN, END = "<!-- results: written by studies.hostile.docs -->", "<!-- end of results -->"


def results_section(results: Results) -> str:
    """Return the targets and one line per case, as Markdown."""
    records = with_costs(results.records)
    judged = [[v.statement, v.word, v.note or None] for v in verdicts(records)]
    return "\n\n".join(
        [
            "Means with 95 % intervals (Student's t), and paired differences. The classifier was measured with "
            f"{runs_of(results, OWN)}, the earlier version with {runs_of(results, BEFORE)}. Fits ran side by side, "
            "each on one thread.",
            to_markdown(["target", "verdict", "where it is missed"], judged),
            BEST,
            f"\n\n{BETWEEN}\n\n".join(two_tables(*overview(results.config["cases"], records))),
        ]
    )


def two_tables(head: Sequence[Column | str], lines: Sequence[Sequence[Any]]) -> list[str]:
    """Divide the overview, which is too wide for a page: scores now, then costs and the earlier version."""
    names = [column if isinstance(column, str) else column.name for column in head]
    earlier = [k for k, name in enumerate(names) if BEFORE in name or name in (f"NLL, {OWN}", *NOW)]
    scores = [k for k, name in enumerate(names) if BEFORE not in name and name not in COSTS]
    return [
        to_markdown([head[k] for k in chosen], [[line[k] for k in chosen] for line in lines])
        for chosen in (scores, [0, *earlier])
    ]


def runs_of(results: Results, method: str) -> str:
    """Say how many seeds of each case a contender was measured with."""
    seeds = Counter(r["dataset"] for r in results.records if r["method"] == method)
    if not seeds:
        return "none"
    fewest, most = min(seeds.values()), max(seeds.values())
    span = count(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
    return f"{span} of {count(len(seeds), 'case')}"


def main(arguments: Sequence[str]) -> None:
    """Write the section; the arguments are the page and the result file, and both have defaults."""
    page, source = [*arguments, *map(str, (PAGE, RESULTS)[len(arguments) :])]
    replace_section(page, BEGIN, END, results_section(STUDY.read([source])))


if __name__ == "__main__":
    main(sys.argv[1:])
