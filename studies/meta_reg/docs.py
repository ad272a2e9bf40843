"""The results section of docs/meta-regularisation-results.md, from result files.

``python -m docs.generate`` writes it into the page. ``python -m studies.meta_reg.docs`` prints it, from all files
``results/meta-reg-*.json`` or from those that you name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from studies.common.verdicts import targets_table
from studies.meta_reg import tables
from studies.meta_reg.claims import Claim, computed
from studies.meta_reg.groups import RunGroup, groups
from studies.meta_reg.measured_claims import measured
from studies.meta_reg.noisy import has_noisy_labels, noisy_table, noisy_targets
from studies.meta_reg.searched import CAPTION, HEADINGS, best, rows, searches, without_searches
from studies.meta_reg.study import STUDY
from studies.meta_reg.tables import describe
from studies.meta_reg.targets import TARGETS, judged, targets
from studies.report import Results, Table, to_markdown

MAIN = ("error", "NLL", "ECE", "floor")
"""The scores of the first of two tables."""
SCORES = (*(heading for heading, _ in tables.HEADINGS.values()), "floor %")
CLAIMS = (
    "`python -m studies.meta_reg.docs` computes every row: the first from formulas and simulated predictions, the "
    "others from the stored runs listed below. Claims about trained networks are judged on means over seeds; ± is the "
    "95 % interval of a paired difference. A claim whose runs are missing is shown as not yet measured."
)
DESCRIPTION = "what it is or changes"
RESULTS = Path("results")


def results_section(results: Results) -> str:
    """Targets, claims and tables as Markdown, then what the methods are and the number of their runs."""
    found = groups(without_searches(results.records))
    clean = [group for group in found if not has_noisy_labels(group.dataset)]
    parts = ["## Targets", TARGETS, targets_table(targets(judged(clean) or clean))]
    if noisy := noisy_targets(found):
        parts += ["With noisy labels:", targets_table(noisy)]
    parts += ["## Which of the paper's claims hold", CLAIMS, *claims_in_words([*computed(), *measured(found)])]
    for group in found:
        parts += [f"## {group.label}", *_tables(group)]
    parts += [*_searches(results), "## What the methods are", methods_in_words(found), "## Runs", runs_in_words(found)]
    return "\n\n".join(parts)


def claims_in_words(claims: Sequence[Claim]) -> list[str]:
    """A numbered table, and the remarks below it; claims with the same remark share one."""
    rows = [[n, c.statement, c.paper, c.measured, c.verdict] for n, c in enumerate(claims, 1)]
    remarks: dict[str, list[str]] = {}
    for n, claim in enumerate(claims, 1):
        if claim.note:
            remarks.setdefault(claim.note, []).append(str(n))
    return [
        to_markdown(["no.", "claim", "paper", "measured here", "holds"], rows),
        "\n".join(f"- No. {', '.join(numbers)}: {note}." for note, numbers in remarks.items()),
    ]


def _tables(group: RunGroup) -> list[str]:
    """Table 1, and Tables 2 and 3 and the variants if they were run; for noisy labels, their own table."""
    if has_noisy_labels(group.dataset):
        return _markdown(noisy_table(group))
    parts = _narrow(tables.table1(group))
    for title, table in (
        ("The gain from SECE (Table 2):", tables.table2(group)),
        ("Variants of the methods:", tables.variants_table(group)),
    ):
        if table.rows:
            parts += [title, *_narrow(table)]
    if (table := tables.table3(group)).rows:
        parts += ["Table 3:", *_markdown(table)]
    return parts


def _narrow(table: Table) -> list[str]:
    """Two tables that fit a page: the main scores, and the further ones; descriptions of methods are left out."""
    names = [column.name for column in table.columns]
    scores = [n for n in names if n.startswith(tuple(s.removesuffix(" %") for s in SCORES))]
    about = [n for n in names if n not in (*scores, DESCRIPTION)]
    main = [n for n in scores if n.startswith(MAIN)]
    parts = []
    for shown in (main, [n for n in scores if n not in main]):
        places = [names.index(name) for name in (*about, *shown)]
        rows = [[row[place] for place in places] for row in table.rows]
        parts.append(to_markdown([table.columns[place] for place in places], rows))
    return [parts[0], "Further scores:", parts[1], table.caption]


def _searches(results: Results) -> list[str]:
    """The results of `python -m studies sweep meta-reg`, if it was run."""
    parts: list[str] = []
    for group, base in searches(results.records):
        parts += [f"## Settings of `{base}` on the validation part, {group.label}"]
        parts += [to_markdown(HEADINGS, rows(group, base)), f"{CAPTION} Lowest NLL: {best(group, base)}."]
    return parts


def _markdown(table: Table) -> list[str]:
    return [to_markdown(table.columns, table.rows), table.caption]


def methods_in_words(found: Sequence[RunGroup]) -> str:
    """A list of what the methods are; methods with the same description share an item."""
    named: dict[str, list[str]] = {}
    for method in dict.fromkeys(method for group in found for method in group.methods):
        named.setdefault(describe(method) or "no description", []).append(f"`{method}`")
    return "\n".join(f"- {', '.join(names)}: {text}" for text, names in named.items())


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


def result_files(folder: Path = RESULTS) -> list[Path]:
    """All result files, shorter names first: if several files hold the same run, that of the main study counts."""
    return sorted(folder.glob("meta-reg-*.json"), key=lambda path: (len(path.stem), path.stem))


def main(arguments: Sequence[str]) -> None:
    """Print the section from the named result files; default: all of ``results``."""
    print(results_section(STUDY.read(arguments or result_files())))


if __name__ == "__main__":
    main(sys.argv[1:])
