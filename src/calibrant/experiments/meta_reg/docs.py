"""Write docs/meta-regularisation-results.md from result files.

``python -m calibrant.experiments.meta_reg.docs`` uses all files ``results/meta-reg-*.json``. You can also name the page
and the files: ``… docs/meta-regularisation-results.md results/meta-reg-cifar10.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from calibrant.experiments.common.sections import replace_section
from calibrant.experiments.meta_reg import tables
from calibrant.experiments.meta_reg.claims import computed
from calibrant.experiments.meta_reg.groups import RunGroup, groups
from calibrant.experiments.meta_reg.measured_claims import measured
from calibrant.experiments.meta_reg.noisy import has_noisy_labels, noisy_table, noisy_targets
from calibrant.experiments.meta_reg.searched import CAPTION, HEADINGS, best, rows, searches, without_searches
from calibrant.experiments.meta_reg.study import read_all
from calibrant.experiments.meta_reg.targets import TARGETS, judged, targets
from calibrant.report import Results, Table, to_markdown

PAGE, RESULTS = Path("docs/meta-regularisation-results.md"), Path("results")
BEGIN, END = "<!-- results: written by calibrant.experiments.meta_reg.docs -->", "<!-- end of results -->"


def results_section(results: Results) -> str:
    """The number of runs, targets, claims and tables as Markdown."""
    found = groups(without_searches(results.records))
    clean = [group for group in found if not has_noisy_labels(group.dataset)]
    verdicts = [[v.statement, v.shown, v.word, v.note or None] for v in targets(judged(clean) or clean)]
    verdicts += [[v.statement, v.shown, v.word, v.note or None] for v in noisy_targets(found)]
    claims = [[c.statement, c.paper, c.measured, c.verdict, c.note or None] for c in (*computed(), *measured(found))]
    parts = [
        "## Runs",
        runs_in_words(found),
        "## Targets",
        TARGETS,
        to_markdown(["target", "measured", "verdict", "note"], verdicts),
        "## Which of the paper's claims hold",
        to_markdown(["claim", "paper", "measured here", "holds", "remark"], claims),
    ]
    for group in found:
        parts += [f"## {group.label}", *_tables(group)]
    return "\n\n".join([*parts, *_searches(results)])


def _tables(group: RunGroup) -> list[str]:
    """Table 1, and Tables 2 and 3 and the variants if they were run; for noisy labels, their own table."""
    if has_noisy_labels(group.dataset):
        return _markdown(noisy_table(group))
    parts = _markdown(tables.table1(group))
    for title, table in (
        ("The gain from SECE (Table 2):", tables.table2(group)),
        ("Table 3:", tables.table3(group)),
        ("Variants of the methods:", tables.variants_table(group)),
    ):
        if table.rows:
            parts += [title, *_markdown(table)]
    return parts


def _searches(results: Results) -> list[str]:
    """The results of `calibrant sweep meta-reg`, if it was run."""
    parts: list[str] = []
    for group, base in searches(results.records):
        parts += [f"## Settings of `{base}` on the validation part, {group.label}"]
        parts += [to_markdown(HEADINGS, rows(group, base)), f"{CAPTION} Lowest NLL: {best(group, base)}."]
    return parts


def _markdown(table: Table) -> list[str]:
    return [to_markdown(table.columns, table.rows), table.caption]


def runs_in_words(found: Sequence[RunGroup]) -> str:
    """The number of seeds of each method, for each setup."""
    lines = []
    for group in found:
        by_count: dict[int, list[str]] = {}
        for method in group.methods:
            by_count.setdefault(len(group.of(method)), []).append(f"`{method}`")
        lines.append(f"- {group.label}")
        for count, names in sorted(by_count.items(), reverse=True):
            lines.append(f"  - {count} {'seed' if count == 1 else 'seeds'}: {', '.join(names)}")
    return "\n".join(lines)


def update(page: str | Path, sources: Sequence[str | Path]) -> None:
    """Replace the results section of a page, between two comments, by that of these files."""
    replace_section(page, BEGIN, END, results_section(read_all([Path(source) for source in sources])))


def main(arguments: Sequence[str]) -> None:
    """Update the page named first from the result files named after it; both have defaults."""
    page, *sources = arguments or [str(PAGE)]
    # Shorter names come first: if several files hold the same run, that of the main study counts.
    every = sorted(RESULTS.glob("meta-reg-*.json"), key=lambda path: (len(path.stem), path.stem))
    update(page, sources or every)


if __name__ == "__main__":
    main(sys.argv[1:])
