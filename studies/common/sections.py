"""Sections of a page of the documentation that are written from result files."""

from __future__ import annotations

from pathlib import Path

from calibrant.base.atomic_write import write_text_whole


def replace_section(page: str | Path, begin: str, end: str, section: str) -> None:
    """Replace the text between two lines of a page."""
    path = Path(page)
    text = path.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise ValueError(f"{path} has no results section. Add the lines {begin} and {end}.")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    write_text_whole(path, f"{before}{begin}\n\n{section}\n\n{end}{after}")
