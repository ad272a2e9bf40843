"""The results section of docs/meta-regularisation.md, written from result files.

python -m calibrant.experiments.meta_reg.docs docs/meta-regularisation.md results/meta-reg-cifar10.json …
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from calibrant.experiments.meta_reg import tables
from calibrant.experiments.meta_reg.claims import computed
from calibrant.experiments.meta_reg.groups import groups
from calibrant.experiments.meta_reg.measured_claims import measured
from calibrant.experiments.meta_reg.study import read_all
from calibrant.experiments.meta_reg.targets import judged, targets
from calibrant.report import Results, format_number, to_markdown

BEGIN, END = "<!-- results: written by calibrant.experiments.meta_reg.docs -->", "<!-- end of results -->"


def results_section(results: Results) -> str:
    """Targets, claims and Table 1 as Markdown."""
    found = groups(results.records)
    verdicts = [[v.statement, v.shown, v.word, v.note or None] for v in targets(judged(found) or found)]
    claims = [[c.statement, c.paper, c.measured, format_number(c.holds)] for c in (*computed(), *measured(found))]
    parts = [
        "### Targets",
        to_markdown(["target", "measured", "verdict", "note"], verdicts),
        "### Which of the paper's claims hold",
        to_markdown(["claim", "paper", "measured here", "holds"], claims),
    ]
    for group in found:
        table = tables.table1(group)
        parts += [f"### {group.label}", to_markdown(table.columns, table.rows)]
    return "\n\n".join(parts)


def update(page: str | Path, sources: Sequence[str | Path]) -> None:
    """Replace the results section of a page, which stands between two comments, by that of these files."""
    path = Path(page)
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{path} has no results section: it must hold the lines {BEGIN} and {END}.")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    section = results_section(read_all([Path(source) for source in sources]))
    path.write_text(f"{before}{BEGIN}\n\n{section}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    update(sys.argv[1], sys.argv[2:])
