"""Figures inside a page: a drawing as SVG and PNG, and its SVG as an HTML element."""

from __future__ import annotations

import base64
import html
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.base.atomic_write import whole_file
from calibrant.plots import save_figure

INLINE_LIMIT = 3_000_000  # characters; a larger drawing would make the page slow and is shown as PNG


@dataclass(frozen=True)
class Picture:
    """One drawing: its name, its description, and the contents of both files."""

    name: str
    alt: str
    svg: bytes
    png: bytes

    def write(self, folder: Path) -> None:
        """Write `<folder>/<name>.svg` and `.png`."""
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, content in (("svg", self.svg), ("png", self.png)):
            with whole_file(folder / f"{self.name}.{suffix}") as unfinished:
                unfinished.write_bytes(content)

    def inline(self) -> str:
        """Return the element that shows it in a page."""
        if len(self.svg) > INLINE_LIMIT:
            data = base64.b64encode(self.png).decode()
            return f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{data}">'
        return inline_svg(self.svg.decode("utf-8"), prefix=f"{self.name}-", alt=self.alt)


def take_picture(figure: Any, name: str, alt: str) -> Picture:
    """Draw a matplotlib figure or a display now."""
    with tempfile.TemporaryDirectory() as folder:
        svg, png = save_figure(figure, Path(folder) / "picture")
        return Picture(name, alt, svg.read_bytes(), png.read_bytes())


def inline_svg(svg: str, *, prefix: str, alt: str) -> str:
    """Return an SVG file's text as an element for HTML.

    XML head, comments and metadata are removed. Element names get `prefix`, because all drawings of a page share one
    namespace and matplotlib uses the same names in each. The style sheet is limited to this drawing.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\sid=")', rf"\g<1>{prefix}", svg)
    svg = re.sub(r'(href="#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r"(url\(#)", rf"\g<1>{prefix}", svg)
    svg = re.sub(r"(<style[^>]*>)\s*\*", rf"\g<1>#{prefix}svg *", svg)
    title = html.escape(alt)
    head = f'<svg id="{prefix}svg" role="img" aria-label="{title}"'
    return re.sub(r"<svg\b", lambda _: head, svg, count=1).strip()
