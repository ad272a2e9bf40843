"""A report of sections, tables, figures and verdicts, written as one self-contained HTML file."""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.base.atomic_write import whole_file, write_text_whole
from calibrant.metrics import Estimate
from calibrant.plots import save_figure
from calibrant.report import MISSING, format_number
from calibrant.report.template import need, need_jinja, template
from studies.report.table import Column, Table, make_table, number, to_markdown


@dataclass(frozen=True)
class Picture:
    """One drawing: its name, its description, and the contents of its files by suffix."""

    name: str
    alt: str
    files: Mapping[str, bytes]

    @property
    def source(self) -> str:
        """The drawing as the address of an image in a page."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.files[".svg"]).decode()


@dataclass(frozen=True)
class Verdict:
    """A target and its result: `holds` is True, False, or None if it was not measured.

    `measured` is a number, an `Estimate` with its interval, or a sentence. `note` adds details. `parts` are the parts
    of a target with several, such as data sets: where, the measurement as text, and whether the target holds there.
    """

    statement: str
    measured: Estimate | float | str | None = None
    holds: bool | None = None
    note: str = ""
    digits: int = 3
    parts: tuple[tuple[str, str, bool | None], ...] = ()

    @property
    def word(self) -> str:
        """One of: holds, missed, not measured."""
        return "not measured" if self.holds is None else "holds" if self.holds else "missed"

    @property
    def shown(self) -> str:
        """The measurement as text."""
        return format_number(self.measured, self.digits)


class Report:
    """Build a report from top to bottom, then `write` it.

    >>> report = Report("Blobs", "Two methods, 20 seeds.")
    >>> report.section("Table 1", "Mean and 95 % interval over seeds.")
    >>> report.table(["method", Column("ECE-15", better="low")], [["standard", 0.058], ["bo4sc", 0.022]])
    >>> print(report.to_markdown())
    # Blobs
    <BLANKLINE>
    Two methods, 20 seeds.
    <BLANKLINE>
    ## Table 1
    <BLANKLINE>
    Mean and 95 % interval over seeds.
    <BLANKLINE>
    | method   |    ECE-15 |
    | -------- | --------: |
    | standard |     0.058 |
    | bo4sc    | **0.022** |

    Text is plain: a blank line begins a new paragraph, backquotes enclose code, and HTML is escaped.
    """

    def __init__(self, title: str, summary: str = "") -> None:
        self.title, self.summary = title, summary
        self.pictures: list[Picture] = []
        self._blocks: list[dict[str, Any]] = []
        self._current = self._blocks  # where new blocks go: the report itself or an open `details`
        self._provenance: dict[str, Any] = {}
        self._tables = 0

    def section(self, title: str, text: str = "") -> None:
        """Begin a section; its title appears in the contents."""
        position = sum(block["kind"] == "section" for block in self._blocks) + 1
        self._add("section", title=title, anchor=f"section-{position}")
        self.text(text)

    def text(self, text: str) -> None:
        """Add paragraphs."""
        if text.strip():
            self._add("text", paragraphs=_paragraphs(text))

    def table(
        self, columns: Sequence[Column | str], rows: Sequence[Sequence[Any]], caption: str = "", **options: Any
    ) -> None:
        """Add a table that readers can sort; `group` and `exempt` as in `studies.report.Table`."""
        self._tables += 1
        self._add("table", table=make_table(columns, rows, caption, **options), position=self._tables)

    def figure(self, figure: Any, caption: str, name: str, *, alt: str = "") -> None:
        """Add a matplotlib figure or a display of `calibrant.plots` in its present state; it may be closed afterwards.

        Its files are `figures/<name>.svg` and `.png`. `alt` describes the figure for screen readers; the default is the
        caption.
        """
        with tempfile.TemporaryDirectory() as folder:
            paths = save_figure(figure, Path(folder) / name)
            picture = Picture(name, alt or caption, {path.suffix: path.read_bytes() for path in paths})
        self.pictures.append(picture)
        self._add("figure", picture=picture, caption=caption, position=len(self.pictures))

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Add targets with their results."""
        self._add("verdicts", verdicts=list(verdicts))

    @contextmanager
    def details(self, title: str, text: str = "") -> Iterator[None]:
        """Fold the content that is added inside: `with report.details("Every seed"): report.table(…)`."""
        outside, inside = self._current, list[dict[str, Any]]()
        self._add("details", title=title, blocks=inside)
        self._current = inside
        try:
            self.text(text)
            yield
        finally:
            self._current = outside

    def provenance(self, facts: Mapping[str, Any]) -> None:
        """Set the provenance that the foot shows; `studies.report.provenance()` collects it."""
        self._provenance.update(facts)

    def to_html(self) -> str:
        """Return the whole page."""
        page: str = template("report.html.j2", "studies.report", cells=_cells).render(
            title=self.title,
            summary=_paragraphs(self.summary),
            blocks=self._blocks,
            provenance={key: _fact(value) for key, value in self._provenance.items()},
        )
        return page

    def to_markdown(self) -> str:
        """Return texts, tables, verdicts and captions of figures as Markdown."""
        parts = [f"# {self.title}", *_paragraphs(self.summary), *_markdown(self._blocks)]
        return "\n\n".join(parts)

    def write(self, out: str | Path, name: str = "report.html") -> Path:
        """Write `<out>/<name>` and `<out>/figures/…`; returns the path of the page."""
        page = Path(out) / name
        page.parent.mkdir(parents=True, exist_ok=True)
        for picture in self.pictures:
            for suffix, content in picture.files.items():
                path = page.parent / "figures" / f"{picture.name}{suffix}"
                path.parent.mkdir(exist_ok=True)
                with whole_file(path) as unfinished:
                    unfinished.write_bytes(content)
        write_text_whole(page, self.to_html())
        return page

    def _add(self, kind: str, **content: Any) -> None:
        self._current.append({"kind": kind, **content})


def require() -> None:
    """Raise an ImportError if a package for pages is missing; call it before a long training."""
    need_jinja()
    need("matplotlib", "draws with matplotlib")


def _cells(table: Table) -> list[list[dict[str, Any]]]:
    """Return the text, sort key and marks (number, best) of each cell for the template."""
    best = table.best()
    numeric = [table.is_numeric(j) for j in range(len(table.columns))]
    return [
        [
            {
                "text": format_number(cell, table.columns[j].digits),
                "key": repr(number(cell)) if numeric[j] and number(cell) == number(cell) else "",
                "numeric": numeric[j],
                "best": (i, j) in best,
            }
            for j, cell in enumerate(row)
        ]
        for i, row in enumerate(table.rows)
    ]


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _fact(value: Any) -> list[tuple[str, str]] | str:
    if isinstance(value, Mapping):
        return [(str(key), _one_line(item)) for key, item in value.items()]
    return _one_line(value)


def _one_line(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _markdown(blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    parts: list[str] = []
    for block in blocks:
        match block["kind"]:
            case "section":
                parts.append(f"## {block['title']}")
            case "text":
                parts += block["paragraphs"]
            case "table":
                table: Table = block["table"]
                parts += [table.caption] if table.caption else []
                options: dict[str, Any] = {"group": table.group, "exempt": table.exempt}
                parts.append(to_markdown(table.columns, table.rows, **options))
            case "figure":
                parts.append(f"{block['caption']} (figures/{block['picture'].name}.svg)")
            case "verdicts":
                rows = [[v.statement, v.shown, v.word, v.note or MISSING] for v in block["verdicts"]]
                parts.append(to_markdown(["target", "measured", "verdict", "note"], rows))
            case "details":
                parts += [f"### {block['title']}", *_markdown(block["blocks"])]
    return parts
