"""Read the code blocks of a Markdown page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(?:^<!-- not run:(?P<reason>.*?)-->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A Python block: its code, its first line in the page, and why it is not run (None if it is)."""

    code: str
    line: int
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """The Python blocks of a page. ``<!-- not run: reason -->`` on the line before exempts a block."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["code"], text.count("\n", 0, match.start("code")) + 1, match["reason"])
        for match in BLOCK.finditer(text)
    ]


def run(page: Path, names: dict[str, object]) -> None:
    """Run the blocks of a page one after another in one namespace; errors show the page's own line numbers."""
    for block in blocks(page):
        if block.reason is None:
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)
