"""The results section of docs/meta-regularisation-results.md, from result files.

``python -m docs.generate`` writes it into the page. ``python -m studies.meta_reg.docs`` prints it, from all files
``results/meta-reg-*.json`` or from those that you name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from calibrant.base.words import count
from studies.common.verdicts import targets_table
from studies.meta_reg.groups import RunGroup
from studies.meta_reg.page import sections
from studies.meta_reg.study import STUDY
from studies.meta_reg.tables import Part
from studies.report import Results, Table, to_markdown

RESULTS = Path("results")


def results_section(results: Results) -> str:
    """The sections of the report as Markdown, then the number of runs."""
    arranged = sections(results)
    texts = [text for s in arranged for text in (f"## {s.title}", *map(_markdown, s.parts))]
    runs = [_runs(s.group) for s in arranged if s.group is not None]
    return "\n\n".join([*texts, "## Runs", "\n".join(runs)])


def _markdown(part: Part) -> str:
    match part:
        case str():
            return part
        case Table():
            return "\n\n".join(filter(None, [to_markdown(part.columns, part.rows), part.caption]))
        case list():
            return targets_table(part)
        case tuple():
            return "\n".join(f"- {sentence}" for sentence in part)


def _runs(group: RunGroup) -> str:
    """The number of seeds of each method of a setup."""
    by_count: dict[int, list[str]] = {}
    for method in group.methods:
        by_count.setdefault(len(group.of(method)), []).append(f"`{method}`")
    lines = [f"  - {count(n, 'seed')}: {', '.join(names)}" for n, names in sorted(by_count.items(), reverse=True)]
    return "\n".join([f"- {group.label}", *lines])


def result_files(folder: Path = RESULTS) -> list[Path]:
    """All result files, shorter names first: if several files hold the same run, that of the main study counts."""
    return sorted(folder.glob("meta-reg-*.json"), key=lambda path: (len(path.stem), path.stem))


def main(arguments: Sequence[str]) -> None:
    """Print the section from the named result files; default: all of ``results``."""
    print(results_section(STUDY.read(arguments or result_files())))


if __name__ == "__main__":
    main(sys.argv[1:])
